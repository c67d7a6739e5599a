// Which of an engine's ranks takes one more request: balance/'s policies, on exact loads, since an engine
// sees all of its ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "balance/load_ledger.h"
#include "balance/prefill_cut.h"

namespace fathom {

inline constexpr int32_t kNoRank = -1;

// The ranks' loads and the request's own. Prefill: tokens = tokens to compute, cost = PrefillCost of them.
// Decode: tokens = KV tokens held, cost = tokens that may still be generated. kNoRank: none may take it.
using ChooseRank = std::function<int32_t(std::span<const RankLoad> ranks, const RankLoad& request)>;

// Least predicted time until the prompt is done. `cost`: the one that the loads are counted with.
ChooseRank make_prefill_choice(int32_t num_ranks, const PrefillCost& cost);

struct DecodeChoiceOptions {
  int32_t num_ranks = 1;
  int32_t max_requests = 1;  // on one rank
  int64_t request_kv_tokens = 0;
};
// Equal KV tokens and equal counts on predicted growth, among ranks with fewer than `max_requests`.
ChooseRank make_decode_choice(const DecodeChoiceOptions& options);

}  // namespace fathom
