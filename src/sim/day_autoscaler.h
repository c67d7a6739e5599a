// The autoscaler (balance/autoscale.h) driving the simulated day: measurements in, units out; starts
// take their time, are paid for and may fail, drains are counted by the fleet itself.
#pragma once

#include <string>
#include <vector>

#include "balance/fleet_ledger.h"
#include "sim/fleet_sim.h"
#include "sim/rank_imbalance.h"

namespace fathom::sim {

struct DayAutoscaleOptions {
  int budget_nodes = 278;                  // published peak
  double speed_at_capacity = 18;           // tokens/s per user at which a decode unit counts as full
  double prefill_use_at_capacity = 0.83;   // of what saturated forwards compute; p99 grows fast above
  bool tied = false;                       // decode and prefill together, see tie_as_published()
  UnitCounts units_max{1 << 20, 1 << 20};  // of a fleet that has no more
  bool knows_yesterday = false;            // history of a day like this one (only one day is published)
  // Of a full decode unit's ranks: measured, of the decode policy (data/decode_imbalance.csv); the default is
  // kv-capped's.
  RankImbalance imbalance{1.110, 1.166};
  UnitTimes times;
  AutoscaleRules rules;
};

// Capacities of the units at the profile's speed, for autoscale() and for the bound.
// Errors name the option.
Result<AutoscaleOptions> autoscale_options(const HardwareProfile& hw, const ModelShape& model,
                                           const FleetOptions& fleet, const DayAutoscaleOptions& options);

// One decode unit with three prefill units (18 + 12 nodes), above two: the published day's layout. The error
// is of a budget or a fleet (units_max) that holds no such group; of the fleet whole groups are used.
Status tie_as_published(AutoscaleOptions& options);

// The units to start a run with: as wanted, or in the same proportion what the budget holds.
UnitCounts initial_units(UnitCounts wanted, const AutoscaleOptions& options);
// The same, and where units are tied the groups that hold the wanted ones, as many as budget and fleet have.
UnitCounts starting_units(UnitCounts wanted, const AutoscaleOptions& options);

// What one second of the day asks for at a share of its requests.
struct DayDemand {
  explicit DayDemand(const FleetOptions& fleet);
  void at(double share_per_s, double (&tokens_per_s)[kNumUnitKinds]) const;

  double requests_per_day, computed_per_request, output_per_request;
};

class DayAutoscaler {
 public:
  // `load` is the day's: history where yesterday is known, and what arrives in the parts of the hours that a
  // fraction leaves out.
  DayAutoscaler(const AutoscaleOptions& options, const FleetOptions& fleet, const DayLoad& load,
                bool knows_yesterday, UnitCounts initial, int start_hour);
  ScaleOutput decide(const ScaleInput& in);
  // One line per decision that changed something: when, what and why.
  const std::vector<std::string>& log() const { return log_; }
  // Serving and starting, over all decisions so far.
  double nodes_mean() const { return last_s_ > 0 ? ledger_.hours().node_hours * 3600 / last_s_ : 0; }

 private:
  void step(double now_s, const double (&tokens_per_s)[kNumUnitKinds], bool starts_blocked,
            const int (&draining)[kNumUnitKinds]);
  int drained_between(int kind, double now_s, int draining_before) const;
  int serving(int kind) const { return ledger_.counts(static_cast<UnitKind>(kind)).serving; }

  const AutoscaleOptions options_;
  const DayDemand demand_;
  const DayLoad load_;
  const int start_hour_;  // of the day's clock
  double last_s_ = 0;
  double queued_tokens_[kNumUnitKinds] = {0, 0};
  FleetLedger ledger_;
  std::vector<double>
      closed_s_[kNumUnitKinds];  // of units that left since the fleet was last told, ascending
  ScaleReason told_[kNumUnitKinds] = {ScaleReason::kSteady, ScaleReason::kSteady};
  std::vector<LoadPoint> history_;
  std::vector<std::string> log_;
};

// Whole units that know the day's load exactly, start and stop at once and keep the same capacities, budget
// and limits: no autoscaler that carries the load does with less. Where the budget cannot carry it, this is
// the fleet that fills the budget, and the shares say what it leaves.
struct Clairvoyant {
  double node_hours = 0;
  double not_carried_share[kNumUnitKinds] = {0, 0};  // of the day's tokens
};
Clairvoyant clairvoyant_day(const DayLoad& load, const AutoscaleOptions& options, const FleetOptions& fleet);

}  // namespace fathom::sim
