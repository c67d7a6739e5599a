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

// The first run gives the figures; more than one make a table.
Report replay_report(const HardwareProfile& hw, const Trace& trace, const std::vector<ReplayRun>& runs);

}  // namespace fathom::sim
