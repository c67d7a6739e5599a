// A block-exact replay's result as a report: one run, or the policies side by side with the bounds none can
// pass.
#pragma once

#include "sim/block_fleet.h"
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
  double whole_output_tokens = 0;
  std::string scale = "none";
  std::vector<std::string> scale_log;  // of the first run
};

// The first run gives the figures; more than one make a table.
Report replay_report(const HardwareProfile& hw, const Trace& trace, const std::vector<ReplayRun>& runs,
                     const ReplaySetting& setting = {});

}  // namespace fathom::sim
