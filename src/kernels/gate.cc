// The expert gate: the choice by the table in use, the weights of what was chosen.
#include "kernels/gate.h"

#include "base/check.h"
#include "kernels/dispatch.h"

namespace fathom {

void gate_choose(const GateConfig& config, const float* logits, const float* bias, int32_t* experts,
                 float* weights) {
  const int n = config.num_experts;
  CHECK(0 < n && n <= kGateExpertsMax && config.num_groups > 0 && n % config.num_groups == 0);
  CHECK(0 < config.top_groups && config.top_groups <= config.num_groups);
  CHECK(0 < config.top_k && config.top_k <= n / config.num_groups * config.top_groups);
  float scores[kGateExpertsMax];
  active_kernels().gate_experts(config, logits, bias, scores, experts);
  float sum = 0;
  for (int i = 0; i < config.top_k; ++i) {
    weights[i] = scores[experts[i]];
    sum += weights[i];
  }
  for (int i = 0; i < config.top_k; ++i) {
    if (config.normalize) weights[i] /= sum + 1e-20f;
    weights[i] *= config.scale;
  }
}

}  // namespace fathom
