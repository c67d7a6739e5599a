// Replica choice against the optimum by bisection and maximum flow.
#include "balance/replica_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "balance/testing.h"

namespace fathom {
namespace {

// Maximum flow by depth-first augmentation on an adjacency matrix of capacities; nodes: source, experts,
// ranks, sink.
int64_t max_flow(std::vector<std::vector<int64_t>>& capacity, int source, int sink) {
  const int n = static_cast<int>(capacity.size());
  int64_t total = 0;
  std::vector<char> seen(n);
  std::function<int64_t(int, int64_t)> push = [&](int u, int64_t limit) -> int64_t {
    if (u == sink) return limit;
    seen[u] = 1;
    for (int v = 0; v < n; ++v) {
      if (seen[v] || capacity[u][v] == 0) continue;
      const int64_t pushed = push(v, std::min(limit, capacity[u][v]));
      if (pushed > 0) {
        capacity[u][v] -= pushed, capacity[v][u] += pushed;
        return pushed;
      }
    }
    return 0;
  };
  for (;;) {
    std::fill(seen.begin(), seen.end(), 0);
    const int64_t pushed = push(source, INT64_MAX);
    if (pushed == 0) return total;
    total += pushed;
  }
}

// The smallest whole z such that all tokens fit with no rank above z: the LP optimum rounded up.
int64_t optimal_busiest(std::span<const int32_t> tokens, const PlacementView& view) {
  const int experts = view.num_experts(), n = experts + view.num_ranks + 2;
  const int64_t total = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  int64_t low = (total + view.num_ranks - 1) / view.num_ranks, high = total;
  while (low < high) {
    const int64_t z = (low + high) / 2;
    std::vector<std::vector<int64_t>> capacity(n, std::vector<int64_t>(n, 0));
    for (int e = 0; e < experts; ++e) {
      capacity[0][1 + e] = tokens[e];
      for (int j = 0; j < view.logcnt[e]; ++j) {
        capacity[1 + e][1 + experts + view.log2phy[e * view.max_replicas + j] / view.slots_per_rank] = total;
      }
    }
    for (int r = 0; r < view.num_ranks; ++r) capacity[1 + experts + r][n - 1] = z;
    if (max_flow(capacity, 0, n - 1) == total)
      high = z;
    else
      low = z + 1;
  }
  return low;
}

void expect_valid(std::span<const int32_t> tokens, const PlacementView& view, const ReplicaSplit& split) {
  for (int e = 0; e < view.num_experts(); ++e) {
    int64_t placed = 0;
    for (size_t j = 0; j < split.of(e, view).size(); ++j) {
      const SlotShare share = split.of(e, view)[j];
      EXPECT_EQ(share.slot, view.log2phy[e * view.max_replicas + j]);  // only_live_slots
      EXPECT_GE(share.tokens, 0);
      placed += share.tokens;
    }
    EXPECT_EQ(placed, tokens[e]) << "all_tokens_placed, expert " << e;
  }
}

struct Regime {
  int experts, slots, ranks;
  double sigma, tokens_mean;
};

TEST(ReplicaChoice, reaches_the_lp_optimum) {
  const Regime regimes[] = {{8, 12, 4, 1.0, 3},    {16, 24, 8, 0.6, 40},  {16, 32, 4, 1.5, 7},
                            {64, 72, 8, 0.6, 300}, {64, 96, 16, 1.0, 25}, {64, 128, 32, 0.8, 60}};
  ReplicaChooser chooser;
  ReplicaSplit split;
  for (const Regime& regime : regimes) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      SCOPED_TRACE(testing::Message() << regime.experts << " experts, seed " << seed);
      Rng rng(seed);
      // The placement knows yesterday's loads, the batch is today's: the split has work to do.
      const auto weights = lognormal_weights(rng, regime.experts, regime.sigma, 1000);
      const ExpertPlacement placement =
          rebalance_experts({1, regime.experts, weights}, {regime.slots, 1, 1, regime.ranks}).value();
      std::vector<int32_t> tokens(regime.experts);
      for (int e = 0; e < regime.experts; ++e) {
        tokens[e] =
            static_cast<int32_t>(weights[e] / 1000 * regime.tokens_mean * std::exp(0.4 * test_normal(rng)));
      }
      const PlacementView view = placement_view(placement, 0, regime.ranks);
      const LoadSummary summary = chooser.choose(tokens, view, split);
      expect_valid(tokens, view, split);
      const auto loads = rank_tokens(split, view);
      EXPECT_EQ(summary.max_load, static_cast<double>(*std::max_element(loads.begin(), loads.end())));
      EXPECT_EQ(summary.max_load, static_cast<double>(optimal_busiest(tokens, view)));
    }
  }
}

// Replica graphs no balancer would make: long chains, in which load must travel through every rank.
TEST(ReplicaChoice, reaches_the_optimum_on_chains_and_random_graphs) {
  ReplicaChooser chooser;
  ReplicaSplit split;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const int ranks = 3 + rng.next_below(8);
    std::vector<int32_t> slots(2 * ranks);
    for (int r = 0; r < ranks; ++r) {  // expert r lives on ranks r and r+1 (or two random ones)
      slots[2 * r] = r;
      slots[2 * r + 1] = static_cast<int32_t>(seed % 2 == 0 ? (r + 1) % ranks : rng.next_below(ranks));
    }
    const ExpertPlacement placement = placement_from_slots(1, ranks, slots).value();
    std::vector<int32_t> tokens(ranks, 0);
    for (int e = 0; e < ranks; ++e)
      tokens[e] = static_cast<int32_t>(rng.next_below(seed % 3 == 0 ? 1000 : 4));
    const PlacementView view = placement_view(placement, 0, ranks);
    const LoadSummary summary = chooser.choose(tokens, view, split);
    expect_valid(tokens, view, split);
    EXPECT_EQ(summary.max_load, static_cast<double>(optimal_busiest(tokens, view)));
  }
}

// Busiest rank over mean at the published shapes, means of several layers: experts left in order, placed by
// yesterday's loads, the same with the batch split at the optimum, and placed by today's.
struct Ordering {
  double in_order = 0, stale = 0, stale_split = 0, fresh = 0;
};

Ordering order_at(const RebalanceShape& shape, double sigma, double tokens_mean) {
  constexpr int kExperts = 256, kLayers = 8;
  Ordering sums;
  ReplicaChooser chooser;
  ReplicaSplit split;
  for (uint64_t seed = 0; seed < kLayers; ++seed) {
    Rng rng(seed);
    const auto yesterday = lognormal_weights(rng, kExperts, sigma, 10000);
    std::vector<float> today = yesterday;
    for (float& w : today) w *= static_cast<float>(std::exp(0.15 * test_normal(rng)));
    std::vector<int32_t> tokens, in_order(static_cast<size_t>(shape.num_replicas));
    for (const float w : today) tokens.push_back(static_cast<int32_t>(w / 10000 * tokens_mean));
    for (size_t s = 0; s < in_order.size(); ++s) in_order[s] = static_cast<int32_t>(s % kExperts);
    const auto busiest = [&](const ExpertPlacement& placement, bool at_optimum) {
      const PlacementView view = placement_view(placement, 0, shape.num_gpus);
      if (at_optimum) return chooser.choose(tokens, view, split).max_over_mean();
      split_evenly(tokens, view, 0, split);
      const auto loads = rank_tokens(split, view);
      const auto sum = static_cast<double>(std::accumulate(loads.begin(), loads.end(), int64_t{0}));
      return static_cast<double>(*std::max_element(loads.begin(), loads.end())) * shape.num_gpus / sum;
    };
    const ExpertPlacement stale = rebalance_experts({1, kExperts, yesterday}, shape).value();
    sums.in_order += busiest(placement_from_slots(1, kExperts, in_order).value(), false) / kLayers;
    sums.stale += busiest(stale, false) / kLayers;
    sums.stale_split += busiest(stale, true) / kLayers;
    sums.fresh += busiest(rebalance_experts({1, kExperts, today}, shape).value(), false) / kLayers;
  }
  return sums;
}

TEST(ReplicaChoice, placements_order_as_measured) {
  const Ordering decode = order_at({288, 1, 1, 144}, 0.6, 88 * 8 * 144 / 256.0);
  const Ordering prefill = order_at({288, 1, 1, 32}, 0.6, 1024 * 8 * 32 / 256.0);
  for (const Ordering& o : {decode, prefill}) {
    std::printf("max/mean: in order %.2f, stale %.2f, stale with the split %.2f, fresh %.2f\n", o.in_order,
                o.stale, o.stale_split, o.fresh);
    EXPECT_GT(o.in_order, 1.4 * o.stale);
    EXPECT_GT(o.stale, o.fresh);
    EXPECT_LE(o.stale_split, o.stale);
  }
  // The split pays where a rank has nine slots; with two it finds almost nothing.
  EXPECT_LT(prefill.stale_split - 1, 0.7 * (prefill.stale - 1));
  EXPECT_GT(decode.stale_split, decode.stale * 0.95);
}

TEST(ReplicaChoice, source_ranks_cut_the_shares_without_overlap) {
  const std::vector<SlotShare> shares{{4, 3}, {9, 0}, {2, 5}};
  const std::vector<int32_t> per_source{2, 0, 4, 2};
  std::vector<SlotShare> out(3);
  std::vector<std::vector<SlotShare>> taken;
  int64_t first = 0;
  for (int32_t tokens : per_source) {
    taken.emplace_back(out.begin(), out.begin() + take_range(shares, first, tokens, out));
    first += tokens;
  }
  EXPECT_EQ(taken, (std::vector<std::vector<SlotShare>>{{{4, 2}}, {}, {{4, 1}, {2, 3}}, {{2, 2}}}));
}

TEST(ReplicaChoice, the_even_split_rotates_its_remainder) {
  const ExpertPlacement placement = placement_from_slots(1, 2, {0, 0, 0, 1}).value();
  const PlacementView view = placement_view(placement, 0, 4);
  const std::vector<int32_t> tokens{7, 5};
  ReplicaSplit split;
  for (uint32_t salt = 0; salt < 3; ++salt) {
    split_evenly(tokens, view, salt, split);
    expect_valid(tokens, view, split);
    for (uint32_t j = 0; j < 3; ++j) EXPECT_EQ(split.of(0, view)[j].tokens, j == salt ? 3 : 2);
  }
}

}  // namespace
}  // namespace fathom
