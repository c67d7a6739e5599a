// A hardware profile: the constants of the cost model, read from profiles/*.toml (docs/simulator.md describes
// the format). A profile may name a `base` and override some of its values; nothing has a default in code.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom::sim {

struct HardwareProfile {
  std::string hbm_place,
      gpus_place;    // "FILE:LINE: FIELD" of hbm_gb and gpus_per_node, which a fleet may not suit
  std::string hash;  // XXH3-64 over every field and value, 16 hexadecimal digits; every output names it
  std::string name;  // "H800"
  std::string kind;  // "measured" or "scaled"

  // [hardware]
  double gpus_per_node, hbm_gb, hbm_reserve_gb, price_usd_per_gpu_hour;
  // [gemm]
  double gemm_launch_us, gemm_peak_tflops, gemm_hbm_tb_per_s, gemm_smoothing, gemm_k_half;
  double gemm_narrow_efficiency_decode, gemm_narrow_efficiency_prefill, gemm_expert_efficiency;
  // [bmm]
  double bmm_launch_us, bmm_peak_tflops, bmm_hbm_tb_per_s;
  // [mla_decode]
  double mla_peak_tflops, mla_hbm_tb_per_s, mla_launch_us;
  // [decode_overhead]
  double attn0_us, attn1_us, shared_us, mlp_us;
  // [decode_step]
  double step_dense_layer_share, step_heads_ms, step_host_ms;
  // [decode_all_to_all]
  double dispatch_latency_us, dispatch_bytes, dispatch_gb_per_s;
  double combine_latency_us, combine_bytes, combine_gb_per_s;
  double dispatch_local_gb_per_s, combine_local_gb_per_s;
  double dispatch_sm_us, dispatch_sm_us_per_token, combine_sm_us, combine_sm_us_per_token;
  // [prefill]
  double prefill_attention_tflops, prefill_sm_share, prefill_in_situ, prefill_bubble;
  double prefill_elementwise_tb_per_s, prefill_elementwise_bytes_per_token, prefill_overhead_us;
  double prefill_host_ms, prefill_rank_budget_ms_per_layer;
  // [prefill_all_to_all]
  double prefill_dispatch_gb_per_s, prefill_combine_gb_per_s, prefill_nodes_per_token, prefill_contention;
  // [kv]
  double kv_read_gb_per_s_per_node, kv_read_latency_ms, kv_handover_ms;
  // [residual]
  double decode_phi, prefill_phi;
};

// The text of a file, or why it cannot be had: the loader follows `base` through it and touches no disk
// itself.
using ReadFile = std::function<Result<std::string>(const std::string& path)>;

// Fails with "file:line: section.field: what is wrong" on a missing, unknown, non-numeric or out-of-range
// constant.
Result<HardwareProfile> load_profile(const std::string& path, const ReadFile& read_file);

// All constants as (dotted name, value), in a fixed order: what the hash covers, and what reports list.
std::vector<std::pair<std::string_view, double>> profile_constants(const HardwareProfile& profile);

// Sets one constant by its dotted name ("residual.decode_phi") and recomputes the hash.
Status set_profile_constant(HardwareProfile& profile, std::string_view name, double value);

// Multiplies one of profile_constants(), within the range the constant may have.
void scale_profile_constant(HardwareProfile& profile, std::string_view name, double factor);

}  // namespace fathom::sim
