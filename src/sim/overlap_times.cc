// Stage times of the cost model as the overlap tables want them.
#include "sim/overlap_times.h"

#include <array>

namespace fathom::sim {

OverlapStageTimes overlap_times(const DecodeStages& s) {
  OverlapStageTimes times;
  times.attn0_us = s.attn0;
  times.attn1_us = s.attn1;
  times.shared_us = s.shared;
  times.dispatch_us = s.dispatch;
  times.dispatch_send_us = s.dispatch_sm;
  times.mlp_us = s.mlp;
  times.combine_us = s.combine;
  times.combine_send_us = s.combine_sm;
  return times;
}

SteadyLayer decode_layer(const DecodeStages& halves, const DecodeStages& whole) {
  const OverlapStageTimes half = overlap_times(halves);
  const std::array<OverlapStageTimes, 2> both = {half, half};
  return shorter_layer(decode_table(), both, overlap_times(whole));
}

SteadyLayer plain_decode_layer(const DecodeStages& whole) {
  const OverlapStageTimes times = overlap_times(whole);
  return steady_layer(plain_table(), {&times, 1});
}

OverlapStageTimes prefill_overlap_times(const HardwareProfile& hw, const ModelShape& model,
                                        const PrefillUnitShape& unit, const PrefillLoad& rank_load) {
  const PrefillLoad half{rank_load.tokens / 2, rank_load.attended_pairs / 2};
  const double all_us = prefill_compute_us(hw, model, unit, half);
  const double sm = hw.prefill_sm_share * hw.prefill_in_situ;
  const double per_slot =
      model.experts_per_token * half.tokens * unit.ep / unit.slots * unit.expert_imbalance;
  const double width = model.moe_intermediate;
  const auto ffn = [&](double tokens, double groups, double ffn_width) {
    if (ffn_width == 0) return 0.0;  // a model without shared experts
    return gemm_us(hw, {tokens, 2 * ffn_width, model.hidden, groups, sm}) +
           gemm_us(hw, {tokens, model.hidden, ffn_width, groups, sm});
  };
  OverlapStageTimes times;
  times.mlp_us = ffn(per_slot, unit.slots / unit.ep, width);
  times.shared_us = ffn(half.tokens, 1, width * model.shared_experts);
  times.attn0_us = 0;  // prefill's attention is one stage
  times.attn1_us = all_us - times.mlp_us - times.shared_us;
  const PrefillWire wire = prefill_all_to_all(hw, model, unit, half.tokens);
  times.dispatch_us = wire.dispatch_us;
  times.combine_us = wire.combine_us;
  return times;
}

double prefill_exposed_us(const HardwareProfile& hw, const ModelShape& model, const PrefillUnitShape& unit,
                          const PrefillLoad& rank_load) {
  const OverlapStageTimes half = prefill_overlap_times(hw, model, unit, rank_load);
  const std::array<OverlapStageTimes, 2> both = {half, half};
  return steady_layer(prefill_table(), both).idle_us;
}

}  // namespace fathom::sim
