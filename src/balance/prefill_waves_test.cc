// One forward of a prefill unit, placed whole or in chunks: the fleet model's table of what a forward's
// barrier leaves of 32 ranks. It is why forwards are cut (prefill_cut.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "balance/prefill_balancer.h"
#include "balance/testing.h"

namespace fathom {
namespace {

constexpr int kRanks = 32, kWaves = 60;
constexpr int64_t kTokensPerRank = 16'384, kChunkTokens = 4096, kPromptTokensMax = 65'536;

struct Piece {
  int64_t new_tokens, cached_tokens;
};

// Prompts of the published lengths and the two classes of hits, until the ranks have 16K tokens each.
std::vector<Piece> draw_wave(Rng& rng) {
  std::vector<Piece> prompts;
  for (int64_t tokens = 0; tokens < kRanks * kTokensPerRank;) {
    const double length = 2289 * std::exp(0.957 * test_normal(rng));
    const auto prompt = std::clamp(static_cast<int64_t>(length), int64_t{16}, kPromptTokensMax);
    const double hit = rng.next_double() < 0.62 ? 0.85 : 0.09;
    const auto cached = static_cast<int64_t>(hit * static_cast<double>(prompt));
    prompts.push_back({prompt - cached, cached});
    tokens += prompt - cached;
  }
  return prompts;
}

// Chunks of one prompt on different ranks would need one another's KV, so this is a bound, not a plan.
std::vector<Piece> in_chunks(const std::vector<Piece>& prompts) {
  std::vector<Piece> chunks;
  for (const Piece& prompt : prompts) {
    for (int64_t at = 0; at < prompt.new_tokens; at += kChunkTokens)
      chunks.push_back({std::min(kChunkTokens, prompt.new_tokens - at), prompt.cached_tokens + at});
  }
  return chunks;
}

enum class Cut { kWhole, kChunks, kChunksLongestFirst };

// Mean over largest cost of the ranks, mean of the waves.
double efficiency(PrefillPolicy policy, Cut cut) {
  PrefillBalancerOptions options;
  options.policy = policy;
  const PrefillCost& cost = options.cost;
  double sum = 0;
  Rng rng(5);
  for (int wave = 0; wave < kWaves; ++wave) {
    std::vector<Piece> pieces = draw_wave(rng);
    if (cut != Cut::kWhole) pieces = in_chunks(pieces);
    const auto work = [&](const Piece& p) { return cost.cost_ns(p.new_tokens, p.cached_tokens); };
    if (cut == Cut::kChunksLongestFirst)
      std::stable_sort(pieces.begin(), pieces.end(),
                       [&](const Piece& a, const Piece& b) { return work(a) > work(b); });
    PrefillBalancer balancer(options);
    balancer.add_unit(kRanks);
    for (const Piece& piece : pieces) {
      PrefillChoice choice = *balancer.pick({piece.new_tokens + piece.cached_tokens, 0, {}});
      choice.load = {1, piece.new_tokens, work(piece)};
      balancer.charge(choice);
    }
    sum += 1 / balancer.balance(0).cost_ns.max_over_mean() / kWaves;
  }
  return sum;
}

TEST(PrefillWaves, OnlyCutsBalanceAForward) {
  const double in_turn = efficiency(PrefillPolicy::kRoundRobin, Cut::kWhole);
  const double fewest = efficiency(PrefillPolicy::kLeastRequests, Cut::kWhole);
  const double least_tokens = efficiency(PrefillPolicy::kLeastTokens, Cut::kWhole);
  const double by_cost = efficiency(PrefillPolicy::kFathom, Cut::kWhole);
  const double tokens_chunks = efficiency(PrefillPolicy::kLeastTokens, Cut::kChunks);
  const double cost_chunks = efficiency(PrefillPolicy::kFathom, Cut::kChunksLongestFirst);
  std::printf(
      "efficiency of a forward: whole prompts in turn %.0f %%, fewest %.0f %%, least tokens %.0f %%, least "
      "cost "
      "%.0f %%; chunks by tokens %.0f %%, by cost and longest first %.1f %%\n",
      100 * in_turn, 100 * fewest, 100 * least_tokens, 100 * by_cost, 100 * tokens_chunks, 100 * cost_chunks);
  // Whole prompts: 27 % to 34 % in the fleet model, whatever the policy.
  EXPECT_LT(in_turn, least_tokens);
  EXPECT_LT(fewest, least_tokens);
  for (const double whole : {in_turn, fewest, least_tokens, by_cost}) {
    EXPECT_GT(whole, 0.2);
    EXPECT_LT(whole, 0.5);
  }
  // Chunks: 69 % by tokens, 99.8 % by cost.
  EXPECT_GT(tokens_chunks, by_cost + 0.15);
  EXPECT_LT(tokens_chunks, 0.9);
  EXPECT_GT(cost_chunks, 0.99);
}

}  // namespace
}  // namespace fathom
