// A dry run of the autoscaler over a trace: what it would have done, when and why, and what that costs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "balance/fleet_ledger.h"
#include "sim/planner.h"
#include "sim/scale.h"
#include "sim/trace.h"

namespace fathom::sim {

struct AutoscaleReplay {
  std::vector<std::string> lines;  // one per decision that changed a target or could not
  FleetHours hours;
  int decisions = 0;
};

// Capacities and unit sizes of a plan; the budget is the input's nodes_max when set below its default, else a
// quarter above the plan's peak.
AutoscaleOptions autoscale_options_of(const PlanInput& input, const PlanResult& plan,
                                      const UnitTimes& times = {});

// Demand is what arrived in the last interval, `rate` times the trace's. Of prompts hit_share is cached, or,
// where it is not given, what each shares with those before it. Starts with one unit of each kind. No start
// comes up in the first no_nodes_for_s: no machines to be had.
AutoscaleReplay replay_autoscaler(const Trace& trace, const AutoscaleOptions& options,
                                  const std::optional<double>& hit_share, double rate,
                                  double no_nodes_for_s = 0);

}  // namespace fathom::sim
