// Affinity proposes one rank, the balancer disposes.
#include "balance/prefill_router.h"

#include <algorithm>
#include <numeric>

namespace fathom {

PrefillRouter::PrefillRouter(const PrefillRouterOptions& options, std::span<const int> units)
    : options_(options),
      balancer_(options.balancer),
      index_({.num_ranks = std::accumulate(units.begin(), units.end(), 0),
              .entries_max = options.index_entries_max}) {
  for (int num_ranks : units) {
    const int unit = balancer_.add_unit(num_ranks);
    first_rank_.push_back(static_cast<int>(rank_of_.size()));
    for (int r = 0; r < num_ranks; ++r) rank_of_.push_back({unit, r});
  }
}

// The best holder, for prompts of which somebody holds a part. Levels go from the deepest block anyone holds
// upwards, in eighths: a rank that holds less is worth a look only if its queue makes up for it, which the
// least wait of all bounds.
PrefixMatch PrefillRouter::best_match(int64_t prompt_tokens, std::span<const uint64_t> blocks,
                                      int64_t stored_tokens) const {
  PrefixMatch best;
  // Anywhere, without a match: what affinity has to beat.
  const PrefillChoice unmatched = balancer_.choice_at({0, 0}, prompt_tokens, stored_tokens, 0);
  int64_t best_finish = balancer_.wait_ns_min() + balancer_.own_ns(unmatched) + 1;
  const int depth = index_.depth(blocks);
  int level_above = depth + 1;
  for (int eighth = 8; eighth >= 1 && depth > 0; --eighth) {
    const int level = std::max(1, depth * eighth / 8);
    if (level == level_above) continue;
    level_above = level;
    const int64_t tokens = level * options_.block_tokens;
    const PrefillChoice anywhere = balancer_.choice_at({0, 0}, prompt_tokens, stored_tokens, tokens);
    if (balancer_.wait_ns_min() + anywhere.load.cost >= best_finish) break;
    index_.for_each_holder(blocks[level - 1], [&](int global) {
      const RankRef rank = rank_of_[global];
      if (balancer_.unit_wait_ns(rank.unit) + anywhere.load.cost >= best_finish) return;  // or closed
      const int64_t finish =
          balancer_.finish_ns(balancer_.choice_at(rank, prompt_tokens, stored_tokens, tokens));
      if (finish < best_finish) best = {rank, tokens}, best_finish = finish;
    });
  }
  return best;
}

std::optional<PrefillPlacement> PrefillRouter::route(int64_t prompt_tokens, std::span<const uint64_t> blocks,
                                                     int stored_blocks) {
  const int64_t stored_tokens = stored_blocks * options_.block_tokens;
  PrefixMatch match;
  if (options_.balancer.policy == PrefillPolicy::kFathom)
    match = best_match(prompt_tokens, blocks, stored_tokens);
  const std::span<const PrefixMatch> matches(&match, match.rank.unit >= 0 ? 1 : 0);
  const std::optional<PrefillChoice> picked = balancer_.pick({prompt_tokens, stored_tokens, matches});
  if (!picked) return std::nullopt;
  // Whoever was picked, and why: what lies in its memory is used, to the block.
  const int rank = global_rank(picked->rank);
  const int held = index_.depth_of(
      rank, blocks, static_cast<int>(picked->rank == match.rank ? match.tokens / options_.block_tokens : 0));
  const PrefillChoice choice =
      balancer_.choice_at(picked->rank, prompt_tokens, stored_tokens, held * options_.block_tokens);
  index_.insert(rank, blocks.subspan(held));
  return PrefillPlacement{choice, balancer_.charge(choice)};
}

}  // namespace fathom
