// The sampler against a slow reference that sorts everything, by the chi-square of its draws, and on bad
// rows.
#include "model/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"

namespace fathom {
namespace {

// The definition, slowly: every token's probability after all the steps, by sorting everything in long
// double.
std::vector<long double> reference(const SamplingParams& p, std::vector<float> logits,
                                   const std::vector<int32_t>& prompt,
                                   const std::vector<int32_t>& generated) {
  const size_t n = logits.size();
  std::vector<int> count(n), in_prompt(n);
  for (const int32_t t : prompt) in_prompt[t] = 1;
  for (const int32_t t : generated) ++count[t];
  for (const auto& [t, bias] : p.logit_bias) logits[t] += bias;
  for (size_t t = 0; t < n; ++t) {
    if (in_prompt[t] || count[t]) {
      logits[t] = logits[t] > 0 ? logits[t] / p.repetition_penalty : logits[t] * p.repetition_penalty;
    }
    if (count[t]) logits[t] -= p.presence_penalty + p.frequency_penalty * static_cast<float>(count[t]);
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<long double> probability(n, 0);
  if (p.temperature == 0) {
    probability[order[0]] = 1;
    return probability;
  }
  const auto normalise = [&] {
    const long double sum = std::accumulate(probability.begin(), probability.end(), 0.0L);
    for (long double& x : probability) x /= sum;
  };
  const size_t keep = p.top_k == 0 ? n : std::min<size_t>(n, p.top_k);
  for (size_t i = 0; i < keep; ++i) {
    probability[order[i]] =
        std::exp((static_cast<long double>(logits[order[i]]) - logits[order[0]]) / p.temperature);
  }
  normalise();
  long double reached = 0;
  for (size_t i = 0; i < n; ++i) {
    if (reached >= static_cast<long double>(p.top_p) && i > 0) probability[order[i]] = 0;
    reached += probability[order[i]];
  }
  for (long double& x : probability) x = x < p.min_p * probability[order[0]] ? 0 : x;
  normalise();
  return probability;
}

SamplingParams random_params(Rng& rng, int32_t vocab) {
  SamplingParams p;
  p.seed = rng.next_u64();
  p.temperature = rng.next_below(8) == 0 ? 0 : static_cast<float>(0.2 + 2 * rng.next_double());
  if (rng.next_below(2)) p.top_p = static_cast<float>(0.05 + 0.9 * rng.next_double());
  if (rng.next_below(2)) p.top_k = 1 + static_cast<int32_t>(rng.next_below(vocab));
  if (rng.next_below(2)) p.min_p = static_cast<float>(0.3 * rng.next_double());
  if (rng.next_below(2)) p.presence_penalty = static_cast<float>(4 * rng.next_double() - 2);
  if (rng.next_below(2)) p.frequency_penalty = static_cast<float>(4 * rng.next_double() - 2);
  if (rng.next_below(2)) p.repetition_penalty = static_cast<float>(0.5 + rng.next_double());
  if (rng.next_below(2)) p.logit_bias = {{3, 5.0f}, {7, -100.0f}};
  return p;
}

std::vector<float> random_logits(Rng& rng, int32_t vocab) {
  std::vector<float> logits(vocab);
  // Coarse values, so that ties happen.
  for (float& x : logits) x = static_cast<float>(static_cast<int>(rng.next_below(60))) * 0.25f - 7;
  return logits;
}

// The inverse of the cumulative distribution by id, on the reference's probabilities. Where the random number
// is within rounding of a boundary, either neighbour is right.
TEST(Sampler, equals_the_slow_reference) {
  SamplerWorkspace work;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    Rng rng(seed);
    const auto vocab = 10 + static_cast<int32_t>(rng.next_below(300));
    const SamplingParams params = random_params(rng, vocab);
    const std::vector<float> logits = random_logits(rng, vocab);
    std::vector<int32_t> prompt, generated;
    for (int i = 0; i < 6; ++i) prompt.push_back(static_cast<int32_t>(rng.next_below(vocab)));
    for (int i = 0; i < 6; ++i) generated.push_back(static_cast<int32_t>(rng.next_below(vocab / 2)));
    const auto choice = static_cast<uint32_t>(rng.next_below(4));
    const auto position = static_cast<int32_t>(rng.next_below(5000));

    ASSERT_TRUE(validate(params, vocab).ok()) << "seed " << seed;
    Sampler sampler(params, choice, prompt);
    for (const int32_t token : generated) sampler.record(token);
    const int32_t token = sampler.sample(logits, position, work).value().token;

    const std::vector<long double> probability = reference(params, logits, prompt, generated);
    const double u = unit_double(hash_u64(params.seed, choice, position));
    long double before = 0;
    for (int32_t t = 0; t < token; ++t) before += probability[t];
    ASSERT_GT(probability[token], 0) << "seed " << seed << " token " << token;
    ASSERT_GE(u, before - 1e-9L) << "seed " << seed;
    ASSERT_LE(u, before + probability[token] + 1e-9L) << "seed " << seed;
  }
}

// Pearson's statistic of 20,000 draws at distinct positions against the distribution, fixed seed.
TEST(Sampler, draws_follow_the_distribution) {
  SamplingParams params;
  params.seed = 42;
  params.temperature = 0.8f;
  params.top_p = 0.95f;
  Rng rng(5);
  std::vector<float> logits(40);
  for (float& x : logits) x = static_cast<float>(3 * rng.next_double());
  const std::vector<long double> probability = reference(params, logits, {}, {});
  Sampler sampler(params, 0, {});
  SamplerWorkspace work;
  constexpr int kDraws = 20000;
  std::vector<int> count(logits.size());
  for (int position = 0; position < kDraws; ++position)
    ++count[sampler.sample(logits, position, work).value().token];
  double statistic = 0;
  int cells = 0;
  for (size_t t = 0; t < logits.size(); ++t) {
    const double expected = static_cast<double>(probability[t]) * kDraws;
    if (expected == 0) {
      EXPECT_EQ(count[t], 0);
      continue;
    }
    statistic += (count[t] - expected) * (count[t] - expected) / expected;
    ++cells;
  }
  // 99.9 % quantile of chi-square with k degrees of freedom is below k + 4.5 sqrt(k) for k > 10.
  EXPECT_GT(cells, 15);
  EXPECT_LT(statistic, (cells - 1) + 4.5 * std::sqrt(cells - 1));
}

TEST(Sampler, depends_on_seed_choice_and_position_only) {
  Rng rng(9);
  const std::vector<float> logits = random_logits(rng, 500);
  SamplingParams params;
  params.temperature = 2;
  const auto draws = [&](uint64_t seed, uint32_t choice, int first) {
    params.seed = seed;
    Sampler sampler(params, choice, {});
    SamplerWorkspace work;
    std::vector<int32_t> tokens;
    for (int i = first; i < first + 20; ++i) tokens.push_back(sampler.sample(logits, i, work).value().token);
    return tokens;
  };
  EXPECT_EQ(draws(1, 0, 0), draws(1, 0, 0));
  EXPECT_NE(draws(1, 0, 0), draws(2, 0, 0));
  EXPECT_NE(draws(1, 0, 0), draws(1, 1, 0));
  EXPECT_NE(draws(1, 0, 0), draws(1, 0, 20));
}

TEST(Sampler, greedy_ties_go_to_the_lowest_id) {
  SamplingParams params;
  params.temperature = 0;
  SamplerWorkspace work;
  const std::vector<float> logits = {1, 3, 2, 3, 3};
  EXPECT_EQ(Sampler(params, 0, {}).sample(logits, 0, work).value().token, 1);
  params.temperature = 1;
  params.top_k = 1;
  EXPECT_EQ(Sampler(params, 0, {}).sample(logits, 0, work).value().token, 1);
}

TEST(Sampler, logprobs_are_of_the_raw_distribution) {
  SamplingParams params;
  params.temperature = 0;
  params.logit_bias = {{3, 100.0f}};
  params.num_logprobs = 2;
  SamplerWorkspace work;
  const std::vector<float> logits = {1, 2, 2, 0};
  const SampledToken sampled = Sampler(params, 0, {}).sample(logits, 0, work).value();
  EXPECT_EQ(sampled.token, 3);
  const double log_sum = std::log(std::exp(1.0) + 2 * std::exp(2.0) + 1);
  EXPECT_NEAR(sampled.logprobs->sampled, 0 - log_sum, 1e-6);
  ASSERT_EQ(sampled.logprobs->top.size(), 2u);
  EXPECT_EQ(sampled.logprobs->top[0].first, 1);
  EXPECT_EQ(sampled.logprobs->top[1].first, 2);
  EXPECT_NEAR(sampled.logprobs->top[1].second, 2 - log_sum, 1e-6);
}

TEST(Sampler, a_row_that_is_no_distribution_is_an_error) {
  SamplerWorkspace work;
  const float inf = std::numeric_limits<float>::infinity();
  const Sampler sampler(SamplingParams{}, 0, {});
  for (const std::vector<float>& logits :
       {std::vector<float>{0, NAN, 1}, std::vector<float>{inf, 0}, std::vector<float>{-inf, -inf}}) {
    EXPECT_EQ(sampler.sample(logits, 0, work).status().code(), StatusCode::kDataLoss);
  }
  EXPECT_EQ(sampler.sample(std::vector<float>{-inf, 0, -inf}, 0, work).value().token, 1);
}

TEST(Sampler, a_penalty_that_overflows_is_an_error) {
  SamplingParams params;
  params.repetition_penalty = 1e-44f;
  SamplerWorkspace work;
  const std::vector<int32_t> prompt = {1};
  const Sampler sampler(params, 0, prompt);
  EXPECT_EQ(sampler.sample(std::vector<float>{0, 5, 1}, 0, work).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(Sampler, parameters_out_of_range_are_named) {
  const auto message = [](auto change) {
    SamplingParams params;
    change(params);
    return validate(params, 100).message();
  };
  EXPECT_EQ(message([](auto& p) { p.temperature = NAN; }), "temperature: nan is outside [0, 100]");
  EXPECT_EQ(message([](auto& p) { p.top_p = 0; }), "top_p: 0 is outside (0, 1]");
  EXPECT_EQ(message([](auto& p) { p.num_logprobs = 21; }), "logprobs: 21 is outside [0, 20]");
  EXPECT_EQ(message([](auto& p) { p.logit_bias = {{100, 0.f}}; }),
            "logit_bias: token 100 is outside the vocabulary of 100");
  EXPECT_EQ(message([](auto&) {}), "");
}

}  // namespace
}  // namespace fathom
