// The planner's second half: how a plan moves with its inputs, and a profile fitted to an operator's
// measurements.
#include <cmath>

#include "sim/planner.h"

namespace fathom::sim {
namespace {

constexpr double kStepShare = 0.10;

using Vary = void (*)(PlanInput&, double factor);
struct Knob {
  const char* name;
  Vary vary;
};
constexpr Knob kKnobs[] = {
    {"requests_per_day", [](PlanInput& in, double f) { in.requests_per_day *= f; }},
    {"input_tokens_mean", [](PlanInput& in, double f) { in.input_tokens_mean *= f; }},
    {"output_tokens_mean", [](PlanInput& in, double f) { in.output_tokens_mean *= f; }},
    {"hit_share", [](PlanInput& in, double f) { in.hit_share = std::min(0.99, in.hit_share * f); }},
    {"slo_ttft_s", [](PlanInput& in, double f) { in.slo_ttft_s *= f; }},
    {"slo_tokens_per_s_per_user", [](PlanInput& in, double f) { in.slo_tokens_per_s_per_user *= f; }},
    {"price_usd_per_gpu_hour", [](PlanInput& in, double f) { in.hw.price_usd_per_gpu_hour *= f; }},
    {"mtp_acceptance",
     [](PlanInput& in, double f) { in.mtp_acceptance = std::min(1.0, in.mtp_acceptance * f); }},
    {"expert_imbalance_above_1", [](PlanInput& in, double f) { in.expert_imbalance_factor *= f; }},
    {"kv_imbalance", [](PlanInput& in, double f) { in.kv_imbalance *= f; }},
    {"gemm_peak_tflops", [](PlanInput& in, double f) { in.hw.gemm_peak_tflops *= f; }},
    {"hbm_bandwidth",
     [](PlanInput& in, double f) {
       in.hw.gemm_hbm_tb_per_s *= f;
       in.hw.bmm_hbm_tb_per_s *= f;
       in.hw.mla_hbm_tb_per_s *= f;
     }},
    {"hbm_gb", [](PlanInput& in, double f) { in.hw.hbm_gb *= f; }},
    {"network_bandwidth",
     [](PlanInput& in, double f) {
       in.hw.dispatch_gb_per_s *= f;
       in.hw.combine_gb_per_s *= f;
       in.hw.prefill_dispatch_gb_per_s *= f;
       in.hw.prefill_combine_gb_per_s *= f;
     }},
    {"decode_phi", [](PlanInput& in, double f) { in.hw.decode_phi *= f; }},
};

double fluid_cost(const PlanInput& in, const PlanResult& plan) {
  return plan.node_hours_fluid * in.hw.gpus_per_node * in.hw.price_usd_per_gpu_hour /
         (in.requests_per_day * in.output_tokens_mean);
}

struct Fit {
  double model_x_measured = 0, model_squared = 0;
  std::vector<std::pair<double, double>> rows;  // modelled at phi 1, measured
  void add(double model, double measured) {
    model_x_measured += model * measured;
    model_squared += model * model;
    rows.emplace_back(model, measured);
  }
  double phi() const { return model_x_measured / model_squared; }
  double rms_percent() const {
    double sum = 0;
    for (const auto& [model, measured] : rows) {
      const double error = 100 * (model * phi() / measured - 1);
      sum += error * error;
    }
    return std::sqrt(sum / static_cast<double>(rows.size()));
  }
};

}  // namespace

std::vector<Sensitivity> plan_sensitivities(const PlanInput& input, const PlanResult& plan) {
  std::vector<Sensitivity> out;
  // The chosen sizes stay: an operator asks what a changed input does to the fleet that stands.
  PlanInput base = input;
  base.decode_nodes = plan.decode.nodes;
  base.prefill_nodes = plan.prefill.nodes;
  const double cost = fluid_cost(input, plan);
  for (const Knob& knob : kKnobs) {
    Sensitivity s;
    s.input = knob.name;
    for (const double sign : {-1.0, 1.0}) {
      PlanInput varied = base;
      knob.vary(varied, 1 + sign * kStepShare);
      const PlanOutcome outcome = make_plan(varied);
      if (!outcome.plan) continue;
      const double hours = outcome.plan->node_hours_fluid / plan.node_hours_fluid - 1;
      const double usd =
          cost > 0 ? fluid_cost(varied, *outcome.plan) / cost - 1 : 0;  // nothing costs anything
      (sign < 0 ? s.node_hours_minus : s.node_hours_plus) = hours;
      (sign < 0 ? s.cost_minus : s.cost_plus) = usd;
    }
    out.push_back(s);
  }
  return out;
}

Result<ProfileFit> fit_profile(const std::vector<MeasuredStep>& steps, const HardwareProfile& hw,
                               const ModelShape& model, const DecodeUnitShape& decode,
                               const PrefillUnitShape& prefill) {
  ProfileFit fit{hw};
  HardwareProfile plain = hw;
  plain.decode_phi = plain.prefill_phi = 1;
  Fit decode_fit, prefill_fit;
  for (const MeasuredStep& step : steps) {
    const double load = step.load_per_rank;
    if (step.decode) {
      const DecodeLoad at{load, load, load * step.length};
      decode_fit.add(decode_step_us(plain, model, decode, at, decode.ep > 1) / 1e3, step.time_ms);
    } else {
      const double layer_us = prefill_layer_us(plain, model, prefill, {load, load * step.length});
      prefill_fit.add(model.layers * layer_us / 1e3 + plain.prefill_host_ms, step.time_ms);
    }
  }
  if (!decode_fit.rows.empty()) {
    RETURN_IF_ERROR(set_profile_constant(fit.hw, "residual.decode_phi", decode_fit.phi()));
    fit.decode_rows = static_cast<int>(decode_fit.rows.size());
    fit.decode_rms_percent = decode_fit.rms_percent();
  }
  if (!prefill_fit.rows.empty()) {
    RETURN_IF_ERROR(set_profile_constant(fit.hw, "residual.prefill_phi", prefill_fit.phi()));
    fit.prefill_rows = static_cast<int>(prefill_fit.rows.size());
    fit.prefill_rms_percent = prefill_fit.rms_percent();
  }
  return fit;
}

}  // namespace fathom::sim
