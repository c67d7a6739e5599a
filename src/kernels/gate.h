// The MoE gate: from one token's router logits to the chosen experts and their weights, all in F32.
#pragma once

#include <cstdint>

namespace fathom {

// Limit on experts of one layer (DeepSeek-V3 256, Kimi-K2 384).
inline constexpr int kGateExpertsMax = 1024;

enum class GateScore : uint8_t { kSoftmax, kSigmoid };
enum class GroupScore : uint8_t { kMax, kTop2Sum };

struct GateConfig {
  int num_experts = 0;  // 1 … kGateExpertsMax
  int top_k = 1;
  int num_groups = 1;  // divides num_experts; 1: no group step
  int top_groups = 1;  // groups kept
  GateScore score = GateScore::kSigmoid;
  GroupScore group_score = GroupScore::kTop2Sum;
  bool normalize = true;  // weights /= Σ weights + 1e-20
  float scale = 1.0f;     // weights *= scale, last
};

// Scores s = sigmoid or softmax of logits [num_experts]; choice by c = s + bias (bias null: c = s), first the
// groups, then top_k experts of them, ties to the lower index; weights from s without bias.
// experts and weights [top_k], by falling c. NaN counts as the lowest choice. Instruction sets differ in the
// last bits of s.
void gate_choose(const GateConfig& config, const float* logits, const float* bias, int32_t* experts,
                 float* weights);

}  // namespace fathom
