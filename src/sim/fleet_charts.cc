// The charts of a fleet over time, in the order of the page, and the figures beside them.
#include "sim/fleet_charts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/overlap_times.h"

namespace fathom::sim {
namespace {

constexpr double kHourSeconds = 3600;
constexpr double kSecondsAxisMax = 400, kMinutesAxisMax = 4 * kHourSeconds;
constexpr double kGap = std::numeric_limits<double>::quiet_NaN();

double ratio(double a, double b) { return b != 0 ? a / b : 0; }
double ratio_or_gap(double a, double b) { return b != 0 ? a / b : kGap; }
double per_s(double sum, const FleetCell& c) { return ratio(sum, c.seconds); }

double percentile_or_gap(const LogHistogram& h, double share) {
  return h.total() > 0 ? h.percentile(share) / 1e3 : kGap;
}

class FleetCharts {
 public:
  FleetCharts(const FleetPage& page, Report& report) : page_(page), report_(report) {}

  void add_all() {
    load_and_money();
    what_users_feel();
    balance_and_cache();
    refusals();
    objectives();
  }

 private:
  void chart(std::string title, std::string y_label, std::vector<Series> series, bool zero = true) {
    report_.charts.push_back(
        {std::move(title), std::move(y_label), page_.axis.label, std::move(series), page_.axis.ticks, zero});
  }

  template <typename Value>
  Series cells(std::string name, Value value) const {
    return cell_series(page_.metrics, page_.axis.cell_x, std::move(name), value);
  }

  // A count of each cell, per second.
  Series rate(std::string name, int64_t FleetCell::* count) const {
    return cells(std::move(name),
                 [count](const FleetCell& c) { return per_s(static_cast<double>(c.*count), c); });
  }

  Series percentile(std::string name, LogHistogram FleetCell::* histogram, double share) const {
    return cells(std::move(name),
                 [histogram, share](const FleetCell& c) { return percentile_or_gap(c.*histogram, share); });
  }

  void load_and_money() {
    std::vector<Series> nodes = {cells("running", [](const FleetCell& c) {
      return per_s(c.decode_node_seconds + c.prefill_node_seconds, c);
    })};
    for (const Series& planned : page_.planned_nodes) nodes.push_back(planned);
    nodes.push_back(cells("draining", [](const FleetCell& c) {
      return per_s(c.decode_drain_node_seconds + c.prefill_drain_node_seconds, c);
    }));
    chart("Nodes", "nodes", std::move(nodes));
    chart("Load", "requests/s", {rate("arrivals", &FleetCell::arrived_requests)});
    chart("Cost and theoretical income", "USD per hour",
          {cells("cost",
                 [this](const FleetCell& c) {
                   return per_s((c.decode_node_seconds + c.prefill_node_seconds) * page_.usd_per_node_hour,
                                c);
                 }),
           cells("theoretical income", [this](const FleetCell& c) {
             return per_s(page_.prices.usd(static_cast<double>(c.cached_tokens),
                                           static_cast<double>(c.input_tokens), c.tokens) *
                              kHourSeconds,
                          c);
           })});
  }

  void what_users_feel() {
    chart("Speed of whole requests", "tokens/s per user",
          {percentile("median", &FleetCell::speed_milli, 0.5),
           percentile("90 % are faster than", &FleetCell::speed_milli, 0.1),
           percentile("99 % are faster than", &FleetCell::speed_milli, 0.01),
           cells("token-weighted",
                 [](const FleetCell& c) { return ratio_or_gap(c.tokens_x_speed, c.tokens); })});
    for (const auto& [title, histogram] :
         {std::pair{"Time to first token", &FleetCell::ttft_ms}, {"Queue wait", &FleetCell::queue_ms}}) {
      chart(title, "s",
            {percentile("p50", histogram, 0.5), percentile("p90", histogram, 0.9),
             percentile("p99", histogram, 0.99)});
    }
  }

  void balance_and_cache() {
    chart("Balance over decode ranks", "largest / mean",
          {cells("KV, " + page_.decode_policy, kv_max_over_mean), cells("requests", requests_max_over_mean)},
          false);
    chart("Balance over prefill ranks", "largest / mean, full forwards",
          {cells("tokens", prefill_tokens_max_over_mean)}, false);
    chart(
        "KV use of the fullest rank", "share of room",
        {cells("KV", [this](const FleetCell& c) { return c.kv_milli_max / kMilli / page_.kv_room_tokens; })});
    chart("Prompt tokens found in the cache", "share", {cells("hits", hit_share)});
    chart("Exposed communication", "share of a layer",
          {cells("decode", [](const FleetCell& c) { return ratio_or_gap(c.exposed_us, c.layer_us); }),
           cells("prefill",
                 [](const FleetCell& c) { return ratio_or_gap(c.prefill_exposed_us, c.prefill_layer_us); })});
  }

  void refusals() {
    const Series no_room = rate("found no rank with room", &FleetCell::admission_waits);
    if (!page_.block_exact) {
      chart("Refused, and waiting for KV room", "requests/s",
            {rate("refused", &FleetCell::refused_requests), no_room});
      return;
    }
    chart("Not answered in time, and waiting for KV room", "requests/s",
          {rate("told so at their deadline", &FleetCell::expired_requests),
           rate("too long for any rank", &FleetCell::refused_requests), no_room,
           rate("hand-overs refused", &FleetCell::refused_offers)});
  }

  void objectives() {
    const double ttft_s = page_.slo_ttft_s, speed = page_.slo_tokens_per_s_per_user;
    chart(fmt::format("Objectives: first token within {} s, {} tokens/s", ttft_s, speed), "share",
          {cells("first token in time",
                 [ttft_s](const FleetCell& c) {
                   const bool any = c.ttft_ms.total() > 0 || c.expired_without_token > 0;
                   return any ? c.ttft_attainment(ttft_s) : kGap;
                 }),
           cells("fast enough",
                 [speed](const FleetCell& c) {
                   return c.speed_milli.total() > 0 ? c.speed_attainment(speed) : kGap;
                 }),
           cells("output tokens in requests within both", [](const FleetCell& c) {
             return ratio_or_gap(static_cast<double>(c.good_output_tokens),
                                 static_cast<double>(c.finished_output_tokens));
           })});
    chart("Goodput", "output tokens/s in requests within both objectives",
          {rate("goodput", &FleetCell::good_output_tokens), rate("all", &FleetCell::finished_output_tokens)});
  }

  const FleetPage& page_;
  Report& report_;
};

void add(Report& report, std::string name, double value, std::optional<double> published = {},
         std::string note = {}) {
  report.figures.push_back({std::move(name), value, Origin::kPrediction, published, std::move(note)});
}

}  // namespace

TimeAxis axis_since_start(double cell_s, size_t num_cells, double load_s) {
  const auto [unit_s, unit] = load_s <= kSecondsAxisMax   ? std::pair{1.0, "seconds"}
                              : load_s <= kMinutesAxisMax ? std::pair{60.0, "minutes"}
                                                          : std::pair{kHourSeconds, "hours"};
  TimeAxis axis{cell_s / unit_s, fmt::format("{} since the start", unit), {}};
  const double span = axis.cell_x * static_cast<double>(num_cells), step = nice_step(span);
  for (int i = 0; i * step <= span; ++i) axis.ticks.emplace_back(i * step, fmt::format("{:g}", i * step));
  return axis;
}

double kv_max_over_mean(const FleetCell& c) {
  return ratio_or_gap(c.kv_ratio_sum, static_cast<double>(c.balanced_steps));
}

double requests_max_over_mean(const FleetCell& c) {
  return ratio_or_gap(c.requests_ratio_sum, static_cast<double>(c.balanced_steps));
}

double prefill_tokens_max_over_mean(const FleetCell& c) {
  return ratio_or_gap(c.token_ratio_sum, static_cast<double>(c.saturated_forwards));
}

double hit_share(const FleetCell& c) {
  return ratio_or_gap(static_cast<double>(c.cached_tokens), static_cast<double>(c.input_tokens));
}

void add_fleet_charts(const FleetPage& page, Report& report) { FleetCharts(page, report).add_all(); }

Chart kv_by_balancer(std::vector<Series> kv, const Chart& axis) {
  return {"KV over decode ranks, by balancer",
          "largest / mean",
          axis.x_label,
          std::move(kv),
          axis.x_ticks,
          false};
}

void add_wait_figures(const FleetCell& total, Report& report) {
  for (const auto& [suffix, p] : {std::pair{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}}) {
    add(report, fmt::format("ttft_s_{}", suffix), total.ttft_ms.percentile(p) / 1e3);
    add(report, fmt::format("queue_wait_s_{}", suffix), total.queue_ms.percentile(p) / 1e3);
  }
}

void add_speed_figures(const FleetCell& total, double decode_ranks, bool published, Report& report) {
  const auto beside = [&](double value) { return published ? std::optional(value) : std::nullopt; };
  const auto note = [&](const char* text) { return std::string(published ? text : ""); };
  const std::string speed = "decode_tokens_per_s_per_user_";
  add(report, speed + "time_weighted", ratio(total.tokens, total.live_x_seconds));
  for (const auto& [suffix, p] : {std::pair{"p50", 0.5}, {"p10", 0.1}, {"p01", 0.01}})
    add(report, speed + "request_" + suffix, total.speed_milli.percentile(p) / 1e3);
  add(report, "kv_tokens_per_output_token", ratio(total.tokens_x_kv, total.tokens), beside(4989),
      note("lengths were chosen so that infinite runs give 4,989; a leak or a bias would show here"));
  add(report, "decode_step_ms_mean", ratio(total.step_seconds, static_cast<double>(total.steps)) * 1e3);
  add(report, "decode_requests_per_rank_mean", ratio(total.live_x_seconds, total.step_seconds * decode_ranks),
      beside(88.2), note("published by Little's law at 21 tok/s"));
  add(report, "exposed_communication_share", ratio(total.exposed_us, total.layer_us), {},
      "of a decode layer's time");
  add(report, "prefill_exposed_communication_share", ratio(total.prefill_exposed_us, total.prefill_layer_us),
      {}, "of a prefill layer's");
}

void add_objective_figures(const FleetCell& total, double slo_ttft_s, double slo_tokens_per_s_per_user,
                           Report& report) {
  add(report, "slo_ttft_attainment", total.ttft_attainment(slo_ttft_s), {},
      fmt::format("first token within {} s", slo_ttft_s));
  const bool any_speed = total.speed_milli.total() > 0;
  add(report, "slo_speed_attainment",
      any_speed ? total.speed_attainment(slo_tokens_per_s_per_user) : std::nan(""), {},
      fmt::format("at least {} tokens/s over the request", slo_tokens_per_s_per_user));
  const auto good = static_cast<double>(total.good_output_tokens);
  add(report, "goodput_output_tokens_per_s", ratio(good, total.seconds), {},
      "output tokens of requests within both objectives");
  add(report, "goodput_share", ratio(good, static_cast<double>(total.finished_output_tokens)));
}

DecodeLoad decode_load_of(const FleetCell& cell, double decode_ranks) {
  const double live = ratio(cell.live_x_seconds, cell.step_seconds) / decode_ranks;
  const auto unequal = [](double max_over_mean) { return std::isnan(max_over_mean) ? 1 : max_over_mean; };
  return {live * unequal(requests_max_over_mean(cell)), live,
          live * ratio(cell.tokens_x_kv, cell.tokens) * unequal(kv_max_over_mean(cell))};
}

Timeline decode_layer_timeline(const DecodeStages& halves, const DecodeStages& whole) {
  constexpr int kLayersShown = 8;  // the fourth is in the steady state
  constexpr int kLayer = 4;
  const bool overlaps = decode_layer(halves, whole).table == &decode_table();
  const OverlapTable& table = overlaps ? decode_table() : plain_table();
  const std::vector<OverlapStageTimes> times(overlaps ? 2 : 1, overlap_times(overlaps ? halves : whole));
  const OverlapTimeline line = evaluate_overlap(table, times, kLayersShown);
  double begin = 1e300;
  for (const OverlapSpan& span : line.spans) {
    if (span.layer == kLayer) begin = std::min(begin, span.start_us);
  }
  const double end = begin + line.layer_us;
  Timeline timeline{overlaps ? "One decode layer of both micro-batches"
                             : "One decode layer, too small a batch for two micro-batches",
                    "us",
                    {"compute", "network"},
                    {}};
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

}  // namespace fathom::sim
