// What an engine's ranks carry, and the choice of a rank for one more request as a pluggable pure function.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace fathom {

struct RankLoad {
  int32_t num_requests = 0;
  int64_t pending_tokens = 0;  // prefill: tokens still to compute
  int64_t kv_tokens = 0;       // tokens stored or about to be
};

inline constexpr int32_t kNoRank = -1;

// The request: `num_tokens` to compute (prefill) or stored (decode). Returns a rank, or kNoRank when none has
// fewer than `max_requests`.
using ChooseRank =
    std::function<int32_t(std::span<const RankLoad> ranks, int64_t num_tokens, int32_t max_requests)>;

// Prefill: the rank with the fewest tokens to compute, then the fewest requests, then the lowest number.
int32_t fewest_pending_tokens(std::span<const RankLoad> ranks, int64_t num_tokens, int32_t max_requests);
// Decode: the rank with the fewest KV tokens among those with a slot, then the fewest requests.
int32_t fewest_kv_tokens(std::span<const RankLoad> ranks, int64_t num_tokens, int32_t max_requests);

}  // namespace fathom
