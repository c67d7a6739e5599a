// The load at which a decode unit neither fills nor empties, by bisection.
#include "sim/fluid.h"

namespace fathom::sim {

FluidPoint decode_point(const HardwareProfile& hw, const ModelShape& model, const DecodeUnitShape& unit,
                        const FluidLoad& load, double requests_per_rank) {
  const DecodeLoad step{requests_per_rank * load.requests_imbalance, requests_per_rank,
                        requests_per_rank * load.kv_tokens_per_request * load.kv_imbalance};
  FluidPoint point;
  point.requests_per_rank = requests_per_rank;
  point.step_ms = decode_step_us(hw, model, unit, step) / 1e3;
  point.tokens_per_s_per_user = (unit.mtp ? 1 + load.acceptance : 1) / (point.step_ms / 1e3);
  return point;
}

std::optional<FluidPoint> solve_decode_fluid(const HardwareProfile& hw, const ModelShape& model,
                                             const DecodeUnitShape& unit, const FluidLoad& load,
                                             double requests_max) {
  // The output rate of a rank rises with its batch, so the demand is met at one batch: bisection.
  const auto rate = [&](double requests) {
    return requests * decode_point(hw, model, unit, load, requests).tokens_per_s_per_user;
  };
  if (rate(requests_max) < load.output_tokens_per_s_per_rank) return std::nullopt;
  double low = 0;
  double high = requests_max;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (rate(middle) < load.output_tokens_per_s_per_rank ? low : high) = middle;
  }
  return decode_point(hw, model, unit, load, high);
}

}  // namespace fathom::sim
