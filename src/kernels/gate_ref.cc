// The gate's choice in plain loops: softmax-greedy, group-limited and noaux_tc (the V2 and V3 reports).
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/dispatch_tables.h"

namespace fathom {
namespace {

constexpr float kTaken = -std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();  // of a choice, above what is taken

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

float group_value(GroupScore kind, const float* choice, int size) {
  float first = kTaken, second = kTaken;
  for (int i = 0; i < size; ++i) {
    second = std::max(second, std::min(first, choice[i]));
    first = std::max(first, choice[i]);
  }
  return kind == GroupScore::kMax || size == 1 ? first : std::max(first + second, kLowest);
}

// The index of the largest value, the lowest on ties; it becomes kTaken.
int take_best(float* values, int n) {
  const int best = static_cast<int>(std::max_element(values, values + n) - values);
  values[best] = kTaken;
  return best;
}

// The experts of all but the best groups become kTaken.
void limit_groups(const GateConfig& config, float* choice) {
  const int size = config.num_experts / config.num_groups;
  float values[kGateExpertsMax];
  bool kept[kGateExpertsMax] = {};
  for (int g = 0; g < config.num_groups; ++g)
    values[g] = group_value(config.group_score, choice + g * size, size);
  for (int i = 0; i < config.top_groups; ++i) kept[take_best(values, config.num_groups)] = true;
  for (int e = 0; e < config.num_experts; ++e) {
    if (!kept[e / size]) choice[e] = kTaken;
  }
}

void gate_experts_ref(const GateConfig& config, const float* logits, const float* bias, float* scores,
                      int32_t* experts) {
  float choice[kGateExpertsMax];
  score_experts(config, logits, scores);
  for (int e = 0; e < config.num_experts; ++e) {
    const float c = bias == nullptr ? scores[e] : scores[e] + bias[e];
    choice[e] = std::isnan(c) ? kLowest : std::max(c, kLowest);
  }
  if (config.num_groups > 1) limit_groups(config, choice);
  for (int i = 0; i < config.top_k; ++i) experts[i] = take_best(choice, config.num_experts);
}

}  // namespace

void add_ref_gate(KernelTable& table) { table.gate_experts = gate_experts_ref; }

}  // namespace fathom
