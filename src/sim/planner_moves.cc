// Figures, constraints and sensitivities of a plan, by planning again with something changed.
#include "sim/planner_moves.h"

#include <algorithm>
#include <cmath>

namespace fathom::sim {
namespace {

constexpr double kBindsAboveShare = 0.001;
constexpr double kHitShareMax = 0.99;

constexpr PlanFigure kFigures[] = {
    {"decode_unit_nodes", [](const PlanResult& p) { return double(p.decode.nodes); }},
    {"decode_redundant_experts", [](const PlanResult& p) { return double(p.decode.redundant); }},
    {"decode_expert_imbalance", [](const PlanResult& p) { return p.decode.expert_imbalance; }},
    {"decode_requests_per_rank", [](const PlanResult& p) { return p.decode.requests_per_rank; }},
    {"decode_step_ms", [](const PlanResult& p) { return p.decode.step_ms; }},
    {"decode_output_tokens_per_s_per_unit", [](const PlanResult& p) { return p.decode.output_tokens_per_s; }},
    {"decode_kv_use_share", [](const PlanResult& p) { return p.decode.kv_use_share; }},
    {"decode_units_peak", [](const PlanResult& p) { return double(p.peak_decode_units); }},
    {"decode_nodes_peak", [](const PlanResult& p) { return double(p.peak_decode_units * p.decode.nodes); }},
    {"decode_tokens_per_s_per_user", [](const PlanResult& p) { return p.decode.tokens_per_s_per_user; }},
    {"decode_tokens_per_s_per_user_peak", [](const PlanResult& p) { return p.tokens_per_s_per_user_peak; }},
    {"decode_tokens_per_s_per_user_after_loss",
     [](const PlanResult& p) { return p.speed_after_decode_loss; }},
    {"prefill_unit_nodes", [](const PlanResult& p) { return double(p.prefill.nodes); }},
    {"prefill_redundant_experts", [](const PlanResult& p) { return double(p.prefill.redundant); }},
    {"prefill_expert_imbalance", [](const PlanResult& p) { return p.prefill.expert_imbalance; }},
    {"prefill_budget_tokens_per_rank", [](const PlanResult& p) { return p.prefill.budget_tokens_per_rank; }},
    {"prefill_forward_s", [](const PlanResult& p) { return p.prefill.forward_s; }},
    {"prefill_input_tokens_per_s_per_unit", [](const PlanResult& p) { return p.prefill.input_tokens_per_s; }},
    {"prefill_units_peak", [](const PlanResult& p) { return double(p.peak_prefill_units); }},
    {"prefill_nodes_peak",
     [](const PlanResult& p) { return double(p.peak_prefill_units * p.prefill.nodes); }},
    {"prefill_use_share_peak", [](const PlanResult& p) { return p.prefill_use_peak; }},
    {"prefill_use_share_after_loss", [](const PlanResult& p) { return p.prefill_use_after_loss; }},
    {"ttft_s_p99", [](const PlanResult& p) { return p.prefill.ttft_s_p99; }},
    {"nodes_peak", [](const PlanResult& p) { return double(p.peak_nodes); }},
    {"nodes_mean", [](const PlanResult& p) { return p.nodes_mean; }},
    {"node_hours", [](const PlanResult& p) { return p.node_hours; }},
    {"node_hours_in_fractions_of_units", [](const PlanResult& p) { return p.node_hours_fluid(); }},
    {"spare_nodes", [](const PlanResult& p) { return double(p.spare_nodes); }},
    {"cost_usd", [](const PlanResult& p) { return p.cost_usd_per_day; }},
    {"cost_usd_per_million_output_tokens",
     [](const PlanResult& p) { return p.cost_usd_per_million_output_tokens; }},
    {"cost_usd_per_million_tokens", [](const PlanResult& p) { return p.cost_usd_per_million_tokens; }},
    {"kv_disk_tb", [](const PlanResult& p) { return p.kv_disk_tb; }},
    {"kv_write_gb_per_s_peak", [](const PlanResult& p) { return p.kv_write_gb_per_s_peak; }},
    {"kv_read_gb_per_s_peak", [](const PlanResult& p) { return p.kv_read_gb_per_s_peak; }},
};

using Vary = void (*)(PlanInput&, double factor);

void vary_hbm_bandwidth(PlanInput& in, double f) {
  in.hw.gemm_hbm_tb_per_s *= f;
  in.hw.bmm_hbm_tb_per_s *= f;
  in.hw.mla_hbm_tb_per_s *= f;
  in.hw.prefill_elementwise_tb_per_s *= f;
}

void vary_compute(PlanInput& in, double f) {
  in.hw.gemm_peak_tflops *= f;
  in.hw.bmm_peak_tflops *= f;
  in.hw.mla_peak_tflops *= f;
  in.hw.prefill_attention_tflops *= f;
}

void vary_network(PlanInput& in, double f) {
  in.hw.dispatch_gb_per_s *= f;
  in.hw.combine_gb_per_s *= f;
  in.hw.dispatch_local_gb_per_s *= f;
  in.hw.combine_local_gb_per_s *= f;
  in.hw.prefill_dispatch_gb_per_s *= f;
  in.hw.prefill_combine_gb_per_s *= f;
}

// The busiest hour's rate over the mean, times f.
void vary_peak(PlanInput& in, double f) {
  double peak = in.peak_over_mean, sum = 0;
  for (const double s : in.hourly_share) sum += s;
  if (sum > 0) peak = *std::max_element(in.hourly_share.begin(), in.hourly_share.end()) / (sum / 24);
  if (peak > 1) scale_day_shape(in, std::max(0.0, (peak * f - 1) / (peak - 1)));
}

double peak_of(const PlanInput& in) {
  double sum = 0, most = 0;
  for (const double s : in.hourly_share) {
    sum += s;
    most = std::max(most, s);
  }
  return sum > 0 ? most / (sum / 24) : in.peak_over_mean;
}

struct Knob {
  const char* name;
  double (*value)(const PlanInput&);
  Vary vary;
};

double times_up_to(double value, double f, double most) { return std::min(most, value * f); }

constexpr Knob kKnobs[] = {
    {"requests_per_day", [](const PlanInput& in) { return in.requests_per_day; },
     [](PlanInput& in, double f) { in.requests_per_day *= f; }},
    {"peak_over_mean", peak_of, vary_peak},
    {"input_tokens_mean", [](const PlanInput& in) { return in.input_tokens_mean; },
     [](PlanInput& in, double f) { in.input_tokens_mean *= f; }},
    {"input_cv2", [](const PlanInput& in) { return in.input_cv2; },
     [](PlanInput& in, double f) { in.input_cv2 *= f; }},
    {"output_tokens_mean", [](const PlanInput& in) { return in.output_tokens_mean; },
     [](PlanInput& in, double f) { in.output_tokens_mean *= f; }},
    {"output_cv2", [](const PlanInput& in) { return in.output_cv2; },
     [](PlanInput& in, double f) { in.output_cv2 *= f; }},
    {"hit_share", [](const PlanInput& in) { return in.hit_share; },
     [](PlanInput& in, double f) { in.hit_share = times_up_to(in.hit_share, f, kHitShareMax); }},
    {"kv_retention_hours", [](const PlanInput& in) { return in.kv_retention_hours; },
     [](PlanInput& in, double f) { in.kv_retention_hours *= f; }},
    {"slo_ttft_s", [](const PlanInput& in) { return in.slo_ttft_s; },
     [](PlanInput& in, double f) { in.slo_ttft_s *= f; }},
    {"slo_tokens_per_s_per_user", [](const PlanInput& in) { return in.slo_tokens_per_s_per_user; },
     [](PlanInput& in, double f) { in.slo_tokens_per_s_per_user *= f; }},
    {"mtp_acceptance", [](const PlanInput& in) { return in.mtp_acceptance; },
     [](PlanInput& in, double f) { in.mtp_acceptance = times_up_to(in.mtp_acceptance, f, 1); }},
    {"kv_imbalance", [](const PlanInput& in) { return in.kv_imbalance; },
     [](PlanInput& in, double f) { in.kv_imbalance = std::max(1.0, in.kv_imbalance * f); }},
    {"requests_imbalance", [](const PlanInput& in) { return in.requests_imbalance; },
     [](PlanInput& in, double f) { in.requests_imbalance = std::max(1.0, in.requests_imbalance * f); }},
    {"expert_popularity_sigma", [](const PlanInput& in) { return in.expert_popularity_sigma; },
     [](PlanInput& in, double f) { in.expert_popularity_sigma *= f; }},
    {"expert_popularity_drift", [](const PlanInput& in) { return in.expert_popularity_drift; },
     [](PlanInput& in, double f) { in.expert_popularity_drift *= f; }},
    {"expert_imbalance_scale", [](const PlanInput& in) { return in.expert_imbalance_scale; },
     [](PlanInput& in, double f) { in.expert_imbalance_scale *= f; }},
    {"prefill_use_max", [](const PlanInput& in) { return in.prefill_use_max; },
     [](PlanInput& in, double f) { in.prefill_use_max = times_up_to(in.prefill_use_max, f, 1); }},
    {"prefill_packing", [](const PlanInput& in) { return in.prefill_packing; },
     [](PlanInput& in, double f) { in.prefill_packing = times_up_to(in.prefill_packing, f, 1); }},
    {"ttft_p99_forwards", [](const PlanInput& in) { return in.ttft_p99_forwards; },
     [](PlanInput& in, double f) { in.ttft_p99_forwards = std::max(1.0, in.ttft_p99_forwards * f); }},
    {"redundancy_gain_min", [](const PlanInput& in) { return in.redundancy_gain_min; },
     [](PlanInput& in, double f) { in.redundancy_gain_min *= f; }},
    {"compute (every peak of the profile)", [](const PlanInput& in) { return in.hw.gemm_peak_tflops; },
     vary_compute},
    {"hbm_bandwidth (every one of the profile)", [](const PlanInput& in) { return in.hw.gemm_hbm_tb_per_s; },
     vary_hbm_bandwidth},
    {"network_bandwidth (every one of the profile)",
     [](const PlanInput& in) { return in.hw.dispatch_gb_per_s; }, vary_network},
};

// What can be had more or less of, as `tighter` says.
struct Constraint {
  const char* name;
  void (*relax)(PlanInput&, double share);
};

double excess_less(double value, double share) { return 1 + (value - 1) * (1 - share); }

constexpr Constraint kConstraints[] = {
    {"time to first token", [](PlanInput& in, double s) { in.slo_ttft_s *= 1 + s; }},
    {"tokens/s per user", [](PlanInput& in, double s) { in.slo_tokens_per_s_per_user *= 1 - s; }},
    {"KV memory", [](PlanInput& in, double s) { in.hw.hbm_gb *= 1 + s; }},
    {"tokens of a forward", [](PlanInput& in, double s) { in.hw.prefill_rank_budget_ms_per_layer *= 1 + s; }},
    {"KV read bandwidth", [](PlanInput& in, double s) { in.hw.kv_read_gb_per_s_per_node *= 1 + s; }},
    {"network bandwidth", [](PlanInput& in, double s) { vary_network(in, 1 + s); }},
    {"memory bandwidth", [](PlanInput& in, double s) { vary_hbm_bandwidth(in, 1 + s); }},
    {"compute", [](PlanInput& in, double s) { vary_compute(in, 1 + s); }},
    {"imbalance",
     [](PlanInput& in, double s) {
       in.kv_imbalance = excess_less(in.kv_imbalance, s);
       in.requests_imbalance = excess_less(in.requests_imbalance, s);
       in.expert_imbalance_scale *= 1 - s;
       in.prefill_packing = 1 - (1 - in.prefill_packing) * (1 - s);
     }},
    {"peak of the load", [](PlanInput& in, double s) { scale_day_shape(in, 1 - s); }},
};

// One service's nodes, in fractions and in whole units; a server that does both is one service.
struct ServiceNodes {
  std::string name;
  FluidNodes fluid;
  double whole_hours = 0, whole_peak = 0, spare_nodes = 0;
};

std::vector<ServiceNodes> services_of(const PlanInput& in, const PlanResult& plan) {
  ServiceNodes decode{"decode", plan.decode_fluid}, prefill{"prefill", plan.prefill_fluid};
  for (const HourPlan& hour : plan.hours) {
    decode.whole_hours += hour.decode_units * plan.decode.nodes;
    prefill.whole_hours += hour.prefill_units * plan.prefill.nodes;
  }
  decode.whole_peak = plan.peak_decode_units * plan.decode.nodes;
  prefill.whole_peak = plan.peak_prefill_units * plan.prefill.nodes;
  decode.spare_nodes = in.spare_units * plan.decode.nodes;
  prefill.spare_nodes = in.spare_units * plan.prefill.nodes;
  if (!plan.colocated) return {decode, prefill};
  decode.name = "server";
  decode.fluid.node_hours += prefill.fluid.node_hours;
  decode.fluid.peak_nodes += prefill.fluid.peak_nodes;
  return {decode};
}

// What whole units, spares and pinned sizes add, a tenth of it.
void add_of_counts(const PlanInput& in, const PlanResult& plan, ExpertSpreads& spreads,
                   std::vector<BindingConstraint>& out) {
  for (const ServiceNodes& s : services_of(in, plan)) {
    const double spare_hours = s.spare_nodes * static_cast<double>(plan.hours.size());
    out.push_back({s.name, "whole units and hours",
                   kStepShare * (s.whole_hours - spare_hours - s.fluid.node_hours) / plan.node_hours,
                   kStepShare * (s.whole_peak - s.spare_nodes - s.fluid.peak_nodes) / plan.peak_nodes});
    out.push_back({s.name, "N+1 spare units", kStepShare * spare_hours / plan.node_hours,
                   kStepShare * s.spare_nodes / plan.peak_nodes});
  }
  for (const bool decode : {true, false}) {
    if ((decode ? in.decode_nodes : in.prefill_nodes) == 0) continue;
    PlanInput free = in;
    (decode ? free.decode_nodes : free.prefill_nodes) = 0;
    const PlanOutcome outcome = make_plan(free, spreads);
    if (!outcome.plan) continue;
    out.push_back({decode ? "decode" : "prefill", "the unit size asked for",
                   kStepShare * (1 - outcome.plan->node_hours / plan.node_hours),
                   kStepShare * (1.0 - 1.0 * outcome.plan->peak_nodes / plan.peak_nodes)});
  }
}

MovedPlan moved_plan(const PlanInput& moved, const PlanInput& input, const PlanResult& plan,
                     ExpertSpreads& spreads) {
  MovedPlan out;
  const PlanOutcome anew = make_plan(moved, spreads);
  if (anew.plan) {
    for (const PlanFigure& figure : kFigures) out.figures.push_back(figure.value(*anew.plan));
    out.binding = first_bindings(binding_constraints(moved, *anew.plan, spreads));
  } else {
    out.reason = anew.reason;
  }
  PlanInput kept = at_sizes_of(moved, plan);
  kept.nodes_max = kNodesMax;
  const PlanOutcome standing = make_plan(kept, spreads);
  if (!standing.plan) return out;
  const double hours = standing.plan->node_hours_fluid() / plan.node_hours_fluid();
  out.node_hours_change = hours - 1;
  const double price = input.hw.price_usd_per_gpu_hour;
  const double tokens = moved.requests_per_day * moved.output_tokens_mean;
  const double tokens_before = input.requests_per_day * input.output_tokens_mean;
  out.cost_change =  // nothing costs anything: no change
      price > 0 ? hours * moved.hw.price_usd_per_gpu_hour / price * tokens_before / tokens - 1 : 0;
  return out;
}

double constant_of(const HardwareProfile& hw, std::string_view wanted) {
  for (const auto& [name, value] : profile_constants(hw)) {
    if (name == wanted) return value;
  }
  return 0;
}

}  // namespace

std::span<const PlanFigure> plan_figures() { return kFigures; }

std::vector<BindingConstraint> binding_constraints(const PlanInput& input, const PlanResult& plan,
                                                   ExpertSpreads& spreads) {
  std::vector<BindingConstraint> out;
  PlanInput standing = at_sizes_of(input, plan);
  standing.nodes_max = kNodesMax;
  const std::vector<ServiceNodes> before = services_of(input, plan);
  for (const Constraint& constraint : kConstraints) {
    PlanInput relaxed = standing;
    constraint.relax(relaxed, kStepShare);
    const PlanOutcome outcome = make_plan(relaxed, spreads);
    if (!outcome.plan) continue;
    const std::vector<ServiceNodes> after = services_of(input, *outcome.plan);
    for (size_t i = 0; i < before.size(); ++i) {
      out.push_back({before[i].name, constraint.name,
                     (before[i].fluid.node_hours - after[i].fluid.node_hours) / plan.node_hours,
                     (before[i].fluid.peak_nodes - after[i].fluid.peak_nodes) / plan.peak_nodes});
    }
  }
  add_of_counts(input, plan, spreads, out);
  std::erase_if(out, [](const BindingConstraint& b) {
    return std::max(b.node_hours_saved_share, b.peak_nodes_saved_share) < kBindsAboveShare;
  });
  std::stable_sort(out.begin(), out.end(), [](const BindingConstraint& a, const BindingConstraint& b) {
    return a.node_hours_saved_share > b.node_hours_saved_share;
  });
  return out;
}

std::string first_bindings(const std::vector<BindingConstraint>& binding) {
  std::string out, seen;
  for (const BindingConstraint& b : binding) {
    if (seen.find(b.service) != std::string::npos) continue;
    out += (out.empty() ? "" : "; ") + b.label();
    seen += b.service + " ";
  }
  return out.empty() ? "none" : out;
}

double Sensitivity::largest_change() const {
  double most = 0;
  for (const MovedPlan* moved : {&minus, &plus}) {
    for (const std::optional<double>& change : {moved->node_hours_change, moved->cost_change}) {
      most = std::max(most, std::abs(change.value_or(1)));
    }
  }
  return most;
}

std::vector<Sensitivity> plan_sensitivities(const PlanInput& input, const PlanResult& plan,
                                            ExpertSpreads& spreads) {
  std::vector<Sensitivity> out;
  for (const Knob& knob : kKnobs) {
    Sensitivity s{knob.name, knob.value(input), {}, {}};
    for (const bool up : {false, true}) {
      PlanInput moved = input;
      knob.vary(moved, up ? 1 + kStepShare : 1 - kStepShare);
      (up ? s.plus : s.minus) = moved_plan(moved, input, plan, spreads);
      (up ? s.plus : s.minus).value = knob.value(moved);
    }
    out.push_back(std::move(s));
  }
  for (const auto& [name, value] : profile_constants(input.hw)) {
    if (name == "hardware.gpus_per_node") continue;  // a count: 7.2 GPUs are no node
    Sensitivity s{std::string(name), value, {}, {}};
    for (const bool up : {false, true}) {
      PlanInput moved = input;
      scale_profile_constant(moved.hw, name, up ? 1 + kStepShare : 1 - kStepShare);
      (up ? s.plus : s.minus) = moved_plan(moved, input, plan, spreads);
      (up ? s.plus : s.minus).value = constant_of(moved.hw, name);
    }
    out.push_back(std::move(s));
  }
  return out;
}

}  // namespace fathom::sim
