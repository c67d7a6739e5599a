// What a balancer believes about the ranks it sends to: the last report of each unit plus its own dispatches
// that the report cannot know yet. Counting one's own dispatches at once is what keeps stale reports from
// herding everything onto one rank; sequence numbers and acknowledgements keep late, lost, repeated and
// reordered reports from doing harm.
//
// Invariants, by name:
//   own_in_flight_counts   loads = last applied report + every dispatch it does not acknowledge
//   reports_are_states     applying a report twice, or an older one after a newer one, changes nothing
//   lost_reports_heal      the next report alone restores the truth
//   no_load_is_negative    whatever order charges, releases and reports come in
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"

namespace fathom {

// Additive load of one rank. What tokens and cost mean is the balancer's: decode has KV tokens and expected
// growth, prefill has new tokens to compute and predicted work.
struct RankLoad {
  int64_t requests = 0;
  int64_t tokens = 0;
  int64_t cost = 0;

  RankLoad& operator+=(const RankLoad& o) {
    requests += o.requests, tokens += o.tokens, cost += o.cost;
    return *this;
  }
  // Stops at zero: a correction may arrive after the report that already contains it.
  RankLoad& operator-=(const RankLoad& o) {
    requests = std::max<int64_t>(0, requests - o.requests);
    tokens = std::max<int64_t>(0, tokens - o.tokens);
    cost = std::max<int64_t>(0, cost - o.cost);
    return *this;
  }
  bool operator==(const RankLoad&) const = default;
};

struct RankRef {
  int32_t unit = -1;
  int32_t rank = -1;  // within the unit
  bool operator==(const RankRef&) const = default;
};

// One unit's state as its worker saw it, sent once per step.
struct LoadReport {
  int unit = 0;
  uint64_t epoch = 1;  // incarnation of the unit, from 1; a restart raises it and forgets what was in flight
  uint64_t sequence = 0;  // rises with every report of one incarnation
  uint64_t acked =
      0;  // every dispatch of this balancer up to this number is counted in `loads` (or was refused)
  uint64_t acked_beyond = 0;        // bit i: dispatch acked + 1 + i is counted too
  std::span<const RankLoad> loads;  // [num_ranks]
};

enum class ReportOutcome { kApplied, kStale, kOldEpoch };

class LoadLedger {
 public:
  // Units are numbered from 0 in the order they are added.
  int add_unit(int num_ranks);
  int num_units() const { return static_cast<int>(units_.size()); }
  int num_ranks(int unit) const { return static_cast<int>(units_[unit].loads.size()); }

  std::span<const RankLoad> loads(int unit) const { return units_[unit].loads; }
  const RankLoad& total(int unit) const { return units_[unit].total; }

  // Counts a dispatch now. The number goes with the request to the worker, which acknowledges it in its
  // reports.
  uint64_t charge(RankRef to, const RankLoad& load);
  // The dispatch never arrived, or was refused: its charge is taken back. Unknown or acknowledged numbers are
  // ignored.
  void cancel(int unit, uint64_t dispatch);
  // Work the caller itself saw finish, ahead of the next report.
  void release(RankRef from, const RankLoad& load);
  ReportOutcome apply(const LoadReport& report);

  int64_t num_in_flight(int unit) const { return units_[unit].num_open; }

 private:
  struct InFlight {
    int32_t rank = -1;  // -1: settled
    RankLoad load;
  };
  struct Unit {
    uint64_t epoch = 0;
    uint64_t report_sequence = 0;
    bool reported = false;
    uint64_t first = 1;  // dispatch number at ring[first & mask]
    uint64_t next = 1;
    int64_t num_open = 0;
    std::vector<InFlight> ring = std::vector<InFlight>(64);  // power of two
    std::vector<RankLoad> loads;
    std::vector<RankLoad> in_flight;  // per rank, the part of loads no report acknowledges
    RankLoad total;
  };
  static InFlight& slot(Unit& unit, uint64_t dispatch) {
    return unit.ring[dispatch & (unit.ring.size() - 1)];
  }
  static void settle(Unit& unit, uint64_t dispatch);

  std::vector<Unit> units_;
};

// The worker's side: which dispatches of one balancer it has seen, in the form a report carries.
class AckTracker {
 public:
  // False for a repeated dispatch (to be ignored). Numbers more than 64 beyond the first gap close the gap:
  // what lies before is taken as lost.
  bool accept(uint64_t dispatch);
  uint64_t acked() const { return acked_; }
  uint64_t acked_beyond() const { return beyond_; }

 private:
  void advance();
  uint64_t acked_ = 0;
  uint64_t beyond_ = 0;
};

}  // namespace fathom
