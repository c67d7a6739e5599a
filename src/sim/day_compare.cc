// Several runs of the published day in one report: spread over seeds, decode policies side by side.
#include <algorithm>

#include "base/check.h"
#include "sim/day_report.h"

namespace fathom::sim {
namespace {

constexpr const char* kSpeedChart = "Speed of whole requests";
constexpr const char* kSpeedSeries = "token-weighted";

const Series& speed_of(const Report& run) {
  for (const Chart& chart : run.charts) {
    if (chart.title != kSpeedChart) continue;
    for (const Series& series : chart.series) {
      if (series.name == kSpeedSeries) return series;
    }
  }
  CHECK_MSG(false, "the report has no chart of speeds");
}

Chart speed_spread(const std::vector<Report>& runs) {
  const Series& first = speed_of(runs.front());
  Chart chart{fmt::format("User speed over {} seeds", runs.size()),
              "tokens/s per user",
              "UTC+8",
              {{"least", {}, false}, {"mean", {}, false}, {"most", {}, false}},
              runs.front().charts.front().x_ticks,
              false};
  for (size_t i = 0; i < first.points.size(); ++i) {
    double sum = 0, least = 1e300, most = -1e300;
    for (const Report& run : runs) {
      const double value = speed_of(run).points[i].second;
      sum += value;
      least = std::min(least, value);
      most = std::max(most, value);
    }
    const double x = first.points[i].first;
    chart.series[0].points.emplace_back(x, least);
    chart.series[1].points.emplace_back(x, sum / static_cast<double>(runs.size()));
    chart.series[2].points.emplace_back(x, most);
  }
  return chart;
}

double kv_ratio(const FleetCell& c) {
  return c.balanced_steps > 0 ? c.kv_ratio_sum / static_cast<double>(c.balanced_steps) : 1;
}

}  // namespace

void add_seed_spread(Report& report, const std::vector<Report>& runs) {
  Table table{fmt::format("Spread over {} seeds", runs.size()), "", {"figure", "mean", "least", "most"}, {}};
  for (const char* name :
       {"decode_tokens_per_s_per_user", "kv_tokens_per_output_token", "kv_max_over_mean",
        "requests_max_over_mean", "ttft_s_p50", "ttft_s_p99", "goodput_share", "node_hours"}) {
    double sum = 0, least = 1e300, most = -1e300;
    for (const Report& run : runs) {
      const Figure* figure = run.find(name);
      CHECK(figure != nullptr);
      sum += figure->value;
      least = std::min(least, figure->value);
      most = std::max(most, figure->value);
    }
    const double mean = sum / static_cast<double>(runs.size());
    table.rows.push_back({name, pretty_number(mean), pretty_number(least), pretty_number(most)});
    report.figures.push_back({fmt::format("{}_seed_mean", name), mean, Origin::kPrediction, {}, ""});
    report.figures.push_back(
        {fmt::format("{}_seed_spread", name), most - least, Origin::kPrediction, {}, "most - least"});
  }
  report.charts.push_back(speed_spread(runs));
  report.tables.push_back(std::move(table));
}

void add_policy_comparison(Report& report, const std::vector<PolicyDay>& days) {
  Chart chart{"KV over decode ranks, by balancer",
              "largest / mean",
              "UTC+8",
              {},
              report.charts.front().x_ticks,
              false};
  Table table{"Decode balancers on this load",
              "The same arrivals and units; means over the day.",
              {"policy", "tokens/s per user", "KV max/mean", "requests max/mean", "waits for KV room",
               "first token p99, s"},
              {}};
  for (const PolicyDay& day : days) {
    Series series{day.policy, {}, false};
    for (size_t i = 0; i < day.metrics.cells.size(); ++i) {
      series.points.emplace_back((static_cast<double>(i) + 0.5) / kCellsPerHour,
                                 std::max(1.0, kv_ratio(day.metrics.cells[i])));
    }
    chart.series.push_back(std::move(series));
    const FleetCell total = day.metrics.total();
    const double requests =
        total.requests_ratio_sum / std::max<double>(1, static_cast<double>(total.balanced_steps));
    const double speed = total.tokens > 0 ? total.tokens_x_speed / total.tokens : 0;
    table.rows.push_back({day.policy, fmt::format("{:.2f}", speed), fmt::format("{:.3f}", kv_ratio(total)),
                          fmt::format("{:.3f}", requests),
                          pretty_number(static_cast<double>(total.admission_waits)),
                          fmt::format("{:.2f}", total.ttft_ms.percentile(0.99) / 1e3)});
    std::string name = day.policy;
    std::replace(name.begin(), name.end(), '-', '_');
    report.figures.push_back(
        {fmt::format("decode_tokens_per_s_per_user_{}", name), speed, Origin::kPrediction, {}, ""});
    report.figures.push_back(
        {fmt::format("kv_max_over_mean_{}", name), kv_ratio(total), Origin::kPrediction, {}, ""});
  }
  report.charts.push_back(std::move(chart));
  report.tables.push_back(std::move(table));
}

}  // namespace fathom::sim
