// What expert balancing is worth at the published shapes, by Monte Carlo: the busiest GPU's tokens over the
// mean for each skew of expert popularity, beside the fleet model's figures.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "balance/eplb.h"
#include "balance/gate_testing.h"
#include "balance/replica_choice.h"

namespace fathom {
namespace {

constexpr int kStatisticsTokens = 40'000, kLayers = 4;
constexpr double kDrift = 0.15;  // of popularity, up or down

// Experts in slot order, placed by today's statistics, by those before the drift, and the latter with each
// batch split at the LP's optimum.
struct Row {
  double in_order = 0, fresh = 0, stale = 0, split = 0;
};

struct Setting {
  RebalanceShape shape;
  double sigma;
  int batch_tokens;
};

double busiest(const std::vector<int32_t>& tokens, const ExpertPlacement& placement, int num_gpus) {
  const std::vector<float> weights(tokens.begin(), tokens.end());
  return gpu_load_summary(weights, placement, 0, num_gpus).max_over_mean();
}

Row measure(const Setting& setting) {
  Row row;
  ReplicaChooser chooser;
  ReplicaSplit split;
  const RebalanceShape& shape = setting.shape;
  for (uint64_t layer = 0; layer < kLayers; ++layer) {
    GateModel gate(layer + 1, setting.sigma);
    const auto placed = [&] {
      return rebalance_experts({1, GateModel::kExperts, gate.statistics(kStatisticsTokens)}, shape).value();
    };
    const ExpertPlacement stale = placed();
    gate.drift(kDrift);
    const ExpertPlacement fresh = placed();
    const ExpertPlacement in_order = initial_placement(1, GateModel::kExperts, shape.num_replicas);
    constexpr int kBatches = 3;
    for (int batch = 0; batch < kBatches; ++batch) {
      const std::vector<int32_t> tokens = gate.batch(setting.batch_tokens);
      constexpr double kShare = 1.0 / kLayers / kBatches;
      row.in_order += kShare * busiest(tokens, in_order, shape.num_gpus);
      row.fresh += kShare * busiest(tokens, fresh, shape.num_gpus);
      row.stale += kShare * busiest(tokens, stale, shape.num_gpus);
      const PlacementView view = placement_view(stale, 0, shape.num_gpus);
      row.split += kShare * chooser.choose(tokens, view, split).max_over_mean();
    }
  }
  std::printf("%3d GPUs, sigma %.1f: in order %.2f, fresh %.2f, stale %.2f, stale with the split %.2f\n",
              shape.num_gpus, setting.sigma, row.in_order, row.fresh, row.stale, row.split);
  return row;
}

// The fleet model's row, whose Monte Carlo is another one: its figures to a tenth, its order exactly.
void expect_row(const Row& row, const Row& published) {
  EXPECT_NEAR(row.in_order / published.in_order, 1, 0.1);
  EXPECT_NEAR(row.fresh / published.fresh, 1, 0.03);
  EXPECT_NEAR(row.stale / published.stale, 1, 0.1);
  EXPECT_NEAR(row.split / published.split, 1, 0.1);
  EXPECT_GT(row.in_order, row.stale);
  EXPECT_GT(row.stale, row.fresh);
  EXPECT_LE(row.split, row.stale);
}

TEST(ExpertRows, DecodeUnitsAreAsUnevenAsMeasured) {
  const RebalanceShape decode{288, 8, 18, 144};
  const Row mild = measure({decode, 0.3, 144 * 88});
  const Row middle = measure({decode, 0.6, 144 * 88});
  const Row severe = measure({decode, 1.0, 144 * 88});
  expect_row(mild, {1.98, 1.14, 1.17, 1.16});
  expect_row(middle, {3.48, 1.15, 1.24, 1.23});
  expect_row(severe, {5.94, 1.35, 1.54, 1.54});
  EXPECT_LT(mild.in_order, middle.in_order);
  EXPECT_LT(middle.in_order, severe.in_order);
  EXPECT_LT(middle.stale, severe.stale);
}

TEST(ExpertRows, PrefillUnitsAreAsUnevenAsMeasured) {
  const Row global = measure({{288, 1, 1, 32}, 0.6, 32 * 1024});
  const Row hierarchical = measure({{288, 8, 4, 32}, 0.6, 32 * 1024});
  expect_row(global, {1.75, 1.03, 1.07, 1.03});
  // Hierarchical was measured with stale statistics only.
  expect_row(hierarchical, {1.75, 1.05, 1.11, 1.06});
  EXPECT_LT(global.stale, hierarchical.stale);
  // The split pays where a rank has nine slots.
  EXPECT_LT(global.split - 1, 0.7 * (global.stale - 1));
}

}  // namespace
}  // namespace fathom
