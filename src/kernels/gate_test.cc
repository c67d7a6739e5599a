// The gate's choice on one golden case and at its corners: ties, negative scores, NaN.
#include "kernels/gate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/kernel_testing.h"

namespace fathom {
namespace {

// The tiny published case: logits 2 sin(1.7 i + 0.3), bias 0.2 cos(0.9 i); computed in double elsewhere.
TEST(Gate, SigmoidWithGroupsMatchesTheGoldenCase) {
  GateConfig config{.num_experts = 16, .top_k = 4, .num_groups = 4, .top_groups = 2, .scale = 2.5f};
  std::vector<float> logits(16), bias(16);
  for (int i = 0; i < 16; ++i) {
    logits[i] = static_cast<float>(2 * std::sin(1.7 * i + 0.3));
    bias[i] = static_cast<float>(0.2 * std::cos(0.9 * i));
  }
  int32_t experts[4];
  float weights[4];
  gate_choose(config, logits.data(), bias.data(), experts, weights);
  const int32_t want_experts[4] = {1, 15, 0, 12};
  const float want_weights[4] = {0.682518f, 0.614901f, 0.510545f, 0.692036f};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(experts[i], want_experts[i]);
    EXPECT_NEAR(weights[i], want_weights[i], 2e-6);
  }
}

TEST(Gate, SoftmaxGreedyGivesRawProbabilities) {
  GateConfig config{
      .num_experts = 4, .top_k = 2, .score = GateScore::kSoftmax, .normalize = false, .scale = 16};
  const float logits[4] = {0, std::log(3.0f), std::log(2.0f), std::log(4.0f)};
  int32_t experts[2];
  float weights[2];
  gate_choose(config, logits, nullptr, experts, weights);
  EXPECT_EQ(experts[0], 3);
  EXPECT_EQ(experts[1], 1);
  EXPECT_NEAR(weights[0], 16 * 0.4, 1e-5);
  EXPECT_NEAR(weights[1], 16 * 0.3, 1e-5);
}

TEST(Gate, MaxGroupScoreKeepsTheBestGroups) {
  GateConfig config{.num_experts = 6,
                    .top_k = 2,
                    .num_groups = 3,
                    .top_groups = 1,
                    .score = GateScore::kSoftmax,
                    .group_score = GroupScore::kMax,
                    .normalize = true};
  const float logits[6] = {2, 2, 3, -9, 1, 2.5f};
  int32_t experts[2];
  float weights[2];
  gate_choose(config, logits, nullptr, experts, weights);
  EXPECT_EQ(experts[0], 2);
  EXPECT_EQ(experts[1], 3);
  EXPECT_NEAR(weights[0] + weights[1], 1, 1e-6);
}

TEST(Gate, TiesGoToTheLowerIndexAndNegativeChoicesStayInTheirGroup) {
  GateConfig config{.num_experts = 4, .top_k = 2, .num_groups = 2, .top_groups = 1};
  const float logits[4] = {1, 1, 1, 1};
  const float bias[4] = {-5, -5, -5, -5};
  int32_t experts[2];
  float weights[2];
  gate_choose(config, logits, bias, experts, weights);
  EXPECT_EQ(experts[0], 0);
  EXPECT_EQ(experts[1], 1);
}

TEST(Gate, NotANumberStillChoosesDistinctExperts) {
  GateConfig config{.num_experts = 8, .top_k = 4, .num_groups = 2, .top_groups = 1};
  const std::vector<float> logits(8, std::numeric_limits<float>::quiet_NaN());
  int32_t experts[4];
  float weights[4];
  gate_choose(config, logits.data(), nullptr, experts, weights);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(experts[i], i);
}

class GateOnEveryIsa : public testing::TestWithParam<Isa> {};

std::vector<Isa> all_isas() {
  std::vector<Isa> isas = isas_above_ref();
  isas.insert(isas.begin(), Isa::kRef);
  return isas;
}
INSTANTIATE_TEST_SUITE_P(All, GateOnEveryIsa, testing::ValuesIn(all_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

GateConfig random_config(Rng& rng) {
  GateConfig config;
  const auto up_to = [&rng](int most) { return 1 + static_cast<int>(rng.next_below(most)); };
  config.num_groups = up_to(9);
  const int size = up_to(45);
  config.num_experts = config.num_groups * size;
  config.top_groups = up_to(config.num_groups);
  config.top_k = up_to(std::min(config.top_groups * size, 12));
  config.score = rng.next_below(2) == 0 ? GateScore::kSigmoid : GateScore::kSoftmax;
  config.group_score = rng.next_below(2) == 0 ? GroupScore::kMax : GroupScore::kTop2Sum;
  return config;
}

// In doubles.
std::vector<double> plain_scores(const GateConfig& config, const std::vector<float>& logits) {
  std::vector<double> scores(logits.begin(), logits.end());
  if (config.score == GateScore::kSigmoid) {
    for (double& s : scores) s = 1 / (1 + std::exp(-s));
    return scores;
  }
  const double highest = *std::max_element(scores.begin(), scores.end());
  for (double& s : scores) s = std::exp(s - highest);
  const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
  for (double& s : scores) s /= sum;
  return scores;
}

// The indices of `values` by falling value, lower index first on ties.
std::vector<int> falling(const std::vector<float>& values) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return values[a] > values[b]; });
  return order;
}

// What the definition chooses by these very scores: sorting instead of searching.
std::vector<int32_t> plain_choice(const GateConfig& config, const std::vector<float>& choice) {
  const int size = config.num_experts / config.num_groups;
  std::vector<float> groups;
  for (int g = 0; g < config.num_groups; ++g) {
    std::vector<float> sorted(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    groups.push_back(config.group_score == GroupScore::kMax || size == 1 ? sorted[0] : sorted[0] + sorted[1]);
  }
  const std::vector<int> group_order = falling(groups);
  std::vector<int32_t> chosen;
  for (const int e : falling(choice)) {
    const auto rank = std::find(group_order.begin(), group_order.end(), e / size) - group_order.begin();
    if (rank < config.top_groups && std::ssize(chosen) < config.top_k) chosen.push_back(e);
  }
  return chosen;
}

// Logits in quarters, so that ties are common; any number of experts, groups and choices.
TEST_P(GateOnEveryIsa, ScoresAreTheFormulasAndTheChoiceIsTheirSortedOrder) {
  Rng rng(31);
  for (int round = 0; round < 400; ++round) {
    const GateConfig config = random_config(rng);
    const auto n = static_cast<size_t>(config.num_experts);
    std::vector<float> logits(n), bias(n), scores(n);
    for (float& x : logits) x = std::round(random_normal(rng) * 8) / 4;
    // Nothing but exactly 0 may come of it; a sigmoid's vector form ends at the smallest numbers instead.
    if (config.score == GateScore::kSoftmax && n > 4) logits[3] = -std::numeric_limits<float>::infinity();
    for (float& x : bias) x = std::round(random_normal(rng) * 8) / 8;
    const bool biased = rng.next_below(4) != 0;
    std::vector<int32_t> experts(static_cast<size_t>(config.top_k));
    kernel_table(GetParam())
        .gate_experts(config, logits.data(), biased ? bias.data() : nullptr, scores.data(), experts.data());
    const std::vector<double> want = plain_scores(config, logits);
    for (size_t e = 0; e < n; ++e) ASSERT_NEAR(scores[e], want[e], 4e-7 * want[e]) << "expert " << e;
    std::vector<float> choice = scores;
    for (size_t e = 0; biased && e < n; ++e) choice[e] += bias[e];
    ASSERT_EQ(experts, plain_choice(config, choice)) << "round " << round;
  }
}

TEST_P(GateOnEveryIsa, WhatIsNoNumberIsChosenLast) {
  const GateConfig config{.num_experts = 21, .top_k = 5, .num_groups = 3, .top_groups = 1};
  std::vector<float> logits(21, std::numeric_limits<float>::quiet_NaN());
  logits[9] = -3;  // the second group has the two numbers that there are
  logits[12] = -2;
  std::vector<float> scores(21);
  std::vector<int32_t> experts(5);
  kernel_table(GetParam()).gate_experts(config, logits.data(), nullptr, scores.data(), experts.data());
  EXPECT_EQ(experts, (std::vector<int32_t>{12, 9, 7, 8, 10}));
}

TEST_P(GateOnEveryIsa, NothingButNoNumbersStillChoosesDistinctExpertsOfEnoughGroups) {
  const GateConfig config{.num_experts = 12, .top_k = 7, .num_groups = 3, .top_groups = 2};
  const std::vector<float> logits(12, std::numeric_limits<float>::quiet_NaN());
  std::vector<float> scores(12);
  std::vector<int32_t> experts(7);
  kernel_table(GetParam()).gate_experts(config, logits.data(), nullptr, scores.data(), experts.data());
  EXPECT_EQ(experts, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6}));
}

}  // namespace
}  // namespace fathom
