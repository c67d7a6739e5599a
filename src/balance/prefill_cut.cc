// The largest chunk within a cost is the root of a quadratic; the allotment is a pass over the prompts,
// shortest first.
#include "balance/prefill_cut.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

namespace {

int64_t round_up(int64_t tokens, int64_t to) { return (tokens + to - 1) / to * to; }

// The largest chunk of a prompt within the limits that ends at the prompt's end or on a block of it.
int64_t chunk_within(const PrefillQueued& prompt, const PrefillCost& cost, int64_t cost_ns, int64_t tokens,
                     int64_t align) {
  if (prompt.left_tokens <= tokens && cost.cost_ns(prompt.left_tokens, prompt.done_tokens) <= cost_ns)
    return prompt.left_tokens;
  const int64_t most = std::min(tokens, cost.tokens_within(cost_ns, prompt.done_tokens));
  return std::max<int64_t>(0, (prompt.done_tokens + most) / align * align - prompt.done_tokens);
}

// Every prompt to its end: what most forwards of a fleet below its capacity are.
RankLoad all_of(std::span<const PrefillQueued> prompts, const PrefillCost& cost,
                std::vector<PrefillChunk>& chunks) {
  RankLoad used;
  for (int32_t i = 0; i < static_cast<int32_t>(prompts.size()); ++i) {
    const auto& [done, left] = prompts[i];
    chunks.push_back({i, left});
    used += {1, left, cost.cost_ns(left, done)};
  }
  return used;
}

}  // namespace

RankLoad cut_forward(std::span<const PrefillQueued> prompts, const PrefillCost& cost,
                     const PrefillBudget& budget, std::vector<PrefillChunk>& chunks) {
  const int64_t align = budget.align_tokens;
  CHECK(budget.cost_ns > 0 && align > 0 && budget.tokens_max >= align);
  chunks.clear();
  if (prompts.empty()) return {};
  RankLoad used = all_of(prompts, cost, chunks);
  if (used.cost <= budget.cost_ns && used.tokens <= budget.tokens_max) return used;
  chunks.clear();
  const PrefillQueued& oldest = prompts[0];
  const int64_t first_block = std::min(oldest.left_tokens, align - oldest.done_tokens % align);
  const int64_t half =
      chunk_within(oldest, cost, budget.cost_ns / 2, round_up(budget.tokens_max / 2, align), align);
  chunks.push_back({0, std::max(first_block, half)});
  int64_t cost_left = budget.cost_ns - cost.cost_ns(chunks[0].tokens, oldest.done_tokens);
  int64_t tokens_left = budget.tokens_max - chunks[0].tokens;
  // First each one's work in place of its tokens, to sort by.
  for (int32_t i = 1; i < static_cast<int32_t>(prompts.size()); ++i)
    chunks.push_back({i, cost.cost_ns(prompts[i].left_tokens, prompts[i].done_tokens)});
  std::sort(chunks.begin() + 1, chunks.end(), [](const PrefillChunk& a, const PrefillChunk& b) {
    return std::pair(a.tokens, a.prompt) < std::pair(b.tokens, b.prompt);
  });
  for (PrefillChunk& chunk : std::span(chunks).subspan(1)) {
    const PrefillQueued& prompt = prompts[chunk.prompt];
    chunk.tokens = chunk_within(prompt, cost, cost_left, tokens_left, align);
    cost_left -= cost.cost_ns(chunk.tokens, prompt.done_tokens), tokens_left -= chunk.tokens;
  }
  cost_left += cost.cost_ns(chunks[0].tokens, oldest.done_tokens), tokens_left += chunks[0].tokens;
  const int64_t rest = chunk_within(oldest, cost, cost_left, tokens_left, align);
  chunks[0].tokens = std::max(chunks[0].tokens, rest);
  std::erase_if(chunks, [](const PrefillChunk& chunk) { return chunk.tokens == 0; });
  std::sort(chunks.begin(), chunks.end(),
            [](const PrefillChunk& a, const PrefillChunk& b) { return a.prompt < b.prompt; });
  used = {};
  for (const auto& [prompt, tokens] : chunks)
    used += {1, tokens, cost.cost_ns(tokens, prompts[prompt].done_tokens)};
  return used;
}

}  // namespace fathom
