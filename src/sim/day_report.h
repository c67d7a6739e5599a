// The published day's result as figures, charts and tables.
#pragma once

#include <optional>

#include "sim/day_autoscaler.h"
#include "sim/day_marks.h"
#include "sim/fleet_charts.h"
#include "sim/fleet_sim.h"
#include "sim/report.h"

namespace fathom::sim {

struct DayRun {
  FleetOptions options;
  DayInputs inputs;
  // With inputs.scale "autoscale".
  int budget_nodes = 0;
  Clairvoyant clairvoyant;  // the bound beside it
  UnitTimes times;
  double whole_day_nodes_mean = 0;  // what the autoscaler decided, between the simulated parts of hours too
  // What the schedule's closed units took to drain, where a run of it was measured; else by `times`.
  std::optional<double> schedule_drain_node_hours;
  std::vector<std::string> scale_log;
  // With a fraction: the same day at half of it. What a fraction adds shrinks as 1 over it, so the two tell
  // the whole day.
  std::optional<FleetCell> half_fraction;
};

Report day_report(const HardwareProfile& hw, const ModelShape& model, const DayFiles& day, const DayRun& run,
                  const FleetResult& result, const TokenPrices& prices = {});

// The units in words, as a report's fact "fleet" has them.
std::string fleet_of(const FleetOptions& options);

// A decode policy on the same load and the schedule's units, over one or more seeds.
struct PolicyDay {
  std::string policy;
  FleetMetrics metrics;           // of the first seed
  std::vector<FleetCell> totals;  // of each
};
// Side by side, with what each gains over kv-capped; `perfect` is the bound: the same steps with KV and
// requests spread evenly. Adds policies.csv.
void add_policy_comparison(Report& report, const std::vector<PolicyDay>& days, const PolicyDay& perfect);

// Adds mean, least and most of the main figures over several seeds, of days or of replays.
void add_seed_spread(Report& report, const std::vector<Report>& runs);

}  // namespace fathom::sim
