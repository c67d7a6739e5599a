// What a request costs a rank of a model, for the choice of ranks: the work of a token's matrices against
// that of the tokens it attends to. Only their ratio decides, so it comes from the model's shape: the
// balancers' defaults are V3 on an H800, and in a small model attention weighs an order of magnitude more
// beside the matrices. All else in the balancers' options is relative to the ranks' own means.
#pragma once

#include <cstdint>

#include "balance/prefill_cut.h"
#include "model/config.h"

namespace fathom {

struct RankCosts {
  PrefillCost prefill;
  // DecodeBalancerOptions' field of this name: the KV tokens whose attention takes as long as what a token
  // passes on its own rank, the matrices of attention and of the shared experts.
  int64_t request_kv_tokens = 0;
};

// Prefill per layer, in nanoseconds at one FLOP per picosecond. `absorbed_prefill`: attention in latent space
// (deterministic mode), else per head; decode is absorbed always. A product in 8 bits counts as one in F32:
// where matrices run faster than attention, long prompts are dearer still than this says.
RankCosts rank_costs_of(const ModelConfig& config, bool absorbed_prefill);

}  // namespace fathom
