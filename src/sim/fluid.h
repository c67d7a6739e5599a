// A decode unit as a fluid: so many requests live on each rank, without queues or noise, and how fast a user
// reads.
#pragma once

#include "sim/cost_model.h"

namespace fathom::sim {

struct FluidLoad {
  double kv_tokens_per_request = 0;
  double acceptance = 0.85;  // of the MTP token; tokens per step = 1 + acceptance with MTP
  double kv_imbalance = 1;   // largest over mean KV tokens per rank
  double requests_imbalance = 1;
};

struct FluidPoint {
  double requests_per_rank = 0;
  double step_ms = 0;
  double tokens_per_s_per_user = 0;
};

FluidPoint decode_point(const HardwareProfile& hw, const ModelShape& model, const DecodeUnitShape& unit,
                        const FluidLoad& load, double requests_per_rank);

}  // namespace fathom::sim
