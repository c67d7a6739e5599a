// The expert gate in FP32: softmax-greedy, group-limited and noaux_tc (facts of the V2 and V3 reports).
#include "kernels/gate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace fathom {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

void score_experts(const GateConfig& config, const float* logits, float* scores) {
  const int n = config.num_experts;
  if (config.score == GateScore::kSigmoid) {
    for (int e = 0; e < n; ++e) scores[e] = 1.0f / (1.0f + std::exp(-logits[e]));
    return;
  }
  const float highest = *std::max_element(logits, logits + n);
  double sum = 0;
  for (int e = 0; e < n; ++e) sum += scores[e] = std::exp(logits[e] - highest);
  for (int e = 0; e < n; ++e) scores[e] = static_cast<float>(scores[e] / sum);
}

float group_value(const GateConfig& config, const float* choice) {
  const int size = config.num_experts / config.num_groups;
  float first = kLowest, second = kLowest;
  for (int i = 0; i < size; ++i) {
    if (choice[i] > first) {
      second = first;
      first = choice[i];
    } else if (choice[i] > second) {
      second = choice[i];
    }
  }
  return config.group_score == GroupScore::kMax || size == 1 ? first : first + second;
}

// The index of the largest value that is not taken yet, the lowest on ties; it is marked taken.
int take_best(const float* values, int n, bool* taken) {
  int best = -1;
  for (int i = 0; i < n; ++i) {
    if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
  }
  taken[best] = true;
  return best;
}

// Marks the experts of all but the best groups as taken.
void limit_groups(const GateConfig& config, const float* choice, bool* taken) {
  const int size = config.num_experts / config.num_groups;
  float values[kGateExpertsMax];
  bool kept[kGateExpertsMax] = {};
  for (int g = 0; g < config.num_groups; ++g) values[g] = group_value(config, choice + g * size);
  for (int i = 0; i < config.top_groups; ++i) take_best(values, config.num_groups, kept);
  for (int e = 0; e < config.num_experts; ++e) taken[e] = !kept[e / size];
}

}  // namespace

void gate_choose(const GateConfig& config, const float* logits, const float* bias, int32_t* experts,
                 float* weights) {
  const int n = config.num_experts;
  CHECK(0 < n && n <= kGateExpertsMax && config.num_groups > 0 && n % config.num_groups == 0);
  CHECK(0 < config.top_groups && config.top_groups <= config.num_groups);
  CHECK(0 < config.top_k && config.top_k <= n / config.num_groups * config.top_groups);
  float scores[kGateExpertsMax], choice[kGateExpertsMax];
  bool taken[kGateExpertsMax] = {};
  score_experts(config, logits, scores);
  for (int e = 0; e < n; ++e) {
    const float c = bias == nullptr ? scores[e] : scores[e] + bias[e];
    choice[e] = std::isnan(c) ? kLowest : c;
  }
  if (config.num_groups > 1) limit_groups(config, choice, taken);
  float sum = 0;
  for (int i = 0; i < config.top_k; ++i) {
    experts[i] = take_best(choice, n, taken);
    weights[i] = scores[experts[i]];
    sum += weights[i];
  }
  for (int i = 0; i < config.top_k; ++i) {
    if (config.normalize) weights[i] /= sum + 1e-20f;
    weights[i] *= config.scale;
  }
}

}  // namespace fathom
