#include "sim/plan_report.h"

#include <algorithm>

namespace fathom::sim {
namespace {

std::string percent(const std::optional<double>& change) {
  return change ? fmt::format("{:+.1f} %", *change * 100) : "nothing fits";
}

std::string units_line(const char* phase, int units, int nodes, int ranks, int slots, int redundant,
                       double imbalance) {
  return fmt::format(
      "{:<8} {} units of {} nodes ({} ranks), {} expert slots, {} redundant, expert max/mean {:.2f}\n", phase,
      units, nodes, ranks, slots, redundant, imbalance);
}

std::string hours_text(const PlanResult& plan) {
  std::string out = "\nhour   requests/s   decode   prefill   nodes\n";
  for (size_t h = 0; h < plan.hours.size(); ++h) {
    const HourPlan& hour = plan.hours[h];
    out += fmt::format("{:>4} {:>12.1f} {:>8} {:>9} {:>7}\n", h, hour.requests_per_s, hour.decode_units,
                       hour.prefill_units, hour.nodes);
  }
  return out;
}

}  // namespace

std::string plan_text(const PlanInput& in, const std::string& model_name, const PlanResult& plan,
                      const std::vector<Sensitivity>& sensitivities) {
  const DecodeUnitPlan& d = plan.decode;
  const PrefillUnitPlan& p = plan.prefill;
  std::string out =
      fmt::format("{} on {} ({}, profile {})\n", model_name, in.hw.name, in.hw.kind, in.hw.hash);
  out += fmt::format("load     {:.4g} requests a day, {:.0f} tokens in ({:.1f} % cached), {:.0f} out\n",
                     in.requests_per_day, in.input_tokens_mean, in.hit_share * 100, in.output_tokens_mean);
  out += fmt::format("goal     first token within {:.3g} s (p99), {:.3g} tokens/s per user\n\n",
                     in.slo_ttft_s, in.slo_tokens_per_s_per_user);
  if (plan.colocated) {
    out += fmt::format("servers  {} at the peak, each prefills and decodes\n", plan.peak_nodes);
  } else {
    out += units_line("decode", plan.peak_decode_units, d.nodes, d.ranks, d.slots, d.redundant,
                      d.expert_imbalance);
    out += units_line("prefill", plan.peak_prefill_units, p.nodes, p.ranks, p.slots, p.redundant,
                      p.expert_imbalance);
    const double decode_nodes = plan.peak_decode_units * d.nodes;
    out += fmt::format("split    {:.0f} decode + {:.0f} prefill nodes at the peak, {:.2f} : 1\n",
                       decode_nodes, plan.peak_nodes - decode_nodes,
                       decode_nodes / std::max(1.0, plan.peak_nodes - decode_nodes));
  }
  out += fmt::format(
      "decode   {:.1f} requests per rank, step {:.1f} ms, {:.1f} tokens/s per user, {:.0f} output tokens/s "
      "per unit, KV {:.0f} % full; bound by {}\n",
      d.requests_per_rank, d.step_ms, d.tokens_per_s_per_user, d.output_tokens_per_s, d.kv_use_share * 100,
      d.bound);
  out += fmt::format(
      "prefill  {:.0f} tokens per rank and forward, forward {:.2f} s, first token {:.2f} s at p99, {:.0f} "
      "input tokens/s per unit; bound by {}\n",
      p.budget_tokens_per_rank, p.forward_s, p.ttft_s_p99, p.input_tokens_per_s, p.bound);
  out += fmt::format("nodes    {} at the peak, {:.2f} on average, {:.0f} node-hours a day\n", plan.peak_nodes,
                     plan.nodes_mean, plan.node_hours);
  out += fmt::format(
      "cost     {:.0f} USD a day, {:.3f} USD per million output tokens, {:.4f} per million tokens\n",
      plan.cost_usd_per_day, plan.cost_usd_per_million_output_tokens, plan.cost_usd_per_million_tokens);
  out += fmt::format(
      "KV disk  {:.1f} TB for {:.0f} hours, {:.2f} GB/s written and {:.2f} GB/s read at the peak ({:.2f} "
      "GB/s per prefill node)\n",
      plan.kv_disk_tb, in.kv_retention_hours, plan.kv_write_gb_per_s_peak, plan.kv_read_gb_per_s_peak,
      plan.kv_read_gb_per_s_peak / std::max(1, plan.peak_prefill_units * p.nodes));
  if (plan.peak_decode_units > 1 && !plan.colocated) {
    out += fmt::format(
        "N+1      {} spare nodes (one unit of each kind). Without them, losing a decode unit at the peak "
        "leaves {}, losing a prefill unit raises its use to {:.0f} %\n",
        plan.spare_nodes,
        plan.speed_after_decode_loss > 0
            ? fmt::format("{:.1f} tokens/s per user", plan.speed_after_decode_loss)
            : "saturation",
        plan.prefill_use_after_loss * 100);
  } else {
    out += fmt::format("N+1      {} spare nodes: one unit alone has no headroom\n", plan.spare_nodes);
  }
  out += fmt::format("binding  {}\n", plan.binding_constraint);
  out += hours_text(plan);
  out += fmt::format("\n{:<28} {:>14} {:>14} {:>14} {:>14}\n", "change of", "nodes at -10 %",
                     "nodes at +10 %", "cost at -10 %", "cost at +10 %");
  for (const Sensitivity& s : sensitivities) {
    out += fmt::format("{:<28} {:>14} {:>14} {:>14} {:>14}\n", s.input, percent(s.node_hours_minus),
                       percent(s.node_hours_plus), percent(s.cost_minus), percent(s.cost_plus));
  }
  return out;
}

Report plan_report(const PlanInput& in, const std::string& model_name, const PlanResult& plan,
                   const std::vector<Sensitivity>& sensitivities) {
  Report report;
  report.title = fmt::format("Plan: {} on {}", model_name, in.hw.name);
  report.lead =
      fmt::format("Binding constraint: {}. Capacities come from the cost model; node counts are whole units.",
                  plan.binding_constraint);
  report.facts = {{"model", model_name},
                  {"profile", in.hw.name},
                  {"profile_kind", in.hw.kind},
                  {"profile_hash", in.hw.hash}};
  const auto add = [&](const char* name, double value) {
    report.figures.push_back({name, value, Origin::kPrediction, {}, ""});
  };
  add("decode_units_peak", plan.peak_decode_units);
  add("decode_unit_nodes", plan.decode.nodes);
  add("decode_redundant_experts", plan.decode.redundant);
  add("prefill_units_peak", plan.peak_prefill_units);
  add("prefill_unit_nodes", plan.prefill.nodes);
  add("prefill_redundant_experts", plan.prefill.redundant);
  add("nodes_peak", plan.peak_nodes);
  add("nodes_mean", plan.nodes_mean);
  add("node_hours", plan.node_hours);
  add("cost_usd", plan.cost_usd_per_day);
  add("cost_usd_per_million_output_tokens", plan.cost_usd_per_million_output_tokens);
  add("cost_usd_per_million_tokens", plan.cost_usd_per_million_tokens);
  add("decode_tokens_per_s_per_user", plan.decode.tokens_per_s_per_user);
  add("decode_requests_per_rank", plan.decode.requests_per_rank);
  add("ttft_s_p99", plan.prefill.ttft_s_p99);
  add("kv_disk_tb", plan.kv_disk_tb);
  add("kv_write_gb_per_s_peak", plan.kv_write_gb_per_s_peak);
  add("kv_read_gb_per_s_peak", plan.kv_read_gb_per_s_peak);
  add("spare_nodes", plan.spare_nodes);
  Chart chart{"Nodes over the day", "nodes", "hour", {{"nodes", {}, true}, {"decode", {}, true}}, {}, true};
  for (int h = 0; h <= 24; ++h) {
    const HourPlan& hour = plan.hours[static_cast<size_t>(h % 24)];
    chart.series[0].points.emplace_back(h, hour.nodes);
    chart.series[1].points.emplace_back(h, hour.decode_units * plan.decode.nodes);
    if (h % 3 == 0) chart.x_ticks.emplace_back(h, fmt::format("{}", h));
  }
  report.charts.push_back(std::move(chart));
  Table table{"How the plan moves",
              "Fractions of units, at the chosen unit sizes.",
              {"input", "nodes at -10 %", "nodes at +10 %", "cost at -10 %", "cost at +10 %"},
              {}};
  for (const Sensitivity& s : sensitivities) {
    table.rows.push_back({s.input, percent(s.node_hours_minus), percent(s.node_hours_plus),
                          percent(s.cost_minus), percent(s.cost_plus)});
  }
  report.tables.push_back(std::move(table));
  return report;
}

Result<EmitFormat> parse_emit_format(std::string_view name) {
  if (name == "toml") return EmitFormat::kToml;
  if (name == "kubernetes") return EmitFormat::kKubernetes;
  if (name == "slurm") return EmitFormat::kSlurm;
  return invalid_argument("--emit: \"{}\" is none of toml, kubernetes, slurm", name);
}

namespace {

struct RolePlan {
  const char* role;
  int units, nodes, ranks, slots;
};

std::string emit_toml(const std::string& model_name, const PlanInput& in,
                      const std::vector<RolePlan>& roles) {
  std::string out = fmt::format("model = \"{}\"\nhardware = \"{}\"\nprofile_hash = \"{}\"\n", model_name,
                                in.hw.name, in.hw.hash);
  for (const RolePlan& r : roles) {
    out += fmt::format("\n[{}]\nunits = {}\nnodes_per_unit = {}\nranks_per_unit = {}\nexpert_slots = {}\n",
                       r.role, r.units, r.nodes, r.ranks, r.slots);
  }
  return out + fmt::format("\n[objectives]\nttft_s = {}\ntokens_per_s_per_user = {}\n", in.slo_ttft_s,
                           in.slo_tokens_per_s_per_user);
}

// One StatefulSet per unit: a unit lives, fails and scales as a whole, so its pods start together.
std::string emit_kubernetes(const std::string& model_name, const PlanInput& in,
                            const std::vector<RolePlan>& roles) {
  std::string out;
  for (const RolePlan& r : roles) {
    for (int unit = 0; unit < r.units; ++unit) {
      out += fmt::format(
          "---\napiVersion: apps/v1\nkind: StatefulSet\nmetadata:\n  name: fathom-{0}-{1}\n  labels: {{app: "
          "fathom, role: {0}, unit: \"{1}\"}}\n"
          "spec:\n  replicas: {2}\n  serviceName: fathom-{0}-{1}\n  podManagementPolicy: Parallel\n"
          "  selector:\n    matchLabels: {{app: fathom, role: {0}, unit: \"{1}\"}}\n"
          "  template:\n    metadata:\n      labels: {{app: fathom, role: {0}, unit: \"{1}\"}}\n    spec:\n  "
          "    containers:\n"
          "      - name: fathom\n        image: fathom:latest\n        args: [{0}, --model, \"{3}\", --unit, "
          "\"{1}\", --ranks, \"{4}\", --expert-slots, \"{5}\"]\n"
          "        resources:\n          limits: {{nvidia.com/gpu: {6}}}\n",
          r.role, unit, r.nodes, model_name, r.ranks, r.slots, static_cast<int>(in.hw.gpus_per_node));
    }
  }
  return out;
}

std::string emit_slurm(const std::string& model_name, const PlanInput& in,
                       const std::vector<RolePlan>& roles) {
  std::string out =
      "#!/usr/bin/env bash\n# Submits one job per unit; a unit starts and ends as a whole.\nset -e\n";
  for (const RolePlan& r : roles) {
    out += fmt::format(
        "for unit in $(seq 0 {}); do\n  sbatch --job-name=fathom-{}-$unit --nodes={} --ntasks-per-node=1 "
        "--gpus-per-node={} \\\n"
        "    --wrap=\"srun fathom {} --model {} --unit $unit --ranks {} --expert-slots {}\"\ndone\n",
        r.units - 1, r.role, r.nodes, static_cast<int>(in.hw.gpus_per_node), r.role, model_name, r.ranks,
        r.slots);
  }
  return out;
}

}  // namespace

std::string emit_deployment(const std::string& model_name, const PlanInput& in, const PlanResult& plan,
                            EmitFormat format) {
  std::vector<RolePlan> roles;
  if (plan.colocated) {
    roles = {{"serve", plan.peak_nodes, 1, 1, plan.decode.slots}};
  } else {
    roles = {{"prefill", plan.peak_prefill_units, plan.prefill.nodes, plan.prefill.ranks, plan.prefill.slots},
             {"decode", plan.peak_decode_units, plan.decode.nodes, plan.decode.ranks, plan.decode.slots}};
  }
  switch (format) {
    case EmitFormat::kToml:
      return emit_toml(model_name, in, roles);
    case EmitFormat::kKubernetes:
      return emit_kubernetes(model_name, in, roles);
    case EmitFormat::kSlurm:
      return emit_slurm(model_name, in, roles);
  }
  return "";
}

}  // namespace fathom::sim
