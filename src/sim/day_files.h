// The published day as data: the load of each hour (data/day_load.csv) and the node schedule
// (data/day_schedule.csv). Times run from the first row of a file, for 24 hours.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "balance/autoscale.h"
#include "base/status.h"

namespace fathom::sim {

inline constexpr int kDaySeconds = 86400;

// The published units: 144 ranks decode, 32 prefill, eight to a node.
inline constexpr int kDecodeUnitNodes = 18, kPrefillUnitNodes = 4;

struct UnitCounts {
  int decode = 0;
  int prefill = 0;
  bool operator==(const UnitCounts&) const = default;
};

// Arrival rate over the day as a share of the day's requests per second, piecewise linear: knots on the half
// hours.
class DayLoad {
 public:
  // Hourly shares in the order of the day; they are normalised. Boundary knots are the mean of neighbouring
  // hours, the middle knot keeps the hour's own mean, and the day wraps.
  explicit DayLoad(const std::array<double, 24>& hourly);
  double share_per_s(double second) const;  // of the day; integrates to 1 over the day
  double hour_share(int hour) const { return hours_[hour]; }

 private:
  std::array<double, 24> hours_;
  std::array<double, 49> knots_;  // at 0, 1800, ..., 86400 s; unit: share per second
};

class DaySchedule {
 public:
  struct Change {
    int second = 0;  // since the start of the day
    int nodes = 0;
    UnitCounts units;
  };
  explicit DaySchedule(std::vector<Change> changes);
  // By the clock table, schedule_units() in balance/autoscale.h. The day repeats.
  UnitCounts units_at(double second) const;
  const std::vector<Change>& changes() const { return changes_; }
  int peak_nodes() const;
  double node_hours() const;                     // the integral, exact: changes fall on whole minutes
  double nodes_mean_until(double second) const;  // from the start, over as many days as it takes
  double decode_units_mean() const;
  double prefill_units_mean() const;

 private:
  std::vector<Change> changes_;
  std::vector<ScheduleRow> rows_;
};

// The most units of each kind that run at any time.
UnitCounts units_max(const DaySchedule& schedule);

struct DayFiles {
  DayLoad load;
  DaySchedule schedule;
  double published_income_usd = 0;  // sum of the load file's bars
  int start_hour = 12;              // UTC+8, of the first row
};

// Hourly loads of a day in order, any unit, from rows hour,load[,...]. Errors name file, line and field.
struct HourlyLoad {
  std::array<double, 24> load{};
  int start_hour = 0;
};
Result<HourlyLoad> parse_hourly_load(const std::string& file, std::string_view text);

// Rows from,nodes,decode_units,prefill_units, the first one at second 0. Errors
// name file, line and field, also where the nodes are not those of units of so
// many.
inline constexpr UnitCounts kPublishedUnitNodes{kDecodeUnitNodes, kPrefillUnitNodes};
Result<DaySchedule> parse_schedule(const std::string& file, std::string_view text,
                                   const UnitCounts& unit_nodes = kPublishedUnitNodes);

// Rows that parse_schedule reads, of a day that starts at start_hour.
std::string units_csv(const std::vector<DaySchedule::Change>& changes, int start_hour);

// Each reads the text of one file; errors name file, line and field.
Result<DayFiles> parse_day_files(const std::string& load_file, std::string_view load_text,
                                 const std::string& schedule_file, std::string_view schedule_text,
                                 const UnitCounts& unit_nodes = kPublishedUnitNodes);

// A schedule's shares of its peak, in whole units of a fleet of `most`, rounded
// up.
DaySchedule schedule_of_fleet(const DaySchedule& schedule, const UnitCounts& most,
                              const UnitCounts& unit_nodes);

// "13:05" for a second of the day that starts at start_hour.
std::string clock_of(double second, int start_hour);

}  // namespace fathom::sim
