// A block-exact replay's result as a report: figures, charts over simulated time and CSV files of one run,
// and the policies side by side with the bounds none can pass.
#pragma once

#include "sim/block_fleet.h"
#include "sim/fleet_charts.h"
#include "sim/report.h"

namespace fathom::sim {

struct ReplayRun {
  std::string name;  // "fathom / kv-capped"
  BlockFleetOptions options;
  BlockFleetResult result;
};

// What of the trace was replayed and how its units were scaled.
struct ReplaySetting {
  double fraction = 1;         // of each hour
  double share = 1;            // of the trace's time, with it; sums are scaled by 1/share
  int64_t whole_requests = 0;  // of the whole trace
  double whole_input_tokens = 0, whole_output_tokens = 0;
  double whole_hit_share_bound = 0;
  double whole_nodes_mean = 0;  // what the scaling would hold over the whole trace; 0: nobody can tell
  std::string scale = "none";
  int budget_nodes = 0;                // with autoscale
  std::vector<std::string> scale_log;  // of the first run
};

// The first run gives figures, charts and CSV files; more than one make a table and charts of their own.
Report replay_report(const HardwareProfile& hw, const ModelShape& model, const Trace& trace,
                     const std::vector<ReplayRun>& runs, const ReplaySetting& setting = {},
                     const TokenPrices& prices = {});

}  // namespace fathom::sim
