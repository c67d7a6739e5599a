// A plan as a report; hours carry the clock of the load they came from.
#include "sim/plan_report.h"

#include <algorithm>
#include <cmath>

#include "sim/day_files.h"

namespace fathom::sim {
namespace {

std::vector<double> figures_of(const PlanResult& plan) {
  std::vector<double> out;
  for (const PlanFigure& figure : plan_figures()) out.push_back(figure.value(plan));
  return out;
}

// "12:00" for the first hour of a day that starts at noon.
std::string clock_of_hour(const PlanInput& in, size_t hour) {
  return clock_of(static_cast<double>(hour) * 3600, in.start_hour);
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

void add_hours(const PlanStory& story, Report& report) {
  Chart chart{"Nodes over the day", "nodes", "from", {{"nodes", {}, true}, {"decode", {}, true}}, {}, true};
  Table table{"Hours", "", {"from", "requests/s", "at most", "decode units", "prefill units", "nodes"}, {}};
  std::string csv = "from,requests_per_s,requests_per_s_max,decode_units,prefill_units,nodes\n";
  const auto& hours = story.plan.hours;
  for (size_t h = 0; h <= hours.size(); ++h) {
    const HourPlan& hour = hours[h % hours.size()];
    const std::string from = clock_of_hour(story.input, h);
    chart.series[0].points.emplace_back(h, hour.nodes);
    chart.series[1].points.emplace_back(h, hour.decode_units * story.plan.decode.nodes);
    if (h % 3 == 0) chart.x_ticks.emplace_back(h, from);
    if (h == hours.size()) break;
    table.rows.push_back({from, fmt::format("{:.4g}", hour.requests_per_s),
                          fmt::format("{:.4g}", hour.requests_per_s_max),
                          fmt::format("{}", hour.decode_units), fmt::format("{}", hour.prefill_units),
                          fmt::format("{}", hour.nodes)});
    csv += fmt::format("{},{},{},{},{},{}\n", from, hour.requests_per_s, hour.requests_per_s_max,
                       hour.decode_units, hour.prefill_units, hour.nodes);
  }
  report.charts.push_back(std::move(chart));
  report.tables.push_back(std::move(table));
  report.csv_files.push_back({"hours.csv", std::move(csv)});
}

void add_binding(const PlanStory& story, Report& report) {
  Table table{"What stops fewer nodes",
              "A tenth less tight, in fractions of units at the plan's unit sizes.",
              {"constraint", "node-hours saved", "nodes at the peak saved"},
              {}};
  const auto saved = [](double share) { return fmt::format("{:.1f} %", std::max(0.0, 100 * share)); };
  for (const BindingConstraint& b : story.binding) {
    table.rows.push_back({b.label(), saved(b.node_hours_saved_share), saved(b.peak_nodes_saved_share)});
  }
  report.tables.push_back(std::move(table));
}

std::string cell_number(double value) {
  return value == std::floor(value) && std::abs(value) < 1e3 ? fmt::format("{:.0f}", value)
                                                             : pretty_number(value);
}

// One cell: the figure at a tenth less and at a tenth more; "=" where it stays.
std::string moved_cell(const Sensitivity& s, size_t figure_idx, double base) {
  const auto value = [&](const MovedPlan& moved) {
    return moved.figures.empty() ? std::string("nothing fits") : cell_number(moved.figures[figure_idx]);
  };
  const std::string minus = value(s.minus), plus = value(s.plus);
  const std::string stays = cell_number(base);
  return minus == stays && plus == stays ? "=" : minus + " / " + plus;
}

// The figures whose names begin so, a column each.
void add_moves(const PlanStory& story, const char* title, const std::vector<std::string_view>& prefixes,
               Report& report) {
  Table table{
      title, "Each input a tenth lower / higher, planned anew; = where the figure stays.", {"input"}, {}};
  const std::vector<double> base = figures_of(story.plan);
  std::vector<size_t> columns;
  for (size_t i = 0; i < base.size(); ++i) {
    const std::string_view name = plan_figures()[i].name;
    const auto fits = [&](std::string_view prefix) { return name.starts_with(prefix); };
    if (std::none_of(prefixes.begin(), prefixes.end(), fits)) continue;
    columns.push_back(i);
    table.columns.emplace_back(name);
  }
  std::vector<std::string> plan_row = {"the plan"};
  for (const size_t i : columns) plan_row.push_back(cell_number(base[i]));
  table.rows.push_back(std::move(plan_row));
  for (const Sensitivity& s : story.sensitivities) {
    std::vector<std::string> row = {s.input};
    for (const size_t i : columns) row.push_back(moved_cell(s, i, base[i]));
    table.rows.push_back(std::move(row));
  }
  report.tables.push_back(std::move(table));
}

// What binds where an input a tenth away has something else bind.
void add_other_binding(const PlanStory& story, Report& report) {
  Table table{"Where something else binds",
              "Inputs that, a tenth lower or higher, change what saves most of each service.",
              {"input", "a tenth lower", "a tenth higher"},
              {}};
  const std::string binding = first_bindings(story.binding);
  for (const Sensitivity& s : story.sensitivities) {
    if (s.minus.binding == binding && s.plus.binding == binding) continue;
    const auto cell = [](const MovedPlan& moved) {
      return moved.figures.empty() ? moved.reason : moved.binding;
    };
    table.rows.push_back({s.input, cell(s.minus), cell(s.plus)});
  }
  if (!table.rows.empty()) report.tables.push_back(std::move(table));
}

std::string change_cell(const std::optional<double>& change) {
  return change ? fmt::format("{:.6g}", *change) : "";
}

}  // namespace

PlanStory tell_plan(const std::string& model_name, const PlanInput& input, const PlanResult& plan,
                    ExpertSpreads& spreads) {
  return {model_name, input, plan, binding_constraints(input, plan, spreads),
          plan_sensitivities(input, plan, spreads)};
}

std::string sensitivities_csv(const PlanStory& story) {
  std::string out = "input,change_percent,input_value";
  for (const PlanFigure& figure : plan_figures()) out += fmt::format(",{}", figure.name);
  out +=
      ",node_hours_change_share_at_the_plans_sizes,cost_change_share_at_the_plans_sizes,binding_constraint,"
      "nothing_fits_because\nthe plan,0,";
  for (const double value : figures_of(story.plan)) out += fmt::format(",{:.6g}", value);
  out += fmt::format(",0,0,{},\n", quoted(first_bindings(story.binding)));
  for (const Sensitivity& s : story.sensitivities) {
    for (const bool up : {false, true}) {
      const MovedPlan& moved = up ? s.plus : s.minus;
      const double factor = up ? 1 + kStepShare : 1 - kStepShare;
      out += fmt::format("{},{:+.0f},{:.6g}", quoted(s.input), (factor - 1) * 100, moved.value);
      for (size_t i = 0; i < plan_figures().size(); ++i) {
        out += moved.figures.empty() ? "," : fmt::format(",{:.6g}", moved.figures[i]);
      }
      out += fmt::format(",{},{},{},{}\n", change_cell(moved.node_hours_change),
                         change_cell(moved.cost_change), quoted(moved.binding), quoted(moved.reason));
    }
  }
  return out;
}

Report plan_report(const PlanStory& story) {
  Report report;
  report.title = fmt::format("Plan: {} on {}", story.model_name, story.input.hw.name);
  report.lead =
      fmt::format("Binding constraint: {}. Capacities come from the cost model; node counts are whole units.",
                  first_bindings(story.binding));
  report.facts = {{"model", story.model_name},
                  {"profile", story.input.hw.name},
                  {"profile_kind", story.input.hw.kind},
                  {"profile_hash", story.input.hw.hash},
                  {"price_usd_per_gpu_hour", fmt::format("{}", story.input.hw.price_usd_per_gpu_hour)},
                  {"binding_constraint", first_bindings(story.binding)}};
  for (const PlanFigure& figure : plan_figures()) {
    report.figures.push_back({figure.name, figure.value(story.plan), Origin::kPrediction, {}, ""});
  }
  add_hours(story, report);
  add_binding(story, report);
  add_moves(story, "How nodes and cost move", {"nodes_", "node_hours", "spare_", "cost_"}, report);
  add_moves(story, "How decode moves", {"decode_"}, report);
  add_moves(story, "How prefill moves", {"prefill_", "ttft_"}, report);
  add_moves(story, "How the KV store moves", {"kv_"}, report);
  add_other_binding(story, report);
  report.csv_files.push_back({"sensitivities.csv", sensitivities_csv(story)});
  return report;
}

}  // namespace fathom::sim
