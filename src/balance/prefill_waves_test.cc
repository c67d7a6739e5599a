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

enum class Cut { kWhole, kChunks };

// How the ranks of a forward compare: the fleet model's columns, means over waves.
struct Spread {
  double tokens_max_over_mean = 0, attention_max_over_mean = 0;
  double efficiency = 0;  // mean over largest cost
};

double max_over_mean(const std::vector<double>& ranks) {
  double sum = 0;
  for (const double value : ranks) sum += value;
  return *std::max_element(ranks.begin(), ranks.end()) * static_cast<double>(ranks.size()) / sum;
}

double attention(const Piece& p) {
  return static_cast<double>(p.new_tokens) *
         (static_cast<double>(p.cached_tokens) + static_cast<double>(p.new_tokens) / 2);
}

// Places one wave: the rank of each piece, in order.
using Place = std::vector<int> (*)(std::vector<Piece>& pieces, const PrefillCost& cost);

Spread spread(Place place, Cut cut) {
  const PrefillCost cost = PrefillBalancerOptions{}.cost;
  Spread out;
  Rng rng(5);
  for (int wave = 0; wave < kWaves; ++wave) {
    std::vector<Piece> pieces = draw_wave(rng);
    if (cut == Cut::kChunks) pieces = in_chunks(pieces);
    const std::vector<int> rank_of = place(pieces, cost);
    std::vector<double> tokens(kRanks), pairs(kRanks), costs(kRanks);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto rank = static_cast<size_t>(rank_of[i]);
      tokens[rank] += static_cast<double>(pieces[i].new_tokens);
      pairs[rank] += attention(pieces[i]);
      costs[rank] += static_cast<double>(cost.cost_ns(pieces[i].new_tokens, pieces[i].cached_tokens));
    }
    out.tokens_max_over_mean += max_over_mean(tokens) / kWaves;
    out.attention_max_over_mean += max_over_mean(pairs) / kWaves;
    out.efficiency += 1 / max_over_mean(costs) / kWaves;
  }
  return out;
}

// The balancer's own policies, in the order of the pieces.
template <PrefillPolicy policy>
std::vector<int> by_policy(std::vector<Piece>& pieces, const PrefillCost& cost) {
  PrefillBalancerOptions options;
  options.policy = policy;
  PrefillBalancer balancer(options);
  balancer.add_unit(kRanks);
  std::vector<int> rank_of;
  for (const Piece& piece : pieces) {
    PrefillChoice choice = *balancer.pick({piece.new_tokens + piece.cached_tokens, 0, {}});
    choice.load = {1, piece.new_tokens, cost.cost_ns(piece.new_tokens, piece.cached_tokens)};
    balancer.charge(choice);
    rank_of.push_back(choice.rank.rank);
  }
  return rank_of;
}

// Longest first: what is most by `size` is placed first.
template <typename Size>
void longest_first(std::vector<Piece>& pieces, Size size) {
  std::stable_sort(pieces.begin(), pieces.end(),
                   [&](const Piece& a, const Piece& b) { return size(a) > size(b); });
}
std::vector<int> longest_by_tokens(std::vector<Piece>& pieces, const PrefillCost& cost) {
  longest_first(pieces, [](const Piece& p) { return p.new_tokens; });
  return by_policy<PrefillPolicy::kLeastTokens>(pieces, cost);
}
std::vector<int> longest_by_cost(std::vector<Piece>& pieces, const PrefillCost& cost) {
  longest_first(pieces, [&](const Piece& p) { return cost.cost_ns(p.new_tokens, p.cached_tokens); });
  return by_policy<PrefillPolicy::kFathom>(pieces, cost);
}
// Tokens and attention, each as a share of the wave's: the larger of the two counts, of a piece and of a
// rank.
std::vector<int> longest_in_two(std::vector<Piece>& pieces, const PrefillCost&) {
  double all_tokens = 0, all_pairs = 0;
  for (const Piece& p : pieces) {
    all_tokens += static_cast<double>(p.new_tokens);
    all_pairs += attention(p);
  }
  const auto larger = [&](double tokens, double pairs) {
    return std::max(tokens / all_tokens, pairs / all_pairs);
  };
  longest_first(pieces,
                [&](const Piece& p) { return larger(static_cast<double>(p.new_tokens), attention(p)); });
  std::vector<double> tokens(kRanks), pairs(kRanks);
  std::vector<int> rank_of;
  for (const Piece& p : pieces) {
    size_t best = 0;
    const auto after = [&](size_t rank) {
      return larger(tokens[rank] + static_cast<double>(p.new_tokens), pairs[rank] + attention(p));
    };
    for (size_t rank = 1; rank < kRanks; ++rank) {
      if (after(rank) < after(best)) best = rank;
    }
    tokens[best] += static_cast<double>(p.new_tokens);
    pairs[best] += attention(p);
    rank_of.push_back(static_cast<int>(best));
  }
  return rank_of;
}

// The fleet model's table, whose Monte Carlo is another one: its figures nearly, its order exactly.
TEST(PrefillWaves, OnlyCutsBalanceAForward) {
  struct Published {
    double tokens, attention, efficiency_percent, efficiency_within = 0.15;
  };
  // Placed longest first, a wave's longest prompt alone decides; the model's waves have longer ones.
  const Published longest_first{1.68, 5.5, 32.5, 0.4};
  const auto row = [](const char* name, Place place, Cut cut, const Published& published) {
    const Spread s = spread(place, cut);
    std::printf("%-30s tokens %.2f (%.2f), attention %.2f (%.2f), efficiency %.1f %% (%.1f)\n", name,
                s.tokens_max_over_mean, published.tokens, s.attention_max_over_mean, published.attention,
                100 * s.efficiency, published.efficiency_percent);
    EXPECT_NEAR(s.tokens_max_over_mean / published.tokens, 1, 0.07) << name;
    EXPECT_NEAR(s.attention_max_over_mean / published.attention, 1, 0.15) << name;
    EXPECT_NEAR(100 * s.efficiency / published.efficiency_percent, 1, published.efficiency_within) << name;
    return s;
  };
  const Spread in_turn = row("in turn", by_policy<PrefillPolicy::kRoundRobin>, Cut::kWhole, {2.59, 5.8, 27});
  const Spread fewest =
      row("fewest requests", by_policy<PrefillPolicy::kLeastRequests>, Cut::kWhole, {2.59, 5.8, 27});
  const Spread least_tokens =
      row("least tokens", by_policy<PrefillPolicy::kLeastTokens>, Cut::kWhole, {1.94, 5.1, 33});
  const Spread lpt_tokens = row("longest first, by tokens", longest_by_tokens, Cut::kWhole, longest_first);
  const Spread lpt_cost = row("longest first, by cost", longest_by_cost, Cut::kWhole, longest_first);
  const Spread lpt_two = row("longest first, by both", longest_in_two, Cut::kWhole, longest_first);
  const Spread chunks_tokens =
      row("chunks, least tokens", by_policy<PrefillPolicy::kLeastTokens>, Cut::kChunks, {1.12, 2.27, 69});
  const Spread chunks_two =
      row("chunks, longest first, both", longest_in_two, Cut::kChunks, {1.08, 1.34, 94});
  const Spread chunks_cost =
      row("chunks, longest first, cost", longest_by_cost, Cut::kChunks, {1.18, 1.61, 99.8});
  // Whole prompts: whatever the policy, the longest decide.
  for (const Spread* turn : {&in_turn, &fewest}) {
    EXPECT_GT(turn->tokens_max_over_mean, least_tokens.tokens_max_over_mean);
    EXPECT_LT(turn->efficiency, least_tokens.efficiency);
  }
  for (const Spread* longest : {&lpt_tokens, &lpt_cost, &lpt_two}) {
    EXPECT_LT(longest->tokens_max_over_mean, least_tokens.tokens_max_over_mean);
    EXPECT_LT(longest->efficiency, chunks_tokens.efficiency - 0.15);
    EXPECT_GT(longest->attention_max_over_mean, chunks_tokens.attention_max_over_mean);
  }
  // Chunks: the better the cost is known, the better they fill. By both each is level, by cost their sum.
  EXPECT_LT(chunks_tokens.efficiency, chunks_two.efficiency - 0.1);
  EXPECT_LT(chunks_two.efficiency, chunks_cost.efficiency);
  EXPECT_GT(chunks_cost.efficiency, 0.99);
  EXPECT_LT(chunks_two.tokens_max_over_mean, chunks_cost.tokens_max_over_mean);
  EXPECT_LT(chunks_two.attention_max_over_mean, chunks_cost.attention_max_over_mean);
  EXPECT_LT(chunks_cost.attention_max_over_mean, chunks_tokens.attention_max_over_mean);
}

}  // namespace
}  // namespace fathom
