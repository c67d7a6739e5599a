// The servers' autoscaler (balance/autoscale.h) driving the simulated day: measurements in, units out; starts
// take their time, are paid for and may fail, drains are counted by the fleet itself.
#pragma once

#include <string>
#include <vector>

#include "balance/autoscale.h"
#include "sim/fleet_sim.h"

namespace fathom::sim {

struct DayAutoscaleOptions {
  int budget_nodes = 278;                 // published peak
  double speed_at_capacity = 18;          // tokens/s per user at which a decode unit counts as full
  double prefill_use_at_capacity = 0.86;  // of what saturated forwards compute
  bool knows_yesterday = false;           // history of a day like this one (only one day is published)
};

// Capacities of the units at the profile's speed, for autoscale() and for the bound.
// Errors name the option.
Result<AutoscaleOptions> autoscale_options(const HardwareProfile& hw, const ModelShape& model,
                                           const FleetOptions& fleet, const DayAutoscaleOptions& options);

class DayAutoscaler {
 public:
  DayAutoscaler(const AutoscaleOptions& options, const FleetOptions& fleet, const DayLoad* yesterday,
                UnitCounts initial, int start_hour);
  ScaleOutput decide(const ScaleInput& in);
  // One line per decision that changed something: when, what and why.
  const std::vector<std::string>& log() const { return log_; }

 private:
  struct Kind {
    int serving = 0;
    std::vector<double> ready_s;  // of units that start, ascending
    fathom::UnitCounts books;
  };
  void bring_up(double now_s);
  void apply(const AutoscaleDecision& decision, double now_s);

  const AutoscaleOptions options_;
  const int start_hour_;  // of the day's clock
  Kind kinds_[kNumUnitKinds];
  std::vector<LoadPoint> history_;
  std::vector<std::string> log_;
};

// Node-hours of whole units that know the day's load exactly, start and stop at once and keep the same
// capacity limits: no autoscaler with these capacities does with less.
double clairvoyant_node_hours(const DayLoad& load, const AutoscaleOptions& options,
                              const FleetOptions& fleet);

}  // namespace fathom::sim
