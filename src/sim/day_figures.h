// The figures of a simulated day, each with its mark.
#pragma once

#include "sim/day_report.h"

namespace fathom::sim {

// What a day's report is made of.
struct DayPage {
  const HardwareProfile& hw;
  const DayFiles& day;
  const DayRun& run;
  const FleetResult& result;
  const TokenPrices& prices;
  const DayMarks marks;
};

void add_day_figures(const DayPage& page, Report& report);

}  // namespace fathom::sim
