// The fluid solver: at a demand per rank, how many requests are live and how fast a user reads. No queues, no
// noise: Little's law and the step time meet at one point, or nowhere (saturation).
#pragma once

#include <optional>

#include "sim/cost_model.h"

namespace fathom::sim {

struct FluidLoad {
  double output_tokens_per_s_per_rank = 0;
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

// nullopt when no batch up to requests_max serves the demand.
std::optional<FluidPoint> solve_decode_fluid(const HardwareProfile& hw, const ModelShape& model,
                                             const DecodeUnitShape& unit, const FluidLoad& load,
                                             double requests_max = 512);
// The step at a given batch, for sensitivities.
FluidPoint decode_point(const HardwareProfile& hw, const ModelShape& model, const DecodeUnitShape& unit,
                        const FluidLoad& load, double requests_per_rank);

}  // namespace fathom::sim
