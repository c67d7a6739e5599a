// Load and schedule of the published day: reading, integrals, and the load between hours.
#include "sim/day_files.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/check.h"
#include "sim/csv.h"

namespace fathom::sim {
namespace {

constexpr int kHourSeconds = 3600;
constexpr int kKnotSeconds = 1800;
constexpr int64_t kUnitsMax = 500;
constexpr int kNodesAny = 1 << 30;

// "HH:MM" to minutes.
Result<int> minutes_of(const std::string& file, const CsvRow& row) {
  const std::string_view text = row.fields[0];
  const auto digit = [&](size_t i) { return text[i] >= '0' && text[i] <= '9' ? text[i] - '0' : -1000; };
  const int minutes =
      text.size() == 5 && text[2] == ':' ? (digit(0) * 10 + digit(1)) * 60 + digit(3) * 10 + digit(4) : -1;
  if (minutes < 0 || minutes >= 24 * 60 || digit(3) > 5) {
    return invalid_argument("{}:{}: from: \"{}\" is not a time HH:MM", file, row.line, text);
  }
  return minutes;
}

}  // namespace

Result<DaySchedule> parse_schedule(const std::string& file, std::string_view text,
                                   const UnitCounts& unit_nodes) {
  std::vector<DaySchedule::Change> changes;
  int start_minutes = -1;
  RETURN_IF_ERROR(csv_whole(file, text));
  for (const CsvRow& row : csv_rows(text)) {
    if (row.fields[0] == "from") continue;
    ASSIGN_OR_RETURN(const int minutes, minutes_of(file, row));
    if (start_minutes < 0) start_minutes = minutes;
    DaySchedule::Change change;
    change.second = (minutes - start_minutes + 1440) % 1440 * 60;
    if (!changes.empty() && change.second <= changes.back().second) {
      return invalid_argument("{}:{}: from: not later than the row before", file, row.line);
    }
    ASSIGN_OR_RETURN(const int64_t nodes, csv_integer(file, row, 1, "nodes", 1, 1'000'000));
    ASSIGN_OR_RETURN(const int64_t decode, csv_integer(file, row, 2, "decode_units", 1, kUnitsMax));
    ASSIGN_OR_RETURN(const int64_t prefill, csv_integer(file, row, 3, "prefill_units", 1, kUnitsMax));
    RETURN_IF_ERROR(csv_width(file, row, 4));
    change.nodes = static_cast<int>(nodes);
    change.units = {static_cast<int>(decode), static_cast<int>(prefill)};
    if (nodes != decode * unit_nodes.decode + prefill * unit_nodes.prefill) {
      return invalid_argument("{}:{}: nodes: {} do not divide into {} units of {} and {} of {}", file,
                              row.line, nodes, decode, unit_nodes.decode, prefill, unit_nodes.prefill);
    }
    changes.push_back(change);
  }
  if (changes.empty()) return invalid_argument("{}:1: from: no rows", file);
  return DaySchedule(std::move(changes));
}

DaySchedule schedule_of_fleet(const DaySchedule& schedule, const UnitCounts& most,
                              const UnitCounts& unit_nodes) {
  const UnitCounts peak = units_max(schedule);
  const auto share = [](int units, int of, int fleet) { return (units * fleet + of - 1) / of; };
  std::vector<DaySchedule::Change> changes = schedule.changes();
  for (DaySchedule::Change& change : changes) {
    change.units = {share(change.units.decode, peak.decode, most.decode),
                    share(change.units.prefill, peak.prefill, most.prefill)};
    change.nodes = change.units.decode * unit_nodes.decode + change.units.prefill * unit_nodes.prefill;
  }
  return DaySchedule(std::move(changes));
}

UnitCounts units_max(const DaySchedule& schedule) {
  UnitCounts most{1, 1};
  for (const DaySchedule::Change& change : schedule.changes()) {
    most.decode = std::max(most.decode, change.units.decode);
    most.prefill = std::max(most.prefill, change.units.prefill);
  }
  return most;
}

DayLoad::DayLoad(const std::array<double, 24>& hourly) : hours_(hourly) {
  double sum = 0;
  for (const double share : hours_) sum += share;
  CHECK(sum > 0);
  for (double& share : hours_) share /= sum;
  const auto mean = [&](int hour) { return hours_[(hour + 24) % 24] / kHourSeconds; };
  for (int h = 0; h <= 24; ++h) knots_[2 * h] = (mean(h - 1) + mean(h)) / 2;
  for (int h = 0; h < 24; ++h) {
    knots_[2 * h + 1] = std::max(0.0, (4 * mean(h) - knots_[2 * h] - knots_[2 * h + 2]) / 2);
  }
}

double DayLoad::share_per_s(double second) const {
  const int knot = std::clamp(static_cast<int>(second / kKnotSeconds), 0, 47);
  const double inside = second / kKnotSeconds - knot;
  return knots_[knot] + (knots_[knot + 1] - knots_[knot]) * inside;
}

DaySchedule::DaySchedule(std::vector<Change> changes) : changes_(std::move(changes)) {
  for (const Change& change : changes_)
    rows_.push_back({change.second, {change.units.prefill, change.units.decode}});
}

UnitCounts DaySchedule::units_at(double second) const {
  AutoscaleSnapshot now;
  now.now_s = second;
  AutoscaleOptions options;  // no budget: a schedule's drains are counted beside it
  options.budget_nodes = kNodesAny;
  const AutoscaleDecision decision = schedule_units(rows_, now, options);
  return {decision.target[static_cast<int>(UnitKind::kDecode)],
          decision.target[static_cast<int>(UnitKind::kPrefill)]};
}

int DaySchedule::peak_nodes() const {
  int peak = 0;
  for (const Change& change : changes_) peak = std::max(peak, change.nodes);
  return peak;
}

namespace {
template <typename Value>
double day_integral(const std::vector<DaySchedule::Change>& changes, Value value) {
  double sum = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    const int end = i + 1 < changes.size() ? changes[i + 1].second : kDaySeconds;
    sum += value(changes[i]) * static_cast<double>(end - changes[i].second);
  }
  return sum;
}
}  // namespace

double DaySchedule::node_hours() const {
  return day_integral(changes_, [](const Change& c) { return c.nodes; }) / kHourSeconds;
}
double DaySchedule::nodes_mean_until(double second) const {
  const double days = std::floor(second / kDaySeconds), rest = second - days * kDaySeconds;
  double node_seconds = days * node_hours() * kHourSeconds;
  for (size_t i = 0; i < changes_.size() && changes_[i].second < rest; ++i) {
    const double end = i + 1 < changes_.size() ? changes_[i + 1].second : kDaySeconds;
    node_seconds += changes_[i].nodes * (std::min(end, rest) - changes_[i].second);
  }
  return second > 0 ? node_seconds / second : changes_.front().nodes;
}
double DaySchedule::decode_units_mean() const {
  return day_integral(changes_, [](const Change& c) { return c.units.decode; }) / kDaySeconds;
}
double DaySchedule::prefill_units_mean() const {
  return day_integral(changes_, [](const Change& c) { return c.units.prefill; }) / kDaySeconds;
}

Result<HourlyLoad> parse_hourly_load(const std::string& file, std::string_view text) {
  HourlyLoad out;
  int rows = 0;
  double sum = 0;
  RETURN_IF_ERROR(csv_whole(file, text));
  const std::vector<CsvRow> all = csv_rows(text);
  const bool header = !all.empty() && all.front().fields[0].starts_with("hour");
  // The published file has the hour's nodes besides.
  const size_t width = all.empty() ? 0 : std::clamp<size_t>(all.front().fields.size(), 2, header ? 1000 : 3);
  for (const CsvRow& row : std::span(all).subspan(header ? 1 : 0)) {
    RETURN_IF_ERROR(csv_width(file, row, width));
    ASSIGN_OR_RETURN(const double hour, csv_number(file, row, 0, "hour", 0, 23));
    if (rows == 0) out.start_hour = static_cast<int>(hour);
    if (rows == 24 || hour != (out.start_hour + rows) % 24) {
      return invalid_argument("{}:{}: hour: expected {} rows, one per hour in order", file, row.line, 24);
    }
    ASSIGN_OR_RETURN(out.load[rows], csv_number(file, row, 1, "load", 0, 1e12));
    sum += out.load[rows];
    ++rows;
  }
  if (rows != 24) {
    return invalid_argument("{}:{}: hour: the file ends after {} of 24 hours", file,
                            all.empty() ? 1 : all.back().line, rows);
  }
  if (sum <= 0) return invalid_argument("{}:{}: load: none in any hour", file, all.front().line);
  return out;
}

Result<DayFiles> parse_day_files(const std::string& load_file, std::string_view load_text,
                                 const std::string& schedule_file, std::string_view schedule_text,
                                 const UnitCounts& unit_nodes) {
  ASSIGN_OR_RETURN(const HourlyLoad hourly, parse_hourly_load(load_file, load_text));
  ASSIGN_OR_RETURN(DaySchedule schedule, parse_schedule(schedule_file, schedule_text, unit_nodes));
  double income = 0;
  for (const double usd : hourly.load) income += usd;
  return DayFiles{DayLoad(hourly.load), std::move(schedule), income, hourly.start_hour};
}

std::string units_csv(const std::vector<DaySchedule::Change>& changes, int start_hour) {
  std::string csv = "from,nodes,decode_units,prefill_units\n";
  for (const DaySchedule::Change& c : changes) {
    csv += fmt::format("{},{},{},{}\n", clock_of(c.second, start_hour), c.nodes, c.units.decode,
                       c.units.prefill);
  }
  return csv;
}

std::string clock_of(double second, int start_hour) {
  const int minutes = static_cast<int>(second / 60) + start_hour * 60;
  return fmt::format("{:02}:{:02}", minutes / 60 % 24, minutes % 60);
}

}  // namespace fathom::sim
