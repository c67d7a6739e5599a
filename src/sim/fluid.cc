// A decode unit at a given batch: step time and user speed.
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

}  // namespace fathom::sim
