// The largest chunk within a cost is the root of a quadratic.
#include "balance/prefill_cut.h"

#include <cmath>

namespace fathom {

int64_t PrefillCost::tokens_within(int64_t budget_ns, int64_t cached_tokens) const {
  if (budget_ns <= 0) return 0;
  // b/2 n^2 + (a + b c) n = budget.
  const double linear = ns_per_token + ns_per_pair * static_cast<double>(cached_tokens);
  const double budget = static_cast<double>(budget_ns);
  const double root = std::sqrt(linear * linear + 2 * ns_per_pair * budget);
  int64_t n = static_cast<int64_t>(2 * budget / (linear + root));
  while (n > 0 && cost_ns(n, cached_tokens) > budget_ns) --n;
  while (cost_ns(n + 1, cached_tokens) <= budget_ns) ++n;
  return n;
}

RankLoad cut_forward(std::span<const PrefillQueued> queue, const PrefillCost& cost,
                     const PrefillBudget& budget, std::vector<PrefillChunk>& chunks) {
  CHECK(budget.cost_ns > 0 && budget.align_tokens > 0 && budget.tokens_max >= budget.align_tokens);
  chunks.clear();
  RankLoad used;
  for (int32_t i = 0; i < static_cast<int32_t>(queue.size()); ++i) {
    const PrefillQueued& next = queue[i];
    const int64_t room = budget.tokens_max - used.tokens;
    int64_t tokens = std::min(room, cost.tokens_within(budget.cost_ns - used.cost, next.done_tokens));
    if (tokens < next.left_tokens) {
      // The cut falls on a block of the sequence, so the chunk's start counts too.
      tokens -= (next.done_tokens + tokens) % budget.align_tokens;
      if (tokens <= 0 && used.requests == 0)
        tokens = budget.align_tokens - next.done_tokens % budget.align_tokens;
    }
    tokens = std::min(tokens, next.left_tokens);
    if (tokens <= 0) break;
    chunks.push_back({i, tokens});
    used += {1, tokens, cost.cost_ns(tokens, next.done_tokens)};
    if (tokens < next.left_tokens) break;
  }
  return used;
}

}  // namespace fathom
