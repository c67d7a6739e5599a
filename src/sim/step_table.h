// Decode step time at simulation speed: the cost model's stages are tabulated once per batch size, so a step
// of a simulated unit costs a few look-ups instead of nine rooflines. Equal to decode_stages() bit for bit in
// its stages.
#pragma once

#include <vector>

#include "sim/cost_model.h"
#include "sim/decode_unit.h"

namespace fathom::sim {

class StepTable {
 public:
  StepTable(const HardwareProfile& hw, const ModelShape& model, const DecodeUnitShape& unit);

  struct Step {
    double step_us = 0;
    double layer_us = 0;
    double exposed_us = 0;  // of layer_us: compute waits for communication
  };
  Step step(const StepLoad& load);
  // The same requests and KV spread evenly over the ranks: no decode balancer can do better.
  Step perfect_step(const StepLoad& load);
  // Of one of two micro-batches, or of the whole batch.
  DecodeStages stages(double requests_max, double kv_tokens_max, int64_t requests_total,
                      bool two_micro_batches = true);

 private:
  Step step_of(double requests_max, double kv_tokens_max, int64_t requests_total);
  struct ByMax {
    double attn0 = -1, attn1_without_core = 0, shared = 0;
  };
  struct Tables {
    std::vector<ByMax> by_max;
    std::vector<DecodeStages> by_total;  // mlp and all-to-all
  };
  const ByMax& by_max(int requests_max, bool two_micro_batches);
  const DecodeStages& by_total(int64_t requests_total, bool two_micro_batches);
  Tables& tables(bool two_micro_batches) { return two_micro_batches ? halves_ : whole_; }

  const HardwareProfile hw_;
  const ModelShape model_;
  const DecodeUnitShape unit_;
  Tables halves_, whole_;
};

}  // namespace fathom::sim
