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
  UnitCounts initial;              // served before the first decision
  std::vector<std::string> lines;  // one per decision that changed a target or could not
  FleetHours hours;
  int decisions = 0;
  double queue_s_max[kNumUnitKinds] = {0, 0};  // the longest queue, in seconds of the serving units' work
  double queue_tokens_end[kNumUnitKinds] = {0, 0};  // and what was left of it at the end
};

// Capacities and unit sizes of a plan; the budget is the input's nodes_max when set below its default, else a
// quarter above the plan's peak.
AutoscaleOptions autoscale_options_of(const PlanInput& input, const PlanResult& plan,
                                      const UnitTimes& times = {}, const AutoscaleRules& rules = {});

// What an idle unit of the plan does for requests like `served` (lengths and hits), beside its objectives:
// what the autoscaler calls unreachable. autoscale_options_of takes the plan's own load; a trace's may be
// longer.
void set_objectives(AutoscaleOptions& options, const PlanInput& served, const PlanResult& plan);

// The units that carry a trace's first minutes, `rate` times its arrivals: what an operator would have had
// running before the trace begins. In whole groups where decode and prefill are tied.
UnitCounts units_for_the_start(const Trace& trace, const AutoscaleOptions& options,
                               const std::optional<double>& hit_share, double rate);

// Demand is what arrived in the last interval, `rate` times the trace's. Of prompts hit_share is cached, or,
// where it is not given, what each shares with those before it. What arrives beyond what the serving units
// can do waits in a queue, which the autoscaler sees as it does in the simulated day. Starts with
// units_for_the_start(). No start comes up in the first no_nodes_for_s: no machines to be had.
AutoscaleReplay replay_autoscaler(const Trace& trace, const AutoscaleOptions& options,
                                  const std::optional<double>& hit_share, double rate,
                                  double no_nodes_for_s = 0);

}  // namespace fathom::sim
