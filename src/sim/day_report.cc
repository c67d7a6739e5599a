// Figures, charts and tables of one published day, each with its mark of input, fit or prediction.
#include "sim/day_report.h"

#include <algorithm>

#include "base/check.h"

namespace fathom::sim {
namespace {

constexpr double kHourSeconds = 3600;
constexpr int kPeakHour = 10;  // of the day, 22:00

double ratio(double a, double b) { return b != 0 ? a / b : 0; }

// Node hours of the day: the schedule's own integral when it ran, what was measured when something else
// decided.
struct Nodes {
  double hours = 0, decode_hours = 0, prefill_hours = 0, peak = 0;
};

Nodes nodes_of(const DayFiles& day, const DayRun& run, const FleetResult& result, const FleetCell& total) {
  Nodes nodes;
  nodes.peak = result.nodes_peak;
  if (!run.autoscaled) {
    nodes.hours = day.schedule.node_hours();
    nodes.decode_hours = day.schedule.decode_units_mean() * run.options.shape.decode_nodes * 24;
    nodes.prefill_hours = day.schedule.prefill_units_mean() * run.options.shape.prefill_nodes * 24;
    return nodes;
  }
  const double scale = 1 / run.options.fraction / kHourSeconds;
  nodes.decode_hours = total.decode_node_seconds * scale;
  nodes.prefill_hours = total.prefill_node_seconds * scale;
  nodes.hours = nodes.decode_hours + nodes.prefill_hours;
  return nodes;
}

// What both halves of the report are made of.
struct DayPage {
  const HardwareProfile& hw_;
  const DayFiles& day_;
  const DayRun& run_;
  const FleetResult& result_;
  const TokenPrices& prices_;
  Report& report_;
};

class DayFigures : DayPage {
 public:
  explicit DayFigures(const DayPage& page) : DayPage(page), t_(page.result_.metrics.total()) {}

  void add_all() {
    nodes_and_money();
    speed();
    waiting();
    balance();
    bias();
  }

 private:
  void add(std::string name, double value, Origin origin = Origin::kPrediction,
           std::optional<double> published = {}, std::string note = {}) {
    report_.figures.push_back({std::move(name), value, origin, published, std::move(note)});
  }

  void nodes_and_money() {
    const Nodes nodes = nodes_of(day_, run_, result_, t_);
    const Origin origin = run_.autoscaled ? Origin::kPrediction : Origin::kInput;
    const std::string note = run_.autoscaled ? "the autoscaler's choice" : "the schedule";
    const double per_day = 1 / run_.options.fraction;
    add("nodes_mean", nodes.hours / 24, origin, 226.75, note);
    add("node_hours", nodes.hours, origin, 5442, note);
    add("nodes_peak", nodes.peak, origin, 278, "at one instant: serving, starting and draining");
    add("decode_nodes_mean", nodes.decode_hours / 24, origin, 131.25, note);
    add("prefill_nodes_mean", nodes.prefill_hours / 24, origin, 95.5, note);
    add("drain_node_hours", (t_.decode_drain_node_seconds + t_.prefill_drain_node_seconds) / kHourSeconds,
        Origin::kPrediction, {},
        "nodes that left and still finish requests; beside node_hours, not scaled by 1/fraction");
    if (run_.autoscaled) {
      const double drains = (t_.decode_drain_node_seconds + t_.prefill_drain_node_seconds) / kHourSeconds;
      add("node_hours_freed", 24.0 * run_.budget_nodes - nodes.hours - drains, Origin::kPrediction, {},
          "of the budget, left to others: neither serving, starting nor draining");
      add("node_hours_saved_share", 1 - nodes.hours / day_.schedule.node_hours(), Origin::kPrediction, {},
          "against the published schedule");
      add("node_hours_clairvoyant_bound", run_.clairvoyant.node_hours, Origin::kInput, {},
          "whole units that know the load, start at once and are filled to capacity; a bound where the "
          "budget "
          "carries the load");
      for (int k = 0; k < kNumUnitKinds; ++k) {
        const std::string_view kind = unit_kind_name(static_cast<UnitKind>(k));
        add(fmt::format("clairvoyant_{}_not_carried_share", kind), run_.clairvoyant.not_carried_share[k],
            Origin::kInput, {}, "of the day's tokens: what the budget holds has no capacity for it in time");
      }
    }
    const double cost = nodes.hours * hw_.gpus_per_node * hw_.price_usd_per_gpu_hour;
    add("cost_usd", cost, origin, 87072, "2 USD per GPU hour");
    const double hit = static_cast<double>(t_.cached_tokens) * per_day;
    const double input = static_cast<double>(t_.input_tokens) * per_day;
    const double output = static_cast<double>(t_.finished_output_tokens) * per_day;
    const double income = prices_.usd(hit, input, output);
    add("theoretical_income_usd", income, Origin::kInput, 562027,
        "tokens times R1's prices; the load is an input");
    add("margin_percent", ratio(income - cost, cost) * 100, Origin::kInput, 545, "");
    add("requests", static_cast<double>(t_.arrived_requests) * per_day, Origin::kInput, {},
        "1,000 output tokens each");
    add("input_tokens", input, Origin::kInput, 608e9, "the load");
    add("output_tokens", output, Origin::kInput, 168e9, "the load");
    add("hit_share", ratio(hit, input), Origin::kInput, 0.563,
        "two classes of prompts, whole 64-token blocks");
    add("input_tokens_per_s_per_prefill_node", input / (nodes.prefill_hours * kHourSeconds), Origin::kInput,
        73700, "follows from load and schedule");
    add("output_tokens_per_s_per_decode_node", output / (nodes.decode_hours * kHourSeconds), Origin::kInput,
        14800, "follows from load and schedule");
    add("cost_usd_per_million_output_tokens", ratio(cost, output / 1e6), origin);
  }

  void speed() {
    add("decode_tokens_per_s_per_user", ratio(t_.tokens_x_speed, t_.tokens), Origin::kFit, 21,
        "published 20-22; token-weighted; one fitted constant, decode_phi, was set for it");
    add_speed_figures(t_, run_.options.shape.decode_ranks, true, report_);
  }

  void waiting() {
    const FleetOptions& o = run_.options;
    add_wait_figures(t_, report_);
    add_objective_figures(t_, o.slo_ttft_s, o.slo_tokens_per_s_per_user, report_);
    add("refused_requests", static_cast<double>(t_.refused_requests) / o.fraction, Origin::kPrediction, {},
        fmt::format("a prefill rank's queue held {} prompts", o.queued_prompts_max));
    add("lost_requests", static_cast<double>(result_.lost_requests), Origin::kPrediction, {},
        "arrived, not refused, not finished and nowhere in the fleet; must be 0");
    add("decode_admission_waits", static_cast<double>(t_.admission_waits) / o.fraction);
    add("decode_admission_wait_s_mean", ratio(t_.admission_wait_s, static_cast<double>(t_.admission_waits)));
    add("replays", static_cast<double>(t_.replays), Origin::kPrediction, {},
        "requests of lost units, not scaled");
    add("retractions", static_cast<double>(t_.retractions) / o.fraction);
    HourEnd worst;
    double forwards_late = 0;
    for (const HourEnd& end : result_.metrics.hour_ends) {
      worst.oldest_prefill_s = std::max(worst.oldest_prefill_s, end.oldest_prefill_s);
      worst.oldest_decode_s = std::max(worst.oldest_decode_s, end.oldest_decode_s);
      const double oldest = std::max(end.oldest_prefill_s, end.oldest_decode_s);
      forwards_late = std::max(forwards_late, ratio(oldest, end.forward_s));
    }
    add("hour_end_oldest_prefill_wait_s_max", worst.oldest_prefill_s);
    add("hour_end_oldest_decode_wait_s_max", worst.oldest_decode_s);
    add("hour_end_oldest_wait_forwards_max", forwards_late, Origin::kPrediction, {},
        "oldest queued request at any hour's end, in prefill forwards");
  }

  void balance() {
    const auto steps = static_cast<double>(t_.balanced_steps);
    add("kv_max_over_mean", ratio(t_.kv_ratio_sum, steps), Origin::kPrediction, {},
        "over ranks, mean over steps");
    add("requests_max_over_mean", ratio(t_.requests_ratio_sum, steps));
    add("kv_room_tokens_per_rank", result_.kv_room_tokens, Origin::kInput, {},
        "HBM less weights and reserve");
    add("kv_use_share_max", t_.kv_milli_max / kMilli / result_.kv_room_tokens, Origin::kPrediction, {},
        "fullest rank");
    add("kv_over_room_steps", static_cast<double>(result_.kv_over_room_steps), Origin::kPrediction, {},
        "must be 0");
    const auto saturated = static_cast<double>(t_.saturated_forwards);
    add("prefill_efficiency_saturated", ratio(t_.efficiency_sum, saturated), Origin::kPrediction, {},
        "mean over largest cost of the ranks, forwards that left prompts waiting");
    add("prefill_tokens_max_over_mean_saturated", ratio(t_.token_ratio_sum, saturated));
    add("prefill_forwards", static_cast<double>(t_.forwards) / run_.options.fraction);
    add("simulated_decode_rank_steps", static_cast<double>(t_.rank_steps), Origin::kPrediction, {},
        "not scaled");
  }

  void bias() {
    if (run_.options.fraction >= 1) return;
    const double per_day = 1 / run_.options.fraction;
    add("bias_requests_percent",
        100 * (static_cast<double>(t_.arrived_requests) * per_day / run_.options.requests_per_day - 1),
        Origin::kInput, {}, "this run's requests, scaled, against the whole day's");
    const double simulated = (t_.decode_node_seconds + t_.prefill_node_seconds) / t_.seconds;
    add("bias_nodes_percent", 100 * (simulated / (day_.schedule.node_hours() / 24) - 1), Origin::kInput, {},
        "mean nodes of the simulated parts against the schedule's");
    add("bias_unfinished_share",
        ratio(static_cast<double>(result_.unfinished_requests), static_cast<double>(t_.arrived_requests)),
        Origin::kInput, {},
        "requests still running at the end: the ramp from an empty fleet makes users faster");
  }

  const FleetCell t_;
};

std::vector<std::pair<double, std::string>> clock_ticks(int start_hour) {
  std::vector<std::pair<double, std::string>> ticks;
  for (int h = 0; h <= 24; h += 3) ticks.emplace_back(h, clock_of(h * kHourSeconds, start_hour));
  return ticks;
}

// The day's charts, by the hour; a fraction's cells are spread over their hours.
void add_charts(const DayPage& page) {
  const FleetOptions& o = page.run_.options;
  Series scheduled{"published schedule", {}, true};
  for (const DaySchedule::Change& c : page.day_.schedule.changes())
    scheduled.points.emplace_back(c.second / kHourSeconds, c.nodes);
  scheduled.points.emplace_back(24, scheduled.points.back().second);
  FleetPage fleet{page.result_.metrics, {1.0 / kCellsPerHour, "UTC+8", clock_ticks(page.day_.start_hour)}};
  fleet.usd_per_node_hour = page.hw_.gpus_per_node * page.hw_.price_usd_per_gpu_hour;
  fleet.prices = page.prices_;
  fleet.slo_ttft_s = o.slo_ttft_s, fleet.slo_tokens_per_s_per_user = o.slo_tokens_per_s_per_user;
  fleet.kv_room_tokens = page.result_.kv_room_tokens;
  fleet.decode_policy = decode_policy_name(o.decode_policy);
  fleet.planned_nodes = {std::move(scheduled)};
  add_fleet_charts(fleet, page.report_);
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

}  // namespace

Report day_report(const HardwareProfile& hw, const ModelShape& model, const DayFiles& day, const DayRun& run,
                  const FleetResult& result, const TokenPrices& prices) {
  CHECK(result.metrics.hour_ends.size() == 24);
  Report report;
  report.title = run.other_fleet ? "The published day's load on another fleet, simulated"
                                 : "The published day, simulated";
  report.lead = fmt::format(
      "DeepSeek's 24 hours of 27 and 28 February 2025 (UTC+8), every request, on {} units. One constant of "
      "the "
      "cost model is fitted to the published user speed (decode_phi); loads, lengths, schedule, MTP "
      "acceptance and "
      "expert imbalance are inputs.",
      run.other_fleet ? "other" : "the published");
  const FleetOptions& o = run.options;
  report.facts = {{"profile", hw.name},
                  {"profile_kind", hw.kind},
                  {"profile_hash", hw.hash},
                  {"decode_policy", std::string(decode_policy_name(o.decode_policy))},
                  {"prefill_policy", std::string(prefill_policy_name(o.prefill_policy))},
                  {"scale_policy", run.autoscaled ? "autoscale" : run.scale},
                  {"fleet", fmt::format("{} and {} ranks a decode and a prefill unit",
                                        run.options.shape.decode_ranks, run.options.shape.prefill_ranks)},
                  {"decode_phi", fmt::format("{}", hw.decode_phi)},
                  {"mtp_acceptance", fmt::format("{}", o.mtp_acceptance)},
                  {"decode_expert_imbalance", fmt::format("{}", o.decode_expert_imbalance)},
                  {"prefill_expert_imbalance", fmt::format("{}", o.prefill_expert_imbalance)},
                  {"report_delay_ms", fmt::format("{}", o.report_delay_ms)},
                  {"fraction", fmt::format("{}", o.fraction)},
                  {"seed", fmt::format("{}", o.seed)}};
  const DayPage page{hw, day, run, result, prices, report};
  DayFigures(page).add_all();
  add_charts(page);
  const DecodeLoad load = decode_load_of(result.metrics.hour(kPeakHour), o.shape.decode_ranks);
  const DecodeUnitShape shape = decode_shape_of(o);
  report.timelines.push_back(decode_layer_timeline(decode_stages(hw, model, shape, load),
                                                   decode_stages(hw, model, shape, load, false)));
  report.timelines.back().title += " at 22:00";
  add_csv(day, result, report);
  if (run.autoscaled) {
    Table log{"What the autoscaler did", "", {"decision"}, {}};
    for (const std::string& line : run.scale_log) log.rows.push_back({line});
    report.tables.push_back(std::move(log));
  }
  return report;
}

}  // namespace fathom::sim
