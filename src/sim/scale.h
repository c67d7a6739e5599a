// Who decides which units of a simulated fleet serve: a function from what arrived to units, asked now and
// then.
#pragma once

#include <functional>

#include "sim/day_files.h"

namespace fathom::sim {

// What serving units work off in so long is in hand and no queue to scale for: busy prefill ranks always have
// a forward or two queued.
inline constexpr double kInHandSeconds = 5;

// How long a unit takes to come and go.
struct UnitTimes {
  // From asking for its nodes to serving. Assumption: weights come from the nodes' page cache or disks.
  double start_s = 120;
  // From closing until its longest request has ended: what the simulated published day's drains take
  // (docs/simulator.md).
  double decode_drain_s = 1200;
  double prefill_drain_s = 30;  // until its queue is computed; the same day
};

// What fleet to run next, asked every scale_interval_s of simulated time.
struct ScaleInput {
  double day_second = 0;
  UnitCounts draining;          // closed, with requests still to finish
  bool starts_blocked = false;  // no nodes to be had: what starts does not come up
  // Over the last interval: prompt tokens that arrived and are in no cache, and output tokens they will want
  // (arrivals times the mean length of what has finished).
  double arrived_computed_tokens_per_s = 0;
  double arrived_output_tokens_per_s = 0;
  // Queued: prompt tokens not yet computed, and output tokens of answers that no decode rank has room for.
  double queued_computed_tokens = 0;
  double queued_output_tokens = 0;
};
struct ScaleOutput {
  UnitCounts serving;
  UnitCounts held;  // serving and starting: what is paid for
  // Of the units that are closed and still have requests: so many freed their nodes in a part of the hour
  // that is not simulated. Their requests are served to the end, on nobody's nodes.
  UnitCounts drained;
};
using ScaleFunction = std::function<ScaleOutput(const ScaleInput&)>;

}  // namespace fathom::sim
