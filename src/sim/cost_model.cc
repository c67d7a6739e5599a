// Rooflines of kernels, layers and steps; constants come from the profile, formulas from the published
// kernels.
#include "sim/cost_model.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/det_math.h"
#include "sim/overlap_times.h"

namespace fathom::sim {
namespace {

constexpr double kMicro = 1e6;  // seconds to microseconds
constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
constexpr double kBf16Bytes = 2;
constexpr double kV3Vocab = 129280, kV3Hidden = 7168;  // what a profile's heads_ms was taken on
constexpr double kAllActiveCopies = 30;  // tokens per expert slot above which every slot has work

// Of an all-to-all, what leaves the node and what goes between its GPUs; a rank alone sends nothing.
double remote_share(const HardwareProfile& hw, double ep) { return std::max(0.0, 1 - hw.gpus_per_node / ep); }
double local_share(const HardwareProfile& hw, double ep) { return ep > 1 ? 1 - remote_share(hw, ep) : 0; }

// Both run at once.
double transfer_us(const HardwareProfile& hw, double bytes, double ep, double gb_per_s,
                   double local_gb_per_s) {
  const double remote = remote_share(hw, ep) * bytes / (gb_per_s * kGiga);
  const double local = local_share(hw, ep) * bytes / (local_gb_per_s * kGiga);
  return kMicro * std::max(remote, local);
}

double narrow_n(const ModelShape& m) { return m.q_lora_rank + m.latent_dim(); }
double q_dim(const ModelShape& m) { return m.heads * (m.qk_nope_head_dim + m.qk_rope_head_dim); }
double kv_b_dim(const ModelShape& m) { return m.heads * (m.qk_nope_head_dim + m.v_head_dim); }
double o_dim(const ModelShape& m) { return m.heads * m.v_head_dim; }

// The query projection: from the low-rank query, or straight from the hidden state where a model has none.
double q_in(const ModelShape& m) { return m.q_lora_rank > 0 ? m.q_lora_rank : m.hidden; }

// Of `slots` expert slots of a rank that gets `copies` (token, expert) pairs, how many have any work.
double active_slots(double slots, double copies) {
  if (copies > kAllActiveCopies * slots) return slots;
  if (slots <= 1) return std::min(slots, copies);
  return std::max(1.0, slots * (1 - det_pow(1 - 1 / slots, copies)));
}

// Gate and up in one product, then down.
double ffn_us(const HardwareProfile& hw, const ModelShape& m, double tokens, double width, double groups,
              double sm) {
  if (width <= 0) return 0;  // a model without shared experts
  return gemm_us(hw, {tokens, 2 * width, m.hidden, groups, sm}) +
         gemm_us(hw, {tokens, m.hidden, width, groups, sm});
}

}  // namespace

double gemm_us(const HardwareProfile& hw, const Gemm& g) {
  const double flop = 2 * g.groups * g.m * g.n * g.k;
  const double bytes = g.groups * (g.m * g.k + g.n * g.k + 2 * g.m * g.n);  // FP8 in, BF16 out
  const double roof = hw.gemm_peak_tflops * kTera * g.sm_share * g.efficiency * g.k / (g.k + hw.gemm_k_half);
  const double compute_us = flop / roof * kMicro;
  const double memory_us = bytes / (hw.gemm_hbm_tb_per_s * kTera) * kMicro;
  const double n = hw.gemm_smoothing;
  return hw.gemm_launch_us + det_pow(det_pow(compute_us, n) + det_pow(memory_us, n), 1 / n);
}

double bmm_us(const HardwareProfile& hw, double heads, double m, double in, double out) {
  const double bytes = kBf16Bytes * heads * (in * out + m * (in + out));
  const double flop = 2 * heads * m * in * out;
  return hw.bmm_launch_us +
         kMicro * std::max(bytes / (hw.bmm_hbm_tb_per_s * kTera), flop / (hw.bmm_peak_tflops * kTera));
}

double mla_decode_us(const HardwareProfile& hw, const ModelShape& model, double q, double kv_tokens) {
  const double flop = 2 * model.heads * q * kv_tokens * (model.latent_dim() + model.kv_lora_rank);
  const double bytes = kv_tokens * model.latent_dim() * kBf16Bytes;
  return hw.mla_launch_us +
         kMicro * std::max(flop / (hw.mla_peak_tflops * kTera), bytes / (hw.mla_hbm_tb_per_s * kTera));
}

double dispatch_us(const HardwareProfile& hw, const ModelShape& model, double tokens, double ep) {
  const double bytes = tokens * model.experts_per_token * hw.dispatch_bytes;
  return hw.dispatch_latency_us +
         transfer_us(hw, bytes, ep, hw.dispatch_gb_per_s, hw.dispatch_local_gb_per_s);
}

double combine_us(const HardwareProfile& hw, const ModelShape& model, double tokens, double ep) {
  const double bytes = tokens * model.experts_per_token * hw.combine_bytes;
  return hw.combine_latency_us + transfer_us(hw, bytes, ep, hw.combine_gb_per_s, hw.combine_local_gb_per_s);
}

DecodeStages decode_stages(const HardwareProfile& hw, const ModelShape& model, const DecodeUnitShape& unit,
                           const DecodeLoad& load, bool two_micro_batches) {
  const double share = two_micro_batches ? 0.5 : 1.0;
  const double tokens = load.requests_max * share * unit.tokens_per_request;
  const double tokens_mean = load.requests_mean * share * unit.tokens_per_request;
  const double kv_tokens = load.kv_tokens_max * share;
  DecodeStages s;
  s.attn0 = gemm_us(hw, {tokens, narrow_n(model), model.hidden, 1, 1, hw.gemm_narrow_efficiency_decode}) +
            gemm_us(hw, {tokens, q_dim(model), q_in(model)}) +
            bmm_us(hw, model.heads, tokens, model.qk_nope_head_dim, model.kv_lora_rank) + hw.attn0_us;
  s.attn1 = mla_decode_us(hw, model, unit.tokens_per_request, kv_tokens) +
            bmm_us(hw, model.heads, tokens, model.kv_lora_rank, model.v_head_dim) +
            gemm_us(hw, {tokens, model.hidden, o_dim(model)}) + hw.attn1_us;
  s.shared = ffn_us(hw, model, tokens, model.moe_intermediate * model.shared_experts, 1, 1) + hw.shared_us;
  const double copies = model.experts_per_token * tokens_mean;
  const double groups = active_slots(unit.slots / unit.ep, copies);
  const double per_slot = copies / groups * unit.expert_imbalance;
  s.mlp =
      ffn_us(hw, model, per_slot, model.moe_intermediate, groups, 1) / hw.gemm_expert_efficiency + hw.mlp_us;
  s.dispatch_sm = hw.dispatch_sm_us + hw.dispatch_sm_us_per_token * tokens_mean;
  s.combine_sm = hw.combine_sm_us + hw.combine_sm_us_per_token * tokens_mean;
  // A transfer takes no less than its kernels.
  s.dispatch = std::max(s.dispatch_sm, dispatch_us(hw, model, tokens_mean * unit.expert_imbalance, unit.ep));
  s.combine = std::max(s.combine_sm, combine_us(hw, model, tokens_mean * unit.expert_imbalance, unit.ep));
  return s;
}

double decode_step_us(const HardwareProfile& hw, const ModelShape& model, const DecodeUnitShape& unit,
                      double layer_us) {
  const double dense = model.dense_layers;
  const double layers =
      model.layers - dense + dense * hw.step_dense_layer_share + (unit.mtp ? model.mtp_layers : 0);
  const double head_size = model.vocab * model.hidden / (kV3Vocab * kV3Hidden);
  const double heads_us = hw.step_heads_ms * 1e3 * head_size * (unit.mtp ? 1 + model.mtp_layers : 1);
  return hw.decode_phi * (layers * layer_us + heads_us + hw.step_host_ms * 1e3);
}

double decode_step_us(const HardwareProfile& hw, const ModelShape& model, const DecodeUnitShape& unit,
                      const DecodeLoad& load, bool overlap) {
  const DecodeStages whole = decode_stages(hw, model, unit, load, false);
  const SteadyLayer layer =
      overlap ? decode_layer(decode_stages(hw, model, unit, load), whole) : plain_decode_layer(whole);
  return decode_step_us(hw, model, unit, layer.layer_us);
}

double prefill_compute_us(const HardwareProfile& hw, const ModelShape& model, const PrefillUnitShape& unit,
                          const PrefillLoad& load, bool free_gpu) {
  const double sm = free_gpu ? 1 : hw.prefill_sm_share * hw.prefill_in_situ;
  const double t = load.tokens;
  const double with_cached = t * (1 + unit.cached_per_computed);
  const double groups = unit.slots / unit.ep;
  const double per_slot = model.experts_per_token * t * unit.ep / unit.slots * unit.expert_imbalance;
  const double projections =
      gemm_us(hw, {t, narrow_n(model), model.hidden, 1, sm, hw.gemm_narrow_efficiency_prefill}) +
      gemm_us(hw, {t, q_dim(model), q_in(model), 1, sm}) +
      gemm_us(hw, {with_cached, kv_b_dim(model), model.kv_lora_rank, 1, sm}) +
      gemm_us(hw, {t, model.hidden, o_dim(model), 1, sm});
  const double experts = ffn_us(hw, model, per_slot, model.moe_intermediate, groups, sm) +
                         ffn_us(hw, model, t, model.moe_intermediate * model.shared_experts, 1, sm);
  const double pair_flop =
      2 * model.heads * (model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim);
  const double attention =
      pair_flop * load.attended_pairs / (hw.prefill_attention_tflops * kTera * sm) * kMicro;
  const double elementwise =
      t * hw.prefill_elementwise_bytes_per_token / (hw.prefill_elementwise_tb_per_s * kTera * sm) * kMicro;
  return projections + experts + attention + elementwise + (free_gpu ? 0 : hw.prefill_overhead_us);
}

PrefillWire prefill_all_to_all(const HardwareProfile& hw, const ModelShape& model,
                               const PrefillUnitShape& unit, double tokens) {
  const double nodes = std::ceil(unit.ep / hw.gpus_per_node);
  double copies = std::min(hw.prefill_nodes_per_token, nodes);
  double dispatch_gb_per_s = hw.prefill_dispatch_gb_per_s, combine_gb_per_s = hw.prefill_combine_gb_per_s;
  if (nodes == 1) {
    // Distinct ranks of a token's experts.
    copies = unit.ep > 1 ? unit.ep * (1 - det_pow(1 - 1 / unit.ep, model.experts_per_token)) : 0;
    dispatch_gb_per_s = hw.dispatch_local_gb_per_s, combine_gb_per_s = hw.combine_local_gb_per_s;
  }
  const double tokens_sent = tokens * copies;
  const double seconds = tokens_sent * hw.dispatch_bytes / (dispatch_gb_per_s * kGiga) +
                         tokens_sent * hw.combine_bytes / (combine_gb_per_s * kGiga);
  const double wire_us = kMicro * seconds * hw.prefill_contention;
  const double dispatch_share = hw.dispatch_bytes / dispatch_gb_per_s;
  const double combine_share = hw.combine_bytes / combine_gb_per_s;
  const double dispatch_us = wire_us * dispatch_share / (dispatch_share + combine_share);
  return {dispatch_us, wire_us - dispatch_us};
}

double prefill_layer_us(const HardwareProfile& hw, const ModelShape& model, const PrefillUnitShape& unit,
                        const PrefillLoad& load) {
  return hw.prefill_bubble *
         (prefill_compute_us(hw, model, unit, load) + prefill_exposed_us(hw, model, unit, load));
}

LayerCost fit_prefill_cost(const HardwareProfile& hw, const ModelShape& model, const PrefillUnitShape& unit) {
  const double low = prefill_compute_us(hw, model, unit, {8192, 0});
  const double high = prefill_compute_us(hw, model, unit, {16384, 0});
  const double pairs = 1e8;
  LayerCost cost;
  cost.a_us_per_token = (high - low) / 8192;
  cost.c0_us = low - (high - low);
  cost.b_us_per_pair = (prefill_compute_us(hw, model, unit, {16384, pairs}) - high) / pairs;
  const double exposed_low = prefill_exposed_us(hw, model, unit, {8192, 8192 * unit.context_tokens});
  const double exposed_high = prefill_exposed_us(hw, model, unit, {16384, 16384 * unit.context_tokens});
  cost.exposed_us_per_token = std::max(0.0, exposed_high - exposed_low) / 8192;
  if (cost.exposed_us_per_token > 0)
    cost.exposed_from_tokens = 8192 - exposed_low / cost.exposed_us_per_token;
  return cost;
}

double prefill_forward_us(const HardwareProfile& hw, const ModelShape& model, const LayerCost& cost,
                          double rank_us_max, double tokens) {
  const double layer_us = hw.prefill_bubble * (cost.c0_us + rank_us_max + cost.exposed_us(tokens));
  return hw.prefill_phi * (model.layers * layer_us + hw.prefill_host_ms * 1e3);
}

double kv_room_tokens(const HardwareProfile& hw, const ModelShape& model, double slots_per_rank, bool mtp) {
  const double free_bytes =
      (hw.hbm_gb - hw.hbm_reserve_gb) * kGiga - weight_bytes_per_rank(model, slots_per_rank, mtp);
  return std::max(0.0, free_bytes) / model.kv_bytes_per_token(mtp);
}

double isca_all_to_all_us(double tokens, double experts, double hidden, double gb_per_s) {
  return (1 + 2) * tokens * experts * hidden / (gb_per_s * kGiga) * kMicro;
}

}  // namespace fathom::sim
