// A plan as text: what to run, what it does, what stops fewer nodes, and what moves it most.
#include <algorithm>
#include <cmath>

#include "sim/day_files.h"
#include "sim/plan_report.h"

namespace fathom::sim {
namespace {

constexpr size_t kMoversShown = 12;
constexpr const char* kNothingFits = "nothing fits";

std::string percent(const std::optional<double>& change) {
  // + 0.0: no minus before a zero.
  return change ? fmt::format("{:+.1f} %", std::round(*change * 1000) / 10 + 0.0) : kNothingFits;
}

std::string node_hours_anew(const MovedPlan& moved) {
  for (size_t i = 0; i < moved.figures.size(); ++i) {
    if (std::string_view(plan_figures()[i].name) == "node_hours")
      return fmt::format("{:.0f}", moved.figures[i]);
  }
  return kNothingFits;
}

// Of a DecodeUnitPlan or PrefillUnitPlan.
template <typename UnitPlan>
std::string units_line(const char* phase, int units, const UnitPlan& unit) {
  return fmt::format(
      "{:<8} {} units of {} nodes ({} ranks), {} expert slots, {} redundant, expert max/mean {:.2f}\n", phase,
      units, unit.nodes, unit.ranks, unit.slots, unit.redundant, unit.expert_imbalance);
}

std::string units_text(const PlanResult& plan) {
  const DecodeUnitPlan& d = plan.decode;
  const PrefillUnitPlan& p = plan.prefill;
  if (plan.colocated) {
    return fmt::format("servers  {} at the peak, each prefills and decodes\n", plan.peak_nodes);
  }
  const int decode_nodes = plan.peak_decode_units * d.nodes,
            prefill_nodes = plan.peak_prefill_units * p.nodes;
  return units_line("decode", plan.peak_decode_units, d) + units_line("prefill", plan.peak_prefill_units, p) +
         fmt::format("split    {} decode + {} prefill nodes at the peak, {:.2f} : 1\n", decode_nodes,
                     prefill_nodes, 1.0 * decode_nodes / prefill_nodes);
}

std::string capacity_text(const PlanResult& plan) {
  const DecodeUnitPlan& d = plan.decode;
  const PrefillUnitPlan& p = plan.prefill;
  return fmt::format(
             "decode   at most {:.1f} requests per rank: step {:.1f} ms, {:.1f} tokens/s per user, {:.0f} "
             "output tokens/s per unit, KV {:.0f} % full; bound by {}\n",
             d.requests_per_rank, d.step_ms, d.tokens_per_s_per_user, d.output_tokens_per_s,
             d.kv_use_share * 100, d.bound) +
         fmt::format(
             "prefill  {:.0f} tokens per rank and forward, forward {:.2f} s, first token {:.2f} s at p99, "
             "{:.0f} input tokens/s per unit; bound by {}\n",
             p.budget_tokens_per_rank, p.forward_s, p.ttft_s_p99, p.input_tokens_per_s, p.bound) +
         fmt::format("peak     {:.1f} tokens/s per user, prefill {:.0f} % in use\n",
                     plan.tokens_per_s_per_user_peak, plan.prefill_use_peak * 100);
}

std::string cost_text(const PlanInput& in, const PlanResult& plan) {
  return fmt::format("nodes    {} at the peak, {:.2f} on average, {:.0f} node-hours a day\n", plan.peak_nodes,
                     plan.nodes_mean, plan.node_hours) +
         fmt::format(
             "cost     {:.0f} USD a day, {:.3f} USD per million output tokens, {:.4f} per million tokens\n",
             plan.cost_usd_per_day, plan.cost_usd_per_million_output_tokens,
             plan.cost_usd_per_million_tokens) +
         fmt::format(
             "KV disk  {} TB for {:.3g} hours, {} GB/s written and {} GB/s read at the peak ({} GB/s per "
             "prefill "
             "node)\n",
             pretty_number(plan.kv_disk_tb), in.kv_retention_hours,
             pretty_number(plan.kv_write_gb_per_s_peak), pretty_number(plan.kv_read_gb_per_s_peak),
             pretty_number(plan.kv_read_gb_per_s_peak /
                           std::max(1, plan.peak_prefill_units * plan.prefill.nodes)));
}

// What is left when a unit goes at the peak.
std::string headroom_text(const PlanInput& in, const PlanResult& plan) {
  const std::string decode =
      plan.speed_after_decode_loss > 0
          ? fmt::format("leaves {:.1f} tokens/s per user", plan.speed_after_decode_loss)
          : std::string(plan.peak_decode_units > 1 ? "saturates the rest" : "stops decode");
  const std::string prefill = plan.prefill_use_after_loss > 0 ? fmt::format("puts the rest to {:.0f} % use",
                                                                            plan.prefill_use_after_loss * 100)
                                                              : std::string("stops prefill");
  const std::string spares =
      in.spare_units > 0
          ? fmt::format("{} spare nodes are in the plan", in.spare_units * plan.spare_nodes)
          : fmt::format("{} more nodes hold a spare of each kind (--spare-units 1)", plan.spare_nodes);
  const std::string lost =
      plan.colocated ? "a server lost at the peak " + decode
                     : fmt::format("a decode unit lost at the peak {}, a prefill unit {}", decode, prefill);
  return fmt::format("N+1      {}; {}\n", spares, lost);
}

std::string binding_text(const std::vector<BindingConstraint>& binding) {
  if (binding.empty()) return "binding  nothing that is a tenth less tight saves nodes\n";
  const auto saved = [](double share) { return std::max(0.0, std::round(share * 1000) / 10); };
  std::string out = fmt::format("binding  {}\n\n{:<36} {:>12} {:>14}\n", first_bindings(binding),
                                "a tenth less tight, it saves", "node-hours", "nodes at peak");
  for (const BindingConstraint& b : binding) {
    out += fmt::format("{:<36} {:>10.1f} % {:>12.1f} %\n", b.label(), saved(b.node_hours_saved_share),
                       saved(b.peak_nodes_saved_share));
  }
  return out;
}

std::string hours_text(const PlanInput& in, const PlanResult& plan) {
  std::string out = "\nfrom    requests/s   at most   decode   prefill   nodes\n";
  for (size_t h = 0; h < plan.hours.size(); ++h) {
    const HourPlan& hour = plan.hours[h];
    out += fmt::format("{} {:>11.4g} {:>9.4g} {:>8} {:>9} {:>7}\n",
                       clock_of(static_cast<double>(h) * 3600, in.start_hour), hour.requests_per_s,
                       hour.requests_per_s_max, hour.decode_units, hour.prefill_units, hour.nodes);
  }
  return out;
}

std::string movers_text(const std::vector<Sensitivity>& all) {
  std::vector<const Sensitivity*> movers;
  for (const Sensitivity& s : all) movers.push_back(&s);
  std::stable_sort(movers.begin(), movers.end(), [](const Sensitivity* a, const Sensitivity* b) {
    return a->largest_change() > b->largest_change();
  });
  movers.resize(std::min(movers.size(), kMoversShown));
  const auto pair = [](const std::string& a, const std::string& b) { return a + " / " + b; };
  std::string out = fmt::format("\n{:<44} {:>19} {:>19} {:>13}\n", "-10 % / +10 % of", "node-hours",
                                "cost per out token", "planned anew");
  for (const Sensitivity* s : movers) {
    out += fmt::format("{:<44} {:>19} {:>19} {:>13}\n", s->input,
                       pair(percent(s->minus.node_hours_change), percent(s->plus.node_hours_change)),
                       pair(percent(s->minus.cost_change), percent(s->plus.cost_change)),
                       pair(node_hours_anew(s->minus), node_hours_anew(s->plus)));
  }
  return out + fmt::format("The most of {} inputs; --sensitivities prints all of them with all {} figures.\n",
                           all.size(), plan_figures().size());
}

}  // namespace

std::string plan_text(const PlanStory& story) {
  const PlanInput& in = story.input;
  std::string out =
      fmt::format("{} on {} ({}, profile {})\n", story.model_name, in.hw.name, in.hw.kind, in.hw.hash);
  out += fmt::format("load     {:.4g} requests a day, {:.0f} tokens in ({:.1f} % cached), {:.0f} out\n",
                     in.requests_per_day, in.input_tokens_mean, in.hit_share * 100, in.output_tokens_mean);
  out += fmt::format("goal     first token within {:.3g} s (p99), {:.3g} tokens/s per user\n\n",
                     in.slo_ttft_s, in.slo_tokens_per_s_per_user);
  out += units_text(story.plan) + capacity_text(story.plan) + cost_text(in, story.plan) +
         headroom_text(in, story.plan) + binding_text(story.binding) + hours_text(in, story.plan);
  return story.sensitivities.empty() ? out : out + movers_text(story.sensitivities);
}

}  // namespace fathom::sim
