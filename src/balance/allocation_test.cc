// A placement decision allocates nothing, whatever the policy: operator new is counted while decisions and
// reports run over the published peak's ranks.
#include <gtest/gtest.h>

#include "balance/allocation_count_testing.h"
#include "balance/decode_balancer.h"
#include "balance/prefill_balancer.h"
#include "base/rng.h"

namespace fathom {
namespace {

constexpr int kUnits = 9, kRanks = 144;  // 1,296 ranks
constexpr int kWarmUp = 20'000, kDecisions = 100'000;
constexpr int kDecisionsPerReport = 24;

std::vector<std::vector<RankLoad>> some_loads(Rng& rng) {
  std::vector<std::vector<RankLoad>> loads(kUnits, std::vector<RankLoad>(kRanks));
  for (auto& unit : loads) {
    for (RankLoad& load : unit)
      load = {80 + static_cast<int64_t>(rng.next_below(16)),
              380'000 + static_cast<int64_t>(rng.next_below(90'000)), 90'000};
  }
  return loads;
}

TEST(Allocation, the_counter_counts) {
  const int64_t before = num_allocations;
  const std::vector<int> some(100);
  EXPECT_EQ(num_allocations - before, 1);
  EXPECT_EQ(some.size(), 100u);
}

TEST(Allocation, decode_decisions_and_reports_allocate_nothing) {
  for (const char* policy : {"random", "round-robin", "least-requests", "p2c-kv", "kv-capped", "fathom"}) {
    DecodeBalancerOptions options;
    options.policy = parse_decode_policy(policy).value();
    options.admission.capacity_tokens = 669'000;
    DecodeBalancer balancer(options);
    for (int u = 0; u < kUnits; ++u) balancer.add_unit(kRanks);
    Rng rng(3);
    const auto loads = some_loads(rng);
    uint64_t last[kUnits] = {}, sequence = 0;
    int64_t before = 0;
    for (int i = 0; i < kWarmUp + kDecisions; ++i) {
      if (i == kWarmUp) before = num_allocations;
      const auto placed = balancer.place({static_cast<int64_t>(500 + rng.next_below(6000)), 1000});
      if (placed) last[placed->rank.unit] = placed->dispatch;
      if (i % kDecisionsPerReport != 0) continue;
      const int unit = i / kDecisionsPerReport % kUnits;
      balancer.report({unit, 1, ++sequence, last[unit], 0, loads[static_cast<size_t>(unit)]});
    }
    EXPECT_EQ(num_allocations - before, 0) << policy;
  }
}

TEST(Allocation, prefill_decisions_and_reports_allocate_nothing) {
  for (const char* policy : {"random", "round-robin", "least-requests", "least-tokens", "fathom"}) {
    PrefillBalancerOptions options;
    options.policy = parse_prefill_policy(policy).value();
    options.cost = {1750, 0.17, 0};
    PrefillBalancer balancer(options);
    for (int u = 0; u < kUnits; ++u) balancer.add_unit(kRanks);
    Rng rng(4);
    const auto loads = some_loads(rng);
    uint64_t last[kUnits] = {}, sequence = 0;
    int64_t before = 0;
    for (int i = 0; i < kWarmUp + kDecisions; ++i) {
      if (i == kWarmUp) before = num_allocations;
      const auto placed = balancer.place({static_cast<int64_t>(500 + rng.next_below(6000)), 0, {}});
      last[placed->choice.rank.unit] = placed->dispatch;
      if (i % kDecisionsPerReport != 0) continue;
      const int unit = i / kDecisionsPerReport % kUnits;
      balancer.report({unit, 1, ++sequence, last[unit], 0, loads[static_cast<size_t>(unit)]});
    }
    EXPECT_EQ(num_allocations - before, 0) << policy;
  }
}

}  // namespace
}  // namespace fathom
