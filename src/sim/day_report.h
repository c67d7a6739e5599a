// The published day's result as figures, charts and tables.
#pragma once

#include "sim/day_autoscaler.h"
#include "sim/fleet_charts.h"
#include "sim/fleet_sim.h"
#include "sim/report.h"

namespace fathom::sim {

struct DayRun {
  FleetOptions options;
  bool autoscaled = false;
  std::string scale = "schedule";
  bool other_fleet = false;  // the load on units that were not the published ones
  int budget_nodes = 0;      // with autoscaled
  Clairvoyant clairvoyant;   // with autoscaled: the bound beside it
  std::vector<std::string> scale_log;
};

Report day_report(const HardwareProfile& hw, const ModelShape& model, const DayFiles& day, const DayRun& run,
                  const FleetResult& result, const TokenPrices& prices = {});

// Another decode policy on the same load.
struct PolicyDay {
  std::string policy;
  FleetMetrics metrics;
};
void add_policy_comparison(Report& report, const std::vector<PolicyDay>& days);

// Adds mean, least and most of the main figures over several seeds, of days or of replays.
void add_seed_spread(Report& report, const std::vector<Report>& runs);

}  // namespace fathom::sim
