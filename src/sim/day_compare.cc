// Several runs in one report: spread over seeds, decode policies of the published day side by side.
#include <algorithm>
#include <cmath>

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

// Of the cell that a time lies in; runs of other lengths may have other cells.
double value_at(const Series& series, double x) {
  const auto nearest = std::min_element(
      series.points.begin(), series.points.end(),
      [x](const auto& a, const auto& b) { return std::abs(a.first - x) < std::abs(b.first - x); });
  return nearest->second;
}

Chart speed_spread(const std::vector<Report>& runs) {
  const Series& first = speed_of(runs.front());
  const Chart& axis = runs.front().charts.front();
  Chart chart{fmt::format("User speed over {} seeds", runs.size()),
              "tokens/s per user",
              axis.x_label,
              {{"least", {}, false}, {"mean", {}, false}, {"most", {}, false}},
              axis.x_ticks,
              false};
  double end = 1e300;
  for (const Report& run : runs) end = std::min(end, speed_of(run).points.back().first);
  for (const auto& [x, unused] : first.points) {
    if (x > end) break;
    double sum = 0, least = 1e300, most = -1e300;
    for (const Report& run : runs) {
      const double value = value_at(speed_of(run), x);
      sum += value;
      least = std::min(least, value);
      most = std::max(most, value);
    }
    if (std::isnan(sum)) continue;  // nobody read in one of the runs
    chart.series[0].points.emplace_back(x, least);
    chart.series[1].points.emplace_back(x, sum / static_cast<double>(runs.size()));
    chart.series[2].points.emplace_back(x, most);
  }
  return chart;
}

}  // namespace

void add_seed_spread(Report& report, const std::vector<Report>& runs) {
  Table table{fmt::format("Spread over {} seeds", runs.size()), "", {"figure", "mean", "least", "most"}, {}};
  for (const char* name :
       {"decode_tokens_per_s_per_user", "kv_tokens_per_output_token", "kv_max_over_mean",
        "requests_max_over_mean", "hit_share", "ttft_s_p50", "ttft_s_p99", "goodput_share", "node_hours"}) {
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
  std::vector<Series> kv;
  Table table{"Decode balancers on this load",
              "The same arrivals and units; means over the day.",
              {"policy", "tokens/s per user", "KV max/mean", "requests max/mean", "waits for KV room",
               "first token p99, s"},
              {}};
  for (const PolicyDay& day : days) {
    kv.push_back(cell_series(day.metrics, 1.0 / kCellsPerHour, day.policy, kv_max_over_mean));
    const FleetCell total = day.metrics.total();
    const double kv_ratio = kv_max_over_mean(total), requests_ratio = requests_max_over_mean(total);
    const double speed = total.tokens > 0 ? total.tokens_x_speed / total.tokens : 0;
    table.rows.push_back({day.policy, fmt::format("{:.2f}", speed), fmt::format("{:.3f}", kv_ratio),
                          fmt::format("{:.3f}", requests_ratio),
                          pretty_number(static_cast<double>(total.admission_waits)),
                          fmt::format("{:.2f}", total.ttft_ms.percentile(0.99) / 1e3)});
    std::string name = day.policy;
    std::replace(name.begin(), name.end(), '-', '_');
    report.figures.push_back(
        {fmt::format("decode_tokens_per_s_per_user_{}", name), speed, Origin::kPrediction, {}, ""});
    report.figures.push_back(
        {fmt::format("kv_max_over_mean_{}", name), kv_ratio, Origin::kPrediction, {}, ""});
  }
  report.charts.push_back(kv_by_balancer(std::move(kv), report.charts.front()));
  report.tables.push_back(std::move(table));
}

}  // namespace fathom::sim
