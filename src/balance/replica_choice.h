// Which replica takes each (token, expert) of one batch: a split of every expert's tokens over its slots that
// minimises the tokens the busiest rank receives. Deterministic: equal counts and placement give equal splits
// on every rank.
//
// Invariants, by name:
//   all_tokens_placed   the shares of an expert sum to its tokens, none is negative
//   only_live_slots     tokens go to slots the placement lists for that expert
//   optimal             the busiest rank has the integral optimum (max flow), unless kAugmentationsPerRank
//   ran out
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "balance/eplb.h"

namespace fathom {

// One layer's placement as spans, whoever owns it. Slot p lives on rank p / slots_per_rank.
struct PlacementView {
  std::span<const int32_t> log2phy;  // [num_experts, max_replicas], by replica
  std::span<const int32_t> logcnt;   // [num_experts]
  int max_replicas = 0;
  int slots_per_rank = 0;
  int num_ranks = 0;

  int num_experts() const { return static_cast<int>(logcnt.size()); }
};
PlacementView placement_view(const ExpertPlacement& placement, int layer, int num_ranks);

struct SlotShare {
  int32_t slot = 0;
  int32_t tokens = 0;
  bool operator==(const SlotShare&) const = default;
};

// Per expert the shares of its replicas in log2phy order (zero shares included): the first `tokens` tokens of
// the batch that chose the expert go to the first slot, the next to the second, and so on.
struct ReplicaSplit {
  int max_replicas = 0;
  std::vector<SlotShare> shares;  // [num_experts, max_replicas]; rows end at logcnt

  std::span<const SlotShare> of(int expert, const PlacementView& placement) const {
    return std::span(shares).subspan(static_cast<size_t>(expert) * max_replicas, placement.logcnt[expert]);
  }
};

// Search steps allowed per rank after the first filling; reached only by adversarial replica graphs.
inline constexpr int kAugmentationsPerRank = 16;

// Keeps its buffers, so that a call at a shape seen before allocates nothing. One per thread.
class ReplicaChooser {
 public:
  // tokens_per_expert: [num_experts], >= 0, over all source ranks. Returns the ranks' received tokens, max
  // and mean.
  LoadSummary choose(std::span<const int32_t> tokens_per_expert, const PlacementView& placement,
                     ReplicaSplit& split);

 private:
  struct Edge {
    int32_t expert;
    int32_t replica;
  };

  void start(std::span<const int32_t> tokens, const PlacementView& placement, ReplicaSplit& split);
  void fill(int expert, int32_t tokens, const PlacementView& placement, ReplicaSplit& split);
  void build_edges(const PlacementView& placement);
  bool augment(int from, const PlacementView& placement, ReplicaSplit& split);

  std::vector<int64_t> load_;        // [num_ranks]
  std::vector<int32_t> copied_;      // experts with several replicas, most tokens first
  std::vector<int32_t> edge_begin_;  // [num_ranks + 1] into edges_
  std::vector<Edge> edges_;          // replicas of copied experts, by rank
  std::vector<int32_t> queue_, came_from_, via_expert_, via_from_, via_to_;
  std::vector<std::pair<int64_t, int32_t>> bins_;
};

// Tokens of each expert evenly over its replicas, the remainder starting at replica salt % logcnt: what the
// placement's own objective assumes, and the choice when global counts are not known.
void split_evenly(std::span<const int32_t> tokens_per_expert, const PlacementView& placement, uint32_t salt,
                  ReplicaSplit& split);

// The part of one expert's shares that one source rank owns: tokens [first, first + tokens) of the expert's
// tokens in source order (first = tokens of lower source ranks). Writes at most shares.size() entries,
// returns how many.
int take_range(std::span<const SlotShare> shares, int64_t first, int32_t tokens, std::span<SlotShare> out);

// Tokens per rank under a split: the objective.
std::vector<int64_t> rank_tokens(const ReplicaSplit& split, const PlacementView& placement);

}  // namespace fathom
