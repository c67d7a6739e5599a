// The plain choices of a rank.
#include "engine/rank_load.h"

#include <tuple>

namespace fathom {
namespace {

template <typename Key>
int32_t smallest(std::span<const RankLoad> ranks, int32_t max_requests, Key key) {
  int32_t best = kNoRank;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].num_requests >= max_requests) continue;
    if (best == kNoRank || key(ranks[rank]) < key(ranks[static_cast<size_t>(best)])) {
      best = static_cast<int32_t>(rank);
    }
  }
  return best;
}

}  // namespace

int32_t fewest_pending_tokens(std::span<const RankLoad> ranks, int64_t, int32_t max_requests) {
  return smallest(ranks, max_requests,
                  [](const RankLoad& r) { return std::tuple(r.pending_tokens, r.num_requests); });
}

int32_t fewest_kv_tokens(std::span<const RankLoad> ranks, int64_t, int32_t max_requests) {
  return smallest(ranks, max_requests,
                  [](const RankLoad& r) { return std::tuple(r.kv_tokens, r.num_requests); });
}

}  // namespace fathom
