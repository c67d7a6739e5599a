// Replica choice against the optimum by bisection and maximum flow.
#include "balance/replica_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "balance/gate_testing.h"
#include "balance/testing.h"

namespace fathom {
namespace {

// Maximum flow (Dinic) on the sparse graph source - experts - ranks - sink.
class FlowGraph {
 public:
  explicit FlowGraph(int num_nodes) : first_(num_nodes, -1) {}

  void add(int from, int to, int64_t capacity) {
    edges_.push_back({to, first_[from], capacity});
    first_[from] = static_cast<int>(edges_.size()) - 1;
    edges_.push_back({from, first_[to], 0});
    first_[to] = static_cast<int>(edges_.size()) - 1;
  }
  int64_t max_flow(int source, int sink) {
    int64_t total = 0;
    while (rank_levels(source, sink)) {
      next_ = first_;
      while (const int64_t pushed = push(source, sink, INT64_MAX)) total += pushed;
    }
    return total;
  }

 private:
  struct Edge {
    int to, next;
    int64_t left;
  };
  bool rank_levels(int source, int sink) {
    level_.assign(first_.size(), -1);
    level_[source] = 0;
    std::vector<int> queue{source};
    for (size_t head = 0; head < queue.size(); ++head) {
      for (int e = first_[queue[head]]; e >= 0; e = edges_[e].next) {
        if (edges_[e].left == 0 || level_[edges_[e].to] >= 0) continue;
        level_[edges_[e].to] = level_[queue[head]] + 1;
        queue.push_back(edges_[e].to);
      }
    }
    return level_[sink] >= 0;
  }
  int64_t push(int node, int sink, int64_t limit) {
    if (node == sink) return limit;
    for (int& e = next_[node]; e >= 0; e = edges_[e].next) {
      Edge& edge = edges_[e];
      if (edge.left == 0 || level_[edge.to] != level_[node] + 1) continue;
      const int64_t pushed = push(edge.to, sink, std::min(limit, edge.left));
      if (pushed == 0) continue;
      edge.left -= pushed;
      edges_[e ^ 1].left += pushed;
      return pushed;
    }
    return 0;
  }

  std::vector<int> first_, next_, level_;
  std::vector<Edge> edges_;
};

// The smallest z, in units of 1 / `parts` tokens, such that all tokens fit with no rank above z. With one
// part it is the least that whole tokens allow, with many it is the LP's optimum.
int64_t optimal_busiest(std::span<const int32_t> tokens, const PlacementView& view, int64_t parts) {
  const int experts = view.num_experts(), n = experts + view.num_ranks + 2;
  const int64_t total = parts * std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  int64_t low = (total + view.num_ranks - 1) / view.num_ranks, high = total;
  while (low < high) {
    const int64_t z = (low + high) / 2;
    FlowGraph graph(n);
    for (int e = 0; e < experts; ++e) {
      graph.add(0, 1 + e, parts * tokens[e]);
      for (int j = 0; j < view.logcnt[e]; ++j) {
        const int rank = view.log2phy[e * view.max_replicas + j] / view.slots_per_rank;
        graph.add(1 + e, 1 + experts + rank, total);
      }
    }
    for (int r = 0; r < view.num_ranks; ++r) graph.add(1 + experts + r, n - 1, z);
    if (graph.max_flow(0, n - 1) == total)
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
      EXPECT_EQ(share.slot, view.log2phy[e * view.max_replicas + j]) << "only_live_slots";
      EXPECT_GE(share.tokens, 0) << "all_tokens_placed";
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
      EXPECT_EQ(summary.max_load, static_cast<double>(optimal_busiest(tokens, view, 1))) << "optimal";
    }
  }
}

// The published shapes: 256 experts and 32 redundant slots over a prefill unit's 32 ranks and a decode unit's
// 144, batches as the gate routes them after popularity has drifted from what the placement knows.
TEST(ReplicaChoice, is_within_one_percent_of_the_lp_at_the_published_shapes) {
  struct Shape {
    RebalanceShape shape;
    int batch_tokens;
  };
  const Shape shapes[] = {{{288, 8, 4, 32}, 32 * 1024},  // hierarchical: a group's replicas share a node
                          {{288, 1, 1, 32}, 32 * 1024},  // global
                          {{288, 8, 18, 144}, 144 * 176},
                          {{432, 8, 18, 144}, 144 * 176}};  // a third slot: 176 redundant ones
  constexpr int64_t kParts = 100;
  ReplicaChooser chooser;
  ReplicaSplit split;
  double worst = 1;
  int num_optimal = 0, num_cases = 0;
  for (const auto& [shape, batch_tokens] : shapes) {
    for (const double sigma : {0.0, 0.3, 0.6, 1.0}) {
      SCOPED_TRACE(testing::Message()
                   << shape.num_gpus << " ranks, " << shape.num_replicas << " slots, sigma " << sigma);
      GateModel gate(static_cast<uint64_t>(10 * sigma), sigma);
      const ExpertPlacement placement =
          rebalance_experts({1, GateModel::kExperts, gate.statistics(20'000)}, shape).value();
      const PlacementView view = placement_view(placement, 0, shape.num_gpus);
      gate.drift(0.15);
      const std::vector<int32_t> tokens = gate.batch(batch_tokens);
      const LoadSummary summary = chooser.choose(tokens, view, split);
      expect_valid(tokens, view, split);
      const auto loads = rank_tokens(split, view);
      EXPECT_EQ(summary.max_load, static_cast<double>(*std::max_element(loads.begin(), loads.end())));
      const double lp = static_cast<double>(optimal_busiest(tokens, view, kParts)) / kParts;
      EXPECT_GE(summary.max_load, lp - 1.0 / kParts);
      EXPECT_LE(summary.max_load, 1.01 * lp);
      num_optimal += summary.max_load < lp + 1;  // the LP's, rounded up to whole tokens
      ++num_cases;
      worst = std::max(worst, summary.max_load / lp);
    }
  }
  std::printf("busiest rank over the LP's: at most %.5f; %d of %d cases at the optimum of whole tokens\n",
              worst, num_optimal, num_cases);
  EXPECT_GE(10 * num_optimal, 8 * num_cases);
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
    EXPECT_EQ(summary.max_load, static_cast<double>(optimal_busiest(tokens, view, 1))) << "optimal";
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
