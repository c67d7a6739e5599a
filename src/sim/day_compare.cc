// Several runs in one report: spread over seeds, decode policies of the published day side by side.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "sim/day_report.h"

namespace fathom::sim {
namespace {

constexpr const char* kSpeedChart = "Speed of whole requests";
constexpr const char* kSpeedSeries = "token-weighted";
constexpr const char* kGainOver = "kv-capped";  // the best of the policies known before

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

// Mean, least and most over seeds.
struct Spread {
  double sum = 0, least = 1e300, most = -1e300;
  int count = 0;
  void add(double value) {
    sum += value, ++count;
    least = std::min(least, value), most = std::max(most, value);
  }
  double mean() const { return sum / count; }
};

struct PolicySums {
  Spread speed, kv_ratio, requests_ratio, waits, ttft_p99_s;
};

// Where no step was full enough to tell.
double or_zero(double value) { return std::isnan(value) ? 0 : value; }

PolicySums sums_of(const PolicyDay& day) {
  PolicySums sums;
  for (const FleetCell& total : day.totals) {
    sums.speed.add(total.tokens > 0 ? total.tokens_x_speed / total.tokens : 0);
    sums.kv_ratio.add(or_zero(kv_max_over_mean(total)));
    sums.requests_ratio.add(or_zero(requests_max_over_mean(total)));
    sums.waits.add(static_cast<double>(total.admission_waits));
    sums.ttft_p99_s.add(total.ttft_ms.percentile(0.99) / 1e3);
  }
  return sums;
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
    if (!std::isfinite(mean)) least = most = mean;  // a figure without a value
    table.rows.push_back({name, pretty_number(mean), pretty_number(least), pretty_number(most)});
    report.figures.push_back({fmt::format("{}_seed_mean", name), mean, Origin::kPrediction, {}, ""});
    report.figures.push_back(
        {fmt::format("{}_seed_spread", name), most - least, Origin::kPrediction, {}, "most - least"});
  }
  report.charts.push_back(speed_spread(runs));
  report.tables.push_back(std::move(table));
}

void add_policy_comparison(Report& report, const std::vector<PolicyDay>& days, const PolicyDay& perfect) {
  const auto base =
      std::find_if(days.begin(), days.end(), [](const PolicyDay& day) { return day.policy == kGainOver; });
  CHECK_MSG(base != days.end(), "no day to count gains from");
  const double base_speed = sums_of(*base).speed.mean();
  std::vector<Series> kv;
  Table table{
      "Decode balancers on this load",
      fmt::format("The same arrivals over {} seeds, the schedule's units; means over the days. The last "
                  "row is a bound: the same steps with KV and requests spread evenly.",
                  days.front().totals.size()),
      {"policy", "tokens/s per user", "least", "most", fmt::format("gain over {}", kGainOver), "KV max/mean",
       "requests max/mean", "waits for KV room", "first token p99, s"},
      {}};
  std::string csv =
      "policy,decode_tokens_per_s_per_user,decode_tokens_per_s_per_user_least,decode_tokens_per_s_per_user_"
      "most,decode_speed_gain_percent,kv_max_over_mean,requests_max_over_mean,decode_admission_waits,ttft_s_"
      "p99\n";
  const auto add = [&](const PolicyDay& day, bool bound) {
    const PolicySums s = sums_of(day);
    const double gain = 100 * (s.speed.mean() / base_speed - 1);
    // The bound's steps are charged as if there were no spread.
    const double kv_ratio = bound ? 1 : s.kv_ratio.mean(), requests = bound ? 1 : s.requests_ratio.mean();
    table.rows.push_back({day.policy, fmt::format("{:.2f}", s.speed.mean()),
                          fmt::format("{:.2f}", s.speed.least), fmt::format("{:.2f}", s.speed.most),
                          fmt::format("{:+.1f} %", gain + 0.0), fmt::format("{:.3f}", kv_ratio),
                          fmt::format("{:.3f}", requests), pretty_number(s.waits.mean()),
                          fmt::format("{:.2f}", s.ttft_p99_s.mean())});
    csv += fmt::format("{},{},{},{},{},{},{},{},{}\n", day.policy, s.speed.mean(), s.speed.least,
                       s.speed.most, gain, kv_ratio, requests, s.waits.mean(), s.ttft_p99_s.mean());
    std::string name = day.policy;
    std::replace(name.begin(), name.end(), '-', '_');
    const std::string note = bound ? "a bound: KV and requests spread evenly" : "";
    report.figures.push_back({fmt::format("decode_tokens_per_s_per_user_{}", name),
                              s.speed.mean(),
                              Origin::kPrediction,
                              {},
                              note});
    report.figures.push_back({fmt::format("decode_speed_gain_percent_{}", name),
                              gain,
                              Origin::kPrediction,
                              {},
                              fmt::format("over {}{}{}", kGainOver, bound ? "; " : "", note)});
    if (!bound)
      report.figures.push_back(
          {fmt::format("kv_max_over_mean_{}", name), kv_ratio, Origin::kPrediction, {}, ""});
  };
  for (const PolicyDay& day : days) {
    kv.push_back(cell_series(day.metrics, 1.0 / kCellsPerHour, day.policy, kv_max_over_mean));
    add(day, false);
  }
  add(perfect, true);
  report.charts.push_back(kv_by_balancer(std::move(kv), report.charts.front()));
  report.tables.push_back(std::move(table));
  report.csv_files.push_back({"policies.csv", std::move(csv)});
}

}  // namespace fathom::sim
