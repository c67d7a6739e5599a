// A plan as text and as a report; hours carry the clock of the load they came from.
#include "sim/plan_report.h"

#include <algorithm>

#include "sim/day_files.h"

namespace fathom::sim {
namespace {

std::string percent(const std::optional<double>& change) {
  return change ? fmt::format("{:+.1f} %", *change * 100) : "nothing fits";
}

// "12:00" for the first hour of a day that starts at noon.
std::string clock_of_hour(const PlanInput& in, size_t hour) {
  return clock_of(static_cast<double>(hour) * 3600, in.start_hour);
}

std::string units_line(const char* phase, int units, int nodes, int ranks, int slots, int redundant,
                       double imbalance) {
  return fmt::format(
      "{:<8} {} units of {} nodes ({} ranks), {} expert slots, {} redundant, expert max/mean {:.2f}\n", phase,
      units, nodes, ranks, slots, redundant, imbalance);
}

std::string hours_text(const PlanInput& in, const PlanResult& plan) {
  std::string out = "\nfrom    requests/s   decode   prefill   nodes\n";
  for (size_t h = 0; h < plan.hours.size(); ++h) {
    const HourPlan& hour = plan.hours[h];
    out += fmt::format("{} {:>11.1f} {:>8} {:>9} {:>7}\n", clock_of_hour(in, h), hour.requests_per_s,
                       hour.decode_units, hour.prefill_units, hour.nodes);
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
  out += hours_text(in, plan);
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
  Chart chart{"Nodes over the day", "nodes", "from", {{"nodes", {}, true}, {"decode", {}, true}}, {}, true};
  for (int h = 0; h <= 24; ++h) {
    const HourPlan& hour = plan.hours[static_cast<size_t>(h % 24)];
    chart.series[0].points.emplace_back(h, hour.nodes);
    chart.series[1].points.emplace_back(h, hour.decode_units * plan.decode.nodes);
    if (h % 3 == 0) chart.x_ticks.emplace_back(h, clock_of_hour(in, static_cast<size_t>(h)));
  }
  report.charts.push_back(std::move(chart));
  Table hours{"Hours", "", {"from", "requests/s", "decode units", "prefill units", "nodes"}, {}};
  std::string csv = "from,requests_per_s,decode_units,prefill_units,nodes\n";
  for (size_t h = 0; h < plan.hours.size(); ++h) {
    const HourPlan& hour = plan.hours[h];
    hours.rows.push_back({clock_of_hour(in, h), fmt::format("{:.1f}", hour.requests_per_s),
                          fmt::format("{}", hour.decode_units), fmt::format("{}", hour.prefill_units),
                          fmt::format("{}", hour.nodes)});
    csv += fmt::format("{},{},{},{},{}\n", clock_of_hour(in, h), hour.requests_per_s, hour.decode_units,
                       hour.prefill_units, hour.nodes);
  }
  report.tables.push_back(std::move(hours));
  report.csv_files.push_back({"hours.csv", std::move(csv)});
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

}  // namespace fathom::sim
