// Case B3 as a plan: experts move between two placements while decode steps go on, and no step stalls.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "balance/migration.h"
#include "base/det_math.h"
#include "base/rng.h"
#include "sim/cost_model.h"
#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

constexpr double kNicBytesPerUs = 50e3;  // 400 Gb/s

TEST(Rebalance, NoDecodeStepTakesTwiceTheMedian) {
  constexpr int kLayers = 4, kExperts = 256, kGpus = 144;
  const RebalanceShape shape{288, 8, 18, kGpus};
  Rng rng(5);
  const auto weights_of = [&](std::vector<float>& values) {
    for (float& w : values)
      w = static_cast<float>(det_exp(0.5 * normal_quantile(0.001 + 0.998 * rng.next_double())));
    return ExpertWeights{kLayers, kExperts, values};
  };
  std::vector<float> before(kLayers * kExperts), after(kLayers * kExperts);
  const ExpertPlacement from = rebalance_experts(weights_of(before), shape).value();
  const ExpertPlacement to = rebalance_experts(weights_of(after), shape).value();
  MigrationOptions options;
  options.num_gpus = kGpus;
  const MigrationPlan plan = plan_migration(from, to, options).value();
  ASSERT_TRUE(verify_migration(from, plan, options).ok());
  ASSERT_GT(plan.num_moves, 0);

  const double step_us =
      decode_step_us(test_profile("h800-day"), {}, {144, 288, 2, 1.2, true}, {100, 88, 88 * 4989.0 * 1.09});
  std::vector<double> steps;
  for (const MigrationStep& step : plan.steps) {
    // One migration step rides on one decode step. At worst none of it hides behind computation.
    std::map<int, int64_t> received;
    for (const ExpertCopy& copy : step.copies) received[copy.to_slot / shape.slots_per_gpu()] += copy.bytes;
    int64_t most = 0;
    for (const auto& [gpu, bytes] : received) most = std::max(most, bytes);
    steps.push_back(step_us + static_cast<double>(most) / kNicBytesPerUs);
  }
  std::sort(steps.begin(), steps.end());
  std::printf("%lld expert copies in %zu steps: decode step %.1f ms, slowest while moving %.1f ms\n",
              static_cast<long long>(plan.num_moves), plan.steps.size(), step_us / 1e3, steps.back() / 1e3);
  EXPECT_LE(steps.back(), 2 * steps[steps.size() / 2]);
  EXPECT_LE(steps.back(), 1.05 * step_us);
}

}  // namespace
}  // namespace fathom::sim
