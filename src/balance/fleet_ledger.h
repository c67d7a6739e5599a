// The books of a fleet that follows scaling decisions: which units serve, start and drain, and what that
// costs in node-hours. Used where units are not real: the simulated day and replays, dry runs of the
// autoscaler, and tests. Pure: time is an argument.
#pragma once

#include <vector>

#include "balance/autoscale.h"

namespace fathom {

struct FleetHours {
  double node_hours = 0;        // serving and starting
  double drain_node_hours = 0;  // closed, finishing their requests
  double freed_node_hours = 0;  // of the budget, left to others
  int nodes_max = 0;            // in use at once
  int num_changes = 0;          // decisions that moved a target
  double hours = 0;             // accounted for

  // What scaling is for: a fleet sized for its busiest hour has 1.
  double max_over_mean() const {
    const double mean = hours > 0 ? (node_hours + drain_node_hours) / hours : 0;
    return mean > 0 ? nodes_max / mean : 1;
  }
};

class FleetLedger {
 public:
  // Starts with `units` serving.
  FleetLedger(const AutoscaleOptions& options, const int (&units)[kNumUnitKinds], double now_s);

  // Lets time pass: starts come up, drains end after their drain_s, flipped nodes start in their new role.
  void advance(double now_s);
  // The same of a fleet that says how many of its units still drain.
  void advance(double now_s, const int (&draining)[kNumUnitKinds]);
  // Carries a decision out at the time last advanced to. Drained units leave newest first; starting ones
  // before serving.
  void apply(const AutoscaleDecision& decision);

  // For the next snapshot.
  UnitCounts counts(UnitKind kind) const;
  int nodes_in_use() const;
  const FleetHours& hours() const { return hours_; }

  // Starts never come up while this is set (no nodes to be had); case G6.
  void set_starts_blocked(bool blocked) { starts_blocked_ = blocked; }

 private:
  struct Pending {
    double since_s;
    double until_s;
  };
  struct Kind {
    int serving = 0;
    std::vector<Pending> starting;  // ascending
    std::vector<Pending> draining;
    double changed_s = -1e18;
    bool last_change_grew = false;
    int failed_starts = 0;
    double last_failed_start_s = -1e18;
  };
  // Units of one kind whose nodes go to the other as they become free.
  struct PendingFlip {
    RoleFlip flip;
    double since_s;
    int started = 0;
  };

  void account(double to_s);
  double next_event_s() const;
  void start_flipped();

  const AutoscaleOptions options_;
  Kind kinds_[kNumUnitKinds];
  std::vector<PendingFlip> flips_;
  FleetHours hours_;
  double now_s_;
  bool starts_blocked_ = false;
};

}  // namespace fathom
