// The gate's choice on one golden case and at its corners: ties, negative scores, NaN.
#include "kernels/gate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

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

}  // namespace
}  // namespace fathom
