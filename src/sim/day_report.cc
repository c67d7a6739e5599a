// One published day as a page: its words, charts, tables and CSV files; figures are in day_figures.cc.
#include "sim/day_report.h"

#include <algorithm>

#include "base/check.h"
#include "sim/day_figures.h"

namespace fathom::sim {
namespace {

constexpr double kHourSeconds = 3600;

double ratio(double a, double b) { return b != 0 ? a / b : 0; }

std::vector<std::pair<double, std::string>> clock_ticks(int start_hour) {
  std::vector<std::pair<double, std::string>> ticks;
  for (int h = 0; h <= 24; h += 3) ticks.emplace_back(h, clock_of(h * kHourSeconds, start_hour));
  return ticks;
}

// The day's charts, by the hour; a fraction's cells are spread over their hours.
void add_charts(const DayPage& page, Report& report) {
  const FleetOptions& o = page.run.options;
  const DayInputs& in = page.run.inputs;
  Series scheduled{in.scale == "none"  ? "all units"
                   : in.other_schedule ? "schedule"
                   : in.other_fleet    ? "published schedule's share of this fleet"
                                       : "published schedule",
                   {},
                   true};
  for (const DaySchedule::Change& c : page.day.schedule.changes())
    scheduled.points.emplace_back(c.second / kHourSeconds, c.nodes);
  scheduled.points.emplace_back(24, scheduled.points.back().second);
  FleetPage fleet{page.result.metrics, {1.0 / kCellsPerHour, "UTC+8", clock_ticks(page.day.start_hour)}};
  fleet.usd_per_node_hour = page.hw.gpus_per_node * page.hw.price_usd_per_gpu_hour;
  fleet.prices = page.prices;
  fleet.slo_ttft_s = o.slo_ttft_s, fleet.slo_tokens_per_s_per_user = o.slo_tokens_per_s_per_user;
  fleet.kv_room_tokens = page.result.kv_room_tokens;
  fleet.decode_policy = decode_policy_name(o.decode_policy);
  fleet.planned_nodes = {std::move(scheduled)};
  add_fleet_charts(fleet, report);
}

void add_csv(const DayFiles& day, const FleetResult& result, Report& report) {
  std::string hours =
      "hour_utc8,requests,input_tokens,cached_tokens,output_tokens,nodes_mean,drain_nodes_mean,decode_tokens_"
      "per_s_per_user,"
      "kv_tokens_per_output_token,kv_max_over_mean,ttft_s_p50,ttft_s_p99,oldest_prefill_wait_s,oldest_decode_"
      "wait_s\n";
  for (int h = 0; h < 24; ++h) {
    const FleetCell c = result.metrics.hour(h);
    const HourEnd& end = result.metrics.hour_ends[static_cast<size_t>(h)];
    hours += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", (h + day.start_hour) % 24,
                         c.arrived_requests, c.input_tokens, c.cached_tokens, c.finished_output_tokens,
                         ratio(c.decode_node_seconds + c.prefill_node_seconds, c.seconds),
                         ratio(c.decode_drain_node_seconds + c.prefill_drain_node_seconds, c.seconds),
                         ratio(c.tokens_x_speed, c.tokens), ratio(c.tokens_x_kv, c.tokens),
                         ratio(c.kv_ratio_sum, static_cast<double>(c.balanced_steps)),
                         c.ttft_ms.percentile(0.5) / 1e3, c.ttft_ms.percentile(0.99) / 1e3,
                         end.oldest_prefill_s, end.oldest_decode_s);
  }
  report.csv_files.push_back({"hours.csv", std::move(hours)});
  report.csv_files.push_back({"units.csv", units_csv(result.units, day.start_hour)});
}

// What was run, in one paragraph that is true of it.
std::string lead_of(const DayPage& page) {
  const DayInputs& in = page.run.inputs;
  const FleetOptions& o = page.run.options;
  const DayMarks& marks = page.marks;
  std::string lead =
      marks.load ? "DeepSeek's 24 hours of 27 and 28 February 2025 (UTC+8)"
                 : fmt::format("24 hours of {}", in.other_load ? "another load" : "DeepSeek's day, changed");
  lead += o.fraction < 1 ? fmt::format(", every request of the first {:g} % of each hour", o.fraction * 100)
                         : ", every request";
  lead += fmt::format(", on {} units, {}. ", in.other_fleet ? "other" : "the published",
                      in.autoscaled()      ? "which the autoscaler starts and stops"
                      : in.scale == "none" ? "all of which serve throughout"
                      : in.other_schedule  ? "by another schedule"
                                           : "by the published schedule");
  if (marks.fit) {
    lead += "One constant of the cost model is fitted to the published user speed (decode_phi); ";
  } else if (page.hw.decode_phi != 1 && !in.phi_given) {
    lead += fmt::format("The profile's decode_phi, {}, was not fitted to this run; ", page.hw.decode_phi);
  } else if (in.phi_given) {
    lead += fmt::format("decode_phi, {}, was given; ", page.hw.decode_phi);
  } else {
    lead += "No constant was fitted to this day; ";
  }
  return lead + fmt::format("loads, lengths, {}MTP acceptance and expert imbalance are inputs.",
                            in.autoscaled() ? "" : "schedule, ");
}

int busiest_hour(const FleetMetrics& metrics) {
  int busiest = 0;
  for (int h = 1; h < 24; ++h) {
    if (metrics.hour(h).arrived_requests > metrics.hour(busiest).arrived_requests) busiest = h;
  }
  return busiest;
}

// One decode layer at the busiest hour.
void add_timeline(const DayPage& page, const ModelShape& model, Report& report) {
  const FleetOptions& o = page.run.options;
  const int hour = busiest_hour(page.result.metrics);
  const DecodeLoad load = decode_load_of(page.result.metrics.hour(hour), o.shape.decode_ranks);
  const DecodeUnitShape shape = decode_shape_of(o);
  report.timelines.push_back(decode_layer_timeline(decode_stages(page.hw, model, shape, load),
                                                   decode_stages(page.hw, model, shape, load, false)));
  report.timelines.back().title += fmt::format(" at {}", clock_of(hour * kHourSeconds, page.day.start_hour));
}

}  // namespace

std::string fleet_of(const FleetOptions& options) {
  return fmt::format("{} and {} ranks a decode and a prefill unit", options.shape.decode_ranks,
                     options.shape.prefill_ranks);
}

Report day_report(const HardwareProfile& hw, const ModelShape& model, const DayFiles& day, const DayRun& run,
                  const FleetResult& result, const TokenPrices& prices) {
  CHECK(result.metrics.hour_ends.size() == 24);
  const FleetOptions& o = run.options;
  const DayPage page{hw, day, run, result, prices, day_marks(hw, o, run.inputs, result)};
  Report report;
  report.title = page.marks.reference ? "The published day, simulated"
                 : page.marks.load    ? "The published day's load, simulated"
                                      : "A day, simulated";
  report.lead = lead_of(page);
  report.facts = {{"profile", hw.name},
                  {"profile_kind", hw.kind},
                  {"profile_hash", hw.hash},
                  {"decode_policy", std::string(decode_policy_name(o.decode_policy))},
                  {"prefill_policy", std::string(prefill_policy_name(o.prefill_policy))},
                  {"scale_policy", run.inputs.scale},
                  {"fleet", fleet_of(o)},
                  {"price_usd_per_gpu_hour", fmt::format("{}", hw.price_usd_per_gpu_hour)},
                  {"decode_phi", fmt::format("{}", hw.decode_phi)},
                  {"mtp_acceptance", fmt::format("{}", o.mtp_acceptance)},
                  {"decode_expert_imbalance", fmt::format("{}", o.decode_expert_imbalance)},
                  {"prefill_expert_imbalance", fmt::format("{}", o.prefill_expert_imbalance)},
                  {"report_delay_ms", fmt::format("{}", o.report_delay_ms)},
                  {"fraction", fmt::format("{}", o.fraction)},
                  {"seed", fmt::format("{}", o.seed)}};
  add_day_figures(page, report);
  add_charts(page, report);
  add_timeline(page, model, report);
  add_csv(day, result, report);
  if (run.inputs.autoscaled()) {
    Table log{"What the autoscaler did", "", {"decision"}, {}};
    for (const std::string& line : run.scale_log) log.rows.push_back({line});
    report.tables.push_back(std::move(log));
  }
  return report;
}

}  // namespace fathom::sim
