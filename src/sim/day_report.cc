// Figures, charts and tables of one published day, each with its mark of input, fit or prediction.
#include "sim/day_report.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "sim/overlap_times.h"

namespace fathom::sim {
namespace {

constexpr double kHourSeconds = 3600;

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
    const double income = (hit * prices_.hit + (input - hit) * prices_.miss + output * prices_.output) / 1e6;
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
    const double speed = ratio(t_.tokens_x_speed, t_.tokens);
    add("decode_tokens_per_s_per_user", speed, Origin::kFit, 21,
        "published 20-22; token-weighted; one fitted constant, decode_phi, was set for it");
    add("decode_tokens_per_s_per_user_time_weighted", ratio(t_.tokens, t_.live_x_seconds));
    add("decode_tokens_per_s_per_user_request_p50", t_.speed_milli.percentile(0.5) / 1e3);
    add("decode_tokens_per_s_per_user_request_p10", t_.speed_milli.percentile(0.1) / 1e3);
    add("decode_tokens_per_s_per_user_request_p01", t_.speed_milli.percentile(0.01) / 1e3);
    add("kv_tokens_per_output_token", ratio(t_.tokens_x_kv, t_.tokens), Origin::kPrediction, 4989,
        "lengths were chosen so that infinite runs give 4,989; a leak or a bias would show here");
    add("decode_step_ms_mean", ratio(t_.step_seconds, static_cast<double>(t_.steps)) * 1e3);
    add("decode_requests_per_rank_mean",
        ratio(t_.live_x_seconds, t_.step_seconds * run_.options.shape.decode_ranks), Origin::kPrediction,
        88.2, "published by Little's law at 21 tok/s");
    add("exposed_communication_share", ratio(t_.exposed_us, t_.layer_us), Origin::kPrediction, {},
        "of a decode layer's time");
  }

  void waiting() {
    for (const auto& [suffix, p] : {std::pair{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}}) {
      add(fmt::format("ttft_s_{}", suffix), t_.ttft_ms.percentile(p) / 1e3);
      add(fmt::format("queue_wait_s_{}", suffix), t_.queue_ms.percentile(p) / 1e3);
    }
    const FleetOptions& o = run_.options;
    add("slo_ttft_attainment", t_.ttft_ms.share_at_most(static_cast<uint64_t>(o.slo_ttft_s * 1e3)),
        Origin::kPrediction, {}, fmt::format("first token within {} s", o.slo_ttft_s));
    const auto speed_floor = static_cast<uint64_t>(o.slo_tokens_per_s_per_user * 1e3);
    add("slo_speed_attainment", 1 - t_.speed_milli.share_at_most(speed_floor), Origin::kPrediction, {},
        fmt::format("at least {} tokens/s over the request", o.slo_tokens_per_s_per_user));
    add("goodput_output_tokens_per_s", static_cast<double>(t_.good_output_tokens) / t_.seconds,
        Origin::kPrediction, {}, "output tokens of requests within both objectives");
    add("goodput_share",
        ratio(static_cast<double>(t_.good_output_tokens), static_cast<double>(t_.finished_output_tokens)));
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

// Hours since the start of the day at the middle of a cell; a fraction's cells are spread over their hour.
double cell_hour(size_t cell) { return (static_cast<double>(cell) + 0.5) / kCellsPerHour; }

std::vector<std::pair<double, std::string>> clock_ticks(int start_hour) {
  std::vector<std::pair<double, std::string>> ticks;
  for (int h = 0; h <= 24; h += 3) ticks.emplace_back(h, clock_of(h * kHourSeconds, start_hour));
  return ticks;
}

template <typename Value>
Series cell_series(const FleetMetrics& metrics, std::string name, Value value) {
  Series series{std::move(name), {}, false};
  for (size_t i = 0; i < metrics.cells.size(); ++i)
    series.points.emplace_back(cell_hour(i), value(metrics.cells[i]));
  return series;
}

// The charts of a day, in the order of the page.
class DayCharts : DayPage {
 public:
  explicit DayCharts(const DayPage& page) : DayPage(page), m_(page.result_.metrics) {}

  void add_all() {
    load_and_money();
    what_users_feel();
    balance_and_cache();
    refusals_and_objectives();
  }

 private:
  void chart(std::string title, std::string y_label, std::vector<Series> series, bool zero = true) {
    report_.charts.push_back({std::move(title), std::move(y_label), "UTC+8", std::move(series),
                              clock_ticks(day_.start_hour), zero});
  }

  static double per_s(double sum, const FleetCell& c) { return ratio(sum, c.seconds); }

  void load_and_money() {
    Series scheduled{"published schedule", {}, true};
    for (const DaySchedule::Change& c : day_.schedule.changes())
      scheduled.points.emplace_back(c.second / kHourSeconds, c.nodes);
    scheduled.points.emplace_back(24, scheduled.points.back().second);
    chart("Nodes", "nodes",
          {cell_series(
               m_, "running",
               [](const FleetCell& c) { return per_s(c.decode_node_seconds + c.prefill_node_seconds, c); }),
           scheduled, cell_series(m_, "draining", [](const FleetCell& c) {
             return per_s(c.decode_drain_node_seconds + c.prefill_drain_node_seconds, c);
           })});
    chart("Load", "requests/s", {cell_series(m_, "arrivals", [](const FleetCell& c) {
            return per_s(static_cast<double>(c.arrived_requests), c);
          })});
    chart("Cost and theoretical income", "USD per hour",
          {cell_series(m_, "cost",
                       [this](const FleetCell& c) {
                         return per_s((c.decode_node_seconds + c.prefill_node_seconds) * hw_.gpus_per_node *
                                          hw_.price_usd_per_gpu_hour,
                                      c);
                       }),
           cell_series(m_, "theoretical income", [this](const FleetCell& c) {
             const auto hit = static_cast<double>(c.cached_tokens);
             const double usd = hit * prices_.hit +
                                (static_cast<double>(c.input_tokens) - hit) * prices_.miss +
                                c.tokens * prices_.output;
             return per_s(usd * kHourSeconds / 1e6, c);
           })});
  }

  void what_users_feel() {
    chart("Speed of whole requests", "tokens/s per user",
          {cell_series(m_, "median", [](const FleetCell& c) { return c.speed_milli.percentile(0.5) / 1e3; }),
           cell_series(m_, "90 % are faster than",
                       [](const FleetCell& c) { return c.speed_milli.percentile(0.1) / 1e3; }),
           cell_series(m_, "99 % are faster than",
                       [](const FleetCell& c) { return c.speed_milli.percentile(0.01) / 1e3; }),
           cell_series(m_, "token-weighted",
                       [](const FleetCell& c) { return ratio(c.tokens_x_speed, c.tokens); })});
    chart("Time to first token", "s",
          {cell_series(m_, "p50", [](const FleetCell& c) { return c.ttft_ms.percentile(0.5) / 1e3; }),
           cell_series(m_, "p90", [](const FleetCell& c) { return c.ttft_ms.percentile(0.9) / 1e3; }),
           cell_series(m_, "p99", [](const FleetCell& c) { return c.ttft_ms.percentile(0.99) / 1e3; })});
    chart("Queue wait", "s",
          {cell_series(m_, "p50", [](const FleetCell& c) { return c.queue_ms.percentile(0.5) / 1e3; }),
           cell_series(m_, "p90", [](const FleetCell& c) { return c.queue_ms.percentile(0.9) / 1e3; }),
           cell_series(m_, "p99", [](const FleetCell& c) { return c.queue_ms.percentile(0.99) / 1e3; })});
  }

  void balance_and_cache() {
    chart("Balance over decode ranks", "largest / mean",
          {cell_series(m_, fmt::format("KV, {}", decode_policy_name(run_.options.decode_policy)),
                       [](const FleetCell& c) {
                         return std::max(1.0, ratio(c.kv_ratio_sum, static_cast<double>(c.balanced_steps)));
                       }),
           cell_series(m_, "requests",
                       [](const FleetCell& c) {
                         return std::max(1.0,
                                         ratio(c.requests_ratio_sum, static_cast<double>(c.balanced_steps)));
                       })},
          false);
    chart("KV use of the fullest rank", "share of room", {cell_series(m_, "KV", [this](const FleetCell& c) {
            return c.kv_milli_max / kMilli / result_.kv_room_tokens;
          })});
    chart("Prompt tokens found in the cache", "share", {cell_series(m_, "hits", [](const FleetCell& c) {
            return ratio(static_cast<double>(c.cached_tokens), static_cast<double>(c.input_tokens));
          })});
    chart("Exposed communication", "share of a decode layer",
          {cell_series(m_, "exposed", [](const FleetCell& c) { return ratio(c.exposed_us, c.layer_us); })});
  }

  void refusals_and_objectives() {
    chart("Refused, and waiting for KV room", "requests/s",
          {cell_series(m_, "refused",
                       [](const FleetCell& c) { return per_s(static_cast<double>(c.refused_requests), c); }),
           cell_series(m_, "found no rank with room",
                       [](const FleetCell& c) { return per_s(static_cast<double>(c.admission_waits), c); })});
    const auto ttft_ms = static_cast<uint64_t>(run_.options.slo_ttft_s * 1e3);
    const auto speed_milli = static_cast<uint64_t>(run_.options.slo_tokens_per_s_per_user * 1e3);
    chart(fmt::format("Objectives: first token within {} s, {} tokens/s", run_.options.slo_ttft_s,
                      run_.options.slo_tokens_per_s_per_user),
          "share",
          {cell_series(m_, "first token in time",
                       [ttft_ms](const FleetCell& c) { return c.ttft_ms.share_at_most(ttft_ms); }),
           cell_series(
               m_, "fast enough",
               [speed_milli](const FleetCell& c) { return 1 - c.speed_milli.share_at_most(speed_milli); }),
           cell_series(m_, "output tokens in requests within both", [](const FleetCell& c) {
             return ratio(static_cast<double>(c.good_output_tokens),
                          static_cast<double>(c.finished_output_tokens));
           })});
    chart(
        "Goodput", "output tokens/s in requests within both objectives",
        {cell_series(m_, "goodput",
                     [](const FleetCell& c) { return per_s(static_cast<double>(c.good_output_tokens), c); }),
         cell_series(m_, "all", [](const FleetCell& c) {
           return per_s(static_cast<double>(c.finished_output_tokens), c);
         })});
  }

  const FleetMetrics& m_;
};

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
  std::string units = "from,nodes,decode_units,prefill_units\n";
  for (const DaySchedule::Change& c : result.units) {
    units += fmt::format("{},{},{},{}\n", clock_of(c.second, day.start_hour), c.nodes, c.units.decode,
                         c.units.prefill);
  }
  report.csv_files.push_back({"hours.csv", std::move(hours)});
  report.csv_files.push_back({"units.csv", std::move(units)});
}

}  // namespace

Timeline decode_layer_timeline(const DecodeStages& stages) {
  constexpr int kLayersShown = 8;  // the fourth is in the steady state
  constexpr int kLayer = 4;
  const OverlapStageTimes times = overlap_times(stages);
  const std::array<OverlapStageTimes, 2> both = {times, times};
  const OverlapTable& table = decode_table();
  const OverlapTimeline line = evaluate_overlap(table, both, kLayersShown);
  double begin = 1e300;
  for (const OverlapSpan& span : line.spans) {
    if (span.layer == kLayer) begin = std::min(begin, span.start_us);
  }
  const double end = begin + line.layer_us;
  Timeline timeline{"One decode layer of both micro-batches", "us", {"compute", "network"}, {}};
  for (const OverlapSpan& span : line.spans) {
    if (span.end_us <= begin || span.start_us >= end) continue;
    const OverlapOp& op = table.ops[static_cast<size_t>(span.op)];
    const int lane = op.stream == OverlapStream::kCompute ? 0 : 1;
    const std::string label =
        fmt::format("{}({})", overlap_stage_name(op.stage), static_cast<int>(op.micro_batch));
    timeline.bars.push_back({lane, std::max(span.start_us, begin) - begin, std::min(span.end_us, end) - begin,
                             label, static_cast<int>(op.stage)});
  }
  return timeline;
}

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
  DayCharts(page).add_all();
  const FleetCell peak = result.metrics.hour(10);
  const double ranks = o.shape.decode_ranks;
  const double live = ratio(peak.live_x_seconds, peak.step_seconds);
  const DecodeLoad load{
      live / ranks * ratio(peak.requests_ratio_sum, static_cast<double>(peak.balanced_steps)), live / ranks,
      live / ranks * ratio(peak.tokens_x_kv, peak.tokens) *
          ratio(peak.kv_ratio_sum, static_cast<double>(peak.balanced_steps))};
  report.timelines.push_back(decode_layer_timeline(decode_stages(hw, model, decode_shape_of(o), load)));
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
