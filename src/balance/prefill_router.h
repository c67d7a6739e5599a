// The live path of a prefill decision: prefix look-up, candidates, choice, charge, and the blocks noted as
// soon to be there.
//
// Invariants, by name:
// * best_holder: the prompt is done no later than at the best of all ranks and their exact matches, but for
//   an eighth of the deepest match (the levels that the search looks at)
// * hits_to_the_block: whoever is chosen, all that the index knows in its memory is counted on, no more
// * noted_at_once: the prompt's blocks count as held by its rank from the decision on
// * misses_by_load: a prompt nobody holds goes by load alone (case C1)
// * same_view_same_hits: routers fed the same events lose no hits to one another (case C11)
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "balance/prefill_balancer.h"
#include "balance/prefix_index.h"

namespace fathom {

struct PrefillRouterOptions {
  PrefillBalancerOptions balancer;
  int64_t block_tokens = 64;
  size_t index_entries_max = size_t{1} << 22;
};

class PrefillRouter {
 public:
  // units: ranks of each unit. Ranks are numbered through the units for the prefix index.
  PrefillRouter(const PrefillRouterOptions& options, std::span<const int> units);

  // blocks: chained hashes of the prompt's whole blocks; stored_blocks: how many of them the external store
  // has.
  std::optional<PrefillPlacement> route(int64_t prompt_tokens, std::span<const uint64_t> blocks,
                                        int stored_blocks);

  PrefillBalancer& balancer() { return balancer_; }
  PrefixIndex& index() { return index_; }
  int global_rank(RankRef rank) const { return first_rank_[rank.unit] + rank.rank; }

 private:
  PrefixMatch best_match(int64_t prompt_tokens, std::span<const uint64_t> blocks,
                         int64_t stored_tokens) const;

  const PrefillRouterOptions options_;
  PrefillBalancer balancer_;
  PrefixIndex index_;
  std::vector<int> first_rank_;
  std::vector<RankRef> rank_of_;
};

}  // namespace fathom
