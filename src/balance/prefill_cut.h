// What prefilling costs, and how a rank's forward is shared among its prompts. Whole prompts cannot be
// balanced inside one forward (lengths are heavy-tailed), and the chunks of one prompt need each other's KV,
// so every rank gets the same budget of cost and tokens, fills it, cuts what does not fit, and goes on with
// it in its next forward. The oldest prompt gets half, the others the rest by the work they have left, the
// least first, and the oldest what then remains: long prompts go on and short ones do not wait behind them.
// The servers' step plan (engine/plan) and the simulated day (sim/prefill_unit) call this one function.
//
// Invariants, by name:
// * oldest_gets_half: the oldest prompt gets what it needs of half the budget, at least one aligned chunk
// * least_next: of the others none is done before one that has less work left, but for want of tokens
// * within_budget: cost and tokens stay within the budget, but the oldest's first aligned chunk
// * always_advances: prompts that wait yield at least one token
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "balance/load_ledger.h"

namespace fathom {

// Per layer, linear in new tokens and in attended pairs. The defaults are the fleet model's H800 figures; the
// profile overrides them.
struct PrefillCost {
  double ns_per_token = 1745.1;
  double ns_per_pair = 0.17011;
  // Reading a stored token's KV, per layer, as far as it is not hidden: 70,272 B / 61 layers at 3 GB/s.
  double load_ns_per_token = 384;

  // Core-attention work: sum over new tokens of the tokens each attends to.
  static double pairs(int64_t new_tokens, int64_t cached_tokens) {
    const double n = static_cast<double>(new_tokens);
    return n * (static_cast<double>(cached_tokens) + n / 2);
  }
  int64_t cost_ns(int64_t new_tokens, int64_t cached_tokens) const {
    return static_cast<int64_t>(ns_per_token * static_cast<double>(new_tokens) +
                                ns_per_pair * pairs(new_tokens, cached_tokens));
  }
  int64_t load_ns(int64_t stored_tokens) const {
    return static_cast<int64_t>(load_ns_per_token * static_cast<double>(stored_tokens));
  }
  // Attended pairs in a load whose cost came from cost_ns.
  double pairs_of(const RankLoad& load) const {
    return (static_cast<double>(load.cost) - ns_per_token * static_cast<double>(load.tokens)) / ns_per_pair;
  }
  // The most new tokens after `cached_tokens` that cost at most `budget_ns`.
  int64_t tokens_within(int64_t budget_ns, int64_t cached_tokens) const;
};

struct PrefillBudget {
  int64_t cost_ns = 43'700'000;  // per layer: 16,384 tokens at a context of 5,400
  int64_t tokens_max = 32'768;   // the forward's buffers
  int64_t align_tokens = 64;     // a cut falls on a KV block
};

// One prompt that a rank is prefilling.
struct PrefillQueued {
  int64_t done_tokens = 0;  // cached or computed: what the next chunk attends to
  int64_t left_tokens = 0;
};
struct PrefillChunk {
  int32_t prompt = 0;  // place among those passed in
  int64_t tokens = 0;
  bool operator==(const PrefillChunk&) const = default;
};

// The next forward of one rank over its prompts, oldest first. `chunks`, cleared first, has one for each that
// gets any, in their order. Returns the forward's load.
RankLoad cut_forward(std::span<const PrefillQueued> prompts, const PrefillCost& cost,
                     const PrefillBudget& budget, std::vector<PrefillChunk>& chunks);

}  // namespace fathom
