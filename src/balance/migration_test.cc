// Migration plans against exhaustive search and their own checker; case B3.
#include "balance/migration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "balance/eplb_refine.h"
#include "balance/testing.h"

namespace fathom {
namespace {

ExpertPlacement random_placement(Rng& rng, int layers, int experts, int slots) {
  std::vector<int32_t> phy2log;
  for (int l = 0; l < layers; ++l) {
    std::vector<int32_t> row(slots);
    for (int s = 0; s < slots; ++s) row[s] = static_cast<int32_t>(s < experts ? s : rng.next_below(experts));
    for (int s = slots - 1; s > 0; --s) std::swap(row[s], row[rng.next_below(s + 1)]);
    phy2log.insert(phy2log.end(), row.begin(), row.end());
  }
  return placement_from_slots(layers, experts, phy2log).value();
}

int64_t gpu_moves(std::span<const int32_t> have, std::span<const int32_t> want) {
  std::map<int32_t, int> missing;
  for (int32_t e : want) ++missing[e];
  for (int32_t e : have) --missing[e];
  int64_t moves = 0;
  for (const auto& [e, n] : missing) moves += std::max(0, n);
  return moves;
}

TEST(Migration, assignment_is_optimal) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    const int n = 1 + static_cast<int>(rng.next_below(6));
    std::vector<int64_t> cost(n * n);
    for (int64_t& c : cost) c = static_cast<int64_t>(rng.next_below(20));
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    int64_t best = INT64_MAX;
    do {
      int64_t sum = 0;
      for (int i = 0; i < n; ++i) sum += cost[i * n + order[i]];
      best = std::min(best, sum);
    } while (std::next_permutation(order.begin(), order.end()));
    int64_t ours = 0;
    const auto column = assign_min_cost(cost, n);
    for (int i = 0; i < n; ++i) ours += cost[i * n + column[i]];
    EXPECT_EQ(ours, best) << "seed " << seed;
  }
}

// Against every order of the GPUs.
TEST(Migration, takes_the_fewest_moves) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Rng rng(seed);
    constexpr int kGpus = 5, kPerGpu = 3;
    const ExpertPlacement from = random_placement(rng, 1, 10, kGpus * kPerGpu);
    const ExpertPlacement to = random_placement(rng, 1, 10, kGpus * kPerGpu);
    for (bool relabel : {false, true}) {
      const MigrationOptions options{.num_gpus = kGpus, .relabel_gpus = relabel};
      const MigrationPlan plan = plan_migration(from, to, options).value();
      std::vector<int> order(kGpus);
      std::iota(order.begin(), order.end(), 0);
      int64_t best = INT64_MAX;
      do {
        int64_t moves = 0;
        for (int g = 0; g < kGpus; ++g) {
          moves += gpu_moves(from.slots(0).subspan(g * kPerGpu, kPerGpu),
                             to.slots(0).subspan(order[g] * kPerGpu, kPerGpu));
        }
        best = std::min(best, moves);
      } while (relabel && std::next_permutation(order.begin(), order.end()));
      EXPECT_EQ(plan.num_moves, best) << "fewest_moves, seed " << seed;
      // What arrives is the target, up to what may be relabelled.
      std::multiset<std::vector<int32_t>> wanted, reached;
      for (int g = 0; g < kGpus; ++g) {
        std::vector<int32_t> a(to.slots(0).begin() + g * kPerGpu, to.slots(0).begin() + (g + 1) * kPerGpu);
        std::vector<int32_t> b(plan.target.slots(0).begin() + g * kPerGpu,
                               plan.target.slots(0).begin() + (g + 1) * kPerGpu);
        std::sort(a.begin(), a.end());
        std::sort(b.begin(), b.end());
        EXPECT_TRUE(relabel || a == b);
        wanted.insert(a), reached.insert(b);
      }
      EXPECT_EQ(wanted, reached) << "reaches_target, seed " << seed;
    }
  }
}

TEST(Migration, keeps_its_invariants) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const ExpertPlacement from = random_placement(rng, 3, 12, 16), to = random_placement(rng, 3, 12, 16);
    MigrationOptions options{.num_gpus = 8, .num_nodes = seed % 2 == 0 ? 1 : 2};
    options.expert_bytes = 1000;
    options.bytes_per_step_max = 1 + static_cast<int64_t>(rng.next_below(3000));
    const MigrationPlan plan = plan_migration(from, to, options).value();
    const Status status = verify_migration(from, plan, options);
    EXPECT_TRUE(status.ok()) << "always_live, reaches_target: " << status.message();
    EXPECT_LE(plan.spare_slots, 2);
    int64_t bytes = 0;
    for (const MigrationStep& step : plan.steps) {
      EXPECT_FALSE(step.copies.empty());
      std::map<int, int64_t> received, sent;
      for (const ExpertCopy& copy : step.copies) {
        bytes += copy.bytes;
        received[copy.to_slot / 2] += copy.bytes, sent[copy.from_slot / 2] += copy.bytes;
      }
      for (const auto* moved : {&received, &sent}) {
        for (const auto& [gpu, gpu_bytes] : *moved)
          EXPECT_LE(gpu_bytes, options.bytes_per_step_max) << "bytes_bounded, GPU " << gpu;
      }
    }
    EXPECT_EQ(bytes, plan.bytes_total);
    // The checker is awake: a plan that swaps too early, or reads what is gone, is refused.
    MigrationPlan broken = plan;
    broken.steps.pop_back();
    EXPECT_FALSE(verify_migration(from, broken, options).ok());
    broken = plan;
    broken.steps[0].copies[0].from_slot = (broken.steps[0].copies[0].from_slot + 1) % 16;
    const bool still_holds = from.slots(plan.steps[0].copies[0].layer)[broken.steps[0].copies[0].from_slot] ==
                             broken.steps[0].copies[0].expert;
    EXPECT_EQ(verify_migration(from, broken, options).ok(), still_holds);
  }
}

TEST(Migration, nothing_to_do_is_no_step) {
  Rng rng(1);
  const ExpertPlacement placement = random_placement(rng, 2, 12, 16);
  const MigrationPlan plan = plan_migration(placement, placement, {.num_gpus = 8}).value();
  EXPECT_TRUE(plan.steps.empty());
  EXPECT_EQ(plan.target, placement);
  EXPECT_FALSE(plan_migration(placement, random_placement(rng, 2, 12, 20), {.num_gpus = 4}).ok());
  EXPECT_FALSE(plan_migration(placement, placement, {.num_gpus = 5}).ok());
}

// Case B3 as a plan: yesterday's placement gives way to today's under load. A step takes 50 ms, a link 40
// GB/s, and the plan may use a tenth of it: even if nothing of a copy were hidden, no step is longer than 1.1
// times the rest. Copying everything at once would stall for seconds.
TEST(Migration, B3_no_step_stalls) {
  Rng rng(3);
  constexpr int kLayers = 4, kGpus = 144;
  auto weights = lognormal_weights(rng, kLayers * 256, 0.6, 10000);
  const RebalanceShape shape{288, 8, 18, kGpus};
  const ExpertPlacement from = rebalance_experts({kLayers, 256, weights}, shape).value();
  for (float& w : weights) w *= static_cast<float>(std::exp(0.15 * test_normal(rng)));
  const ExpertWeights today{kLayers, 256, weights};
  const ExpertPlacement to = rebalance_experts(today, shape).value();
  constexpr double kStep_s = 0.050, kLinkBytes_s = 40e9;
  MigrationOptions options{.num_gpus = kGpus};
  options.bytes_per_step_max = static_cast<int64_t>(0.1 * kStep_s * kLinkBytes_s);
  const std::vector<int32_t> order = order_by_gain(today, from, to, kGpus);
  const MigrationPlan plan = plan_migration(from, to, options, order).value();
  ASSERT_TRUE(verify_migration(from, plan, options).ok());
  EXPECT_GT(plan.num_moves, 100);
  double longest_s = 0;
  for (const MigrationStep& step : plan.steps) {
    std::map<int, int64_t> received, sent;  // a link carries both ways at once
    for (const ExpertCopy& copy : step.copies) {
      received[copy.to_slot / 2] += copy.bytes;
      sent[copy.from_slot / 2] += copy.bytes;
    }
    for (const auto* moved : {&received, &sent}) {
      for (const auto& [gpu, bytes] : *moved)
        longest_s = std::max(longest_s, kStep_s + static_cast<double>(bytes) / kLinkBytes_s);
    }
  }
  EXPECT_GT(longest_s, kStep_s);
  EXPECT_LE(longest_s, 1.1 * kStep_s * (1 + 1e-9));
  // And all of it is over within seconds, far below the ten minutes between rebalances.
  EXPECT_LT(static_cast<double>(plan.steps.size()) * kStep_s * 58 / kLayers, 120);
  EXPECT_EQ(plan.steps.front().copies.front().layer, order.front());
  // Refining from where it stands moves fewer experts than starting afresh.
  const ExpertPlacement refined = refine_experts(today, shape, from, {.repack_trials = 0}).value();
  EXPECT_LT(plan_migration(from, refined, options).value().num_moves, plan.num_moves / 2);
}

}  // namespace
}  // namespace fathom
