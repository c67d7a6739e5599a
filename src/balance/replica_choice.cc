// Water-filling expert by expert comes within a few percent; shortest augmenting paths from the busiest rank
// then close the gap to the optimum. When no path leads from a busiest rank to one with two tokens less, the
// cut proves optimality.
#include "balance/replica_choice.h"

#include <algorithm>

namespace fathom {

PlacementView placement_view(const ExpertPlacement& placement, int layer, int num_ranks) {
  CHECK(num_ranks > 0 && placement.num_slots % num_ranks == 0);
  const size_t row = static_cast<size_t>(layer) * placement.num_experts;
  return {.log2phy = std::span(placement.log2phy)
                         .subspan(row * placement.max_replicas,
                                  static_cast<size_t>(placement.num_experts) * placement.max_replicas),
          .logcnt = placement.counts(layer),
          .max_replicas = placement.max_replicas,
          .slots_per_rank = placement.num_slots / num_ranks,
          .num_ranks = num_ranks};
}

// Empty shares for every replica, and the loads of the experts that leave no choice.
void ReplicaChooser::start(std::span<const int32_t> tokens, const PlacementView& placement,
                           ReplicaSplit& split) {
  load_.assign(placement.num_ranks, 0);
  copied_.clear();
  split.max_replicas = placement.max_replicas;
  split.shares.resize(placement.log2phy.size());
  for (int e = 0; e < placement.num_experts(); ++e) {
    const size_t row = static_cast<size_t>(e) * placement.max_replicas;
    for (int j = 0; j < placement.max_replicas; ++j) split.shares[row + j] = {placement.log2phy[row + j], 0};
    if (placement.logcnt[e] > 1) {
      copied_.push_back(e);
    } else {
      split.shares[row].tokens = tokens[e];
      load_[split.shares[row].slot / placement.slots_per_rank] += tokens[e];
    }
  }
  std::sort(copied_.begin(), copied_.end(),
            [&](int32_t a, int32_t b) { return tokens[a] != tokens[b] ? tokens[a] > tokens[b] : a < b; });
}

// Levels the loads of the expert's ranks as far as its tokens reach. Two replicas on one rank are one bin.
void ReplicaChooser::fill(int expert, int32_t tokens, const PlacementView& placement, ReplicaSplit& split) {
  SlotShare* shares = &split.shares[static_cast<size_t>(expert) * placement.max_replicas];
  const int count = placement.logcnt[expert];
  for (int j = 0; j < count; ++j) {
    load_[shares[j].slot / placement.slots_per_rank] -= shares[j].tokens;
    shares[j].tokens = 0;
  }
  bins_.clear();
  for (int j = 0; j < count; ++j) {
    const int rank = shares[j].slot / placement.slots_per_rank;
    bool seen = false;
    for (int i = 0; i < j && !seen; ++i) seen = shares[i].slot / placement.slots_per_rank == rank;
    if (!seen) bins_.emplace_back(load_[rank], j);
  }
  std::sort(bins_.begin(), bins_.end());
  // The k lightest bins, filled to a common level that stays under the next bin.
  int64_t sum = tokens;
  int k = 0;
  while (k < static_cast<int>(bins_.size()) && (k == 0 || bins_[k].first * k < sum)) sum += bins_[k++].first;
  const int64_t level = sum / k, extra = sum % k;
  for (int i = 0; i < k; ++i) {
    SlotShare& share = shares[bins_[i].second];
    share.tokens = static_cast<int32_t>(level + (i < extra) - bins_[i].first);
    load_[share.slot / placement.slots_per_rank] += share.tokens;
  }
}

void ReplicaChooser::build_edges(const PlacementView& placement) {
  edge_begin_.assign(placement.num_ranks + 1, 0);
  const auto for_each = [&](auto&& visit) {
    for (int32_t e : copied_) {
      for (int j = 0; j < placement.logcnt[e]; ++j) {
        visit(
            placement.log2phy[static_cast<size_t>(e) * placement.max_replicas + j] / placement.slots_per_rank,
            e, j);
      }
    }
  };
  for_each([&](int rank, int32_t, int) { ++edge_begin_[rank + 1]; });
  for (int r = 0; r < placement.num_ranks; ++r) edge_begin_[r + 1] += edge_begin_[r];
  edges_.resize(edge_begin_.back());
  queue_.assign(edge_begin_.begin(), edge_begin_.end() - 1);
  for_each([&](int rank, int32_t e, int j) { edges_[queue_[rank]++] = {e, j}; });
}

// Shifts tokens along the shortest path from `from` to a rank with at least two tokens less; false if there
// is none.
bool ReplicaChooser::augment(int from, const PlacementView& placement, ReplicaSplit& split) {
  const int n = placement.num_ranks;
  came_from_.assign(n, -1);
  via_expert_.resize(n), via_from_.resize(n), via_to_.resize(n);
  queue_.clear();
  queue_.push_back(from);
  came_from_[from] = from;
  int target = -1;
  for (size_t head = 0; head < queue_.size() && target < 0; ++head) {
    const int rank = queue_[head];
    for (int i = edge_begin_[rank]; i < edge_begin_[rank + 1] && target < 0; ++i) {
      const auto [expert, replica] = edges_[i];
      const SlotShare* shares = &split.shares[static_cast<size_t>(expert) * placement.max_replicas];
      if (shares[replica].tokens == 0) continue;
      for (int j = 0; j < placement.logcnt[expert]; ++j) {
        const int next = shares[j].slot / placement.slots_per_rank;
        if (came_from_[next] >= 0) continue;
        came_from_[next] = rank, via_expert_[next] = expert, via_from_[next] = replica, via_to_[next] = j;
        queue_.push_back(next);
        if (load_[next] + 2 <= load_[from]) {
          target = next;
          break;
        }
      }
    }
  }
  if (target < 0) return false;
  int64_t amount = (load_[from] - load_[target]) / 2;
  const auto share = [&](int rank, int replica) -> SlotShare& {
    return split.shares[static_cast<size_t>(via_expert_[rank]) * placement.max_replicas + replica];
  };
  for (int r = target; r != from; r = came_from_[r])
    amount = std::min<int64_t>(amount, share(r, via_from_[r]).tokens);
  for (int r = target; r != from; r = came_from_[r]) {
    share(r, via_from_[r]).tokens -= static_cast<int32_t>(amount);
    share(r, via_to_[r]).tokens += static_cast<int32_t>(amount);
  }
  load_[from] -= amount;
  load_[target] += amount;
  return true;
}

LoadSummary ReplicaChooser::choose(std::span<const int32_t> tokens, const PlacementView& placement,
                                   ReplicaSplit& split) {
  CHECK(tokens.size() == placement.logcnt.size());
  start(tokens, placement, split);
  // The first pass fills hot experts before it knows the rest; the second corrects that.
  for (int pass = 0; pass < 2; ++pass) {
    for (int32_t e : copied_) fill(e, tokens[e], placement, split);
  }
  int64_t total = 0;
  for (int64_t load : load_) total += load;
  const int64_t bound = (total + placement.num_ranks - 1) / placement.num_ranks;
  build_edges(placement);
  int64_t busiest = 0;
  for (int step = 0; step <= kAugmentationsPerRank * placement.num_ranks; ++step) {
    const auto max = std::max_element(load_.begin(), load_.end());
    busiest = *max;
    if (busiest <= bound || !augment(static_cast<int>(max - load_.begin()), placement, split)) break;
  }
  return {static_cast<double>(*std::max_element(load_.begin(), load_.end())),
          static_cast<double>(total) / placement.num_ranks};
}

void split_evenly(std::span<const int32_t> tokens, const PlacementView& placement, uint32_t salt,
                  ReplicaSplit& split) {
  CHECK(tokens.size() == placement.logcnt.size());
  split.max_replicas = placement.max_replicas;
  split.shares.resize(placement.log2phy.size());
  for (int e = 0; e < placement.num_experts(); ++e) {
    const size_t row = static_cast<size_t>(e) * placement.max_replicas;
    const int count = placement.logcnt[e];
    for (int j = 0; j < placement.max_replicas; ++j) {
      const int turn = j < count ? static_cast<int>((j + count - salt % count) % count) : count;
      const int32_t share = j < count ? tokens[e] / count + (turn < tokens[e] % count) : 0;
      split.shares[row + j] = {placement.log2phy[row + j], share};
    }
  }
}

int take_range(std::span<const SlotShare> shares, int64_t first, int32_t tokens, std::span<SlotShare> out) {
  int n = 0;
  int64_t begin = 0;
  for (const SlotShare& share : shares) {
    const int64_t end = begin + share.tokens;
    const int64_t mine = std::min(end, first + tokens) - std::max(begin, first);
    if (mine > 0) out[n++] = {share.slot, static_cast<int32_t>(mine)};
    begin = end;
  }
  return n;
}

std::vector<int64_t> rank_tokens(const ReplicaSplit& split, const PlacementView& placement) {
  std::vector<int64_t> loads(placement.num_ranks, 0);
  for (int e = 0; e < placement.num_experts(); ++e) {
    for (const SlotShare& share : split.of(e, placement))
      loads[share.slot / placement.slots_per_rank] += share.tokens;
  }
  return loads;
}

}  // namespace fathom
