// For tests of the count-only day: a load that does not change, and the figures that balancers are compared
// by.
#pragma once

#include <array>

#include "sim/fleet_sim.h"
#include "sim/test_profile.h"

namespace fathom::sim {

// One decode unit and its prefill at the day's busiest rate, for 24 parts of an hour without a pause.
inline DayFiles steady_day() {
  std::array<double, 24> flat;
  flat.fill(1);
  return {DayLoad(flat), DaySchedule({{0, 18 + 16, {1, 4}}}), 0, 0};
}

inline FleetOptions steady_options() {
  FleetOptions options;
  options.fraction = 0.02;
  options.requests_per_day = 168e6 * 0.0553 * 24 / 9;
  options.kv_limit = false;
  return options;
}

inline FleetCell run_steady(FleetOptions options) {
  const FleetResult result = run_day(test_profile("h800-day"), ModelShape{}, steady_day(), options, {});
  FleetCell warm;  // the first third is the ramp
  for (int h = 8; h < 24; ++h) warm.merge(result.metrics.hour(h));
  return warm;
}

inline double speed(const FleetCell& c) { return c.tokens_x_speed / c.tokens; }
inline double kv_ratio(const FleetCell& c) { return c.kv_ratio_sum / static_cast<double>(c.balanced_steps); }
inline double requests_ratio(const FleetCell& c) {
  return c.requests_ratio_sum / static_cast<double>(c.balanced_steps);
}

}  // namespace fathom::sim
