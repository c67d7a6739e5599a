// How many prefill and decode units should run: a snapshot in, targets and reasons out. Pure; the caller owns
// the clock, the providers and the drains (fleet_ledger.h keeps the books of what is not real: simulated
// fleets, dry runs and tests).
//
// Invariants, by name:
// * budget_never_exceeded: at any instant nodes serving, starting and draining together are within the budget
// * whole_units: targets are whole units within their limits
// * missing_holds: a missing measurement keeps the target; a reported zero is zero
// * no_oscillation: a unit leaves only if the load then stays below the line at which one would be added (G4)
// * minimum_stay: after a change in one direction the other waits minimum_stay_s
// * never_chase: a target beyond the hardware's floor is reported, not scaled for (G7)
// * starts_end: starts that never come up are given up after a time-out, with back-off and a reason (G6)
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "balance/eplb.h"
#include "base/status.h"

namespace fathom {

enum class UnitKind { kPrefill = 0, kDecode = 1 };
inline constexpr int kNumUnitKinds = 2;
std::string_view unit_kind_name(UnitKind kind);

// One kind of unit, from the hardware profile.
struct UnitProfile {
  int nodes = 0;            // per unit; the published ones are 4 (prefill) and 18 (decode)
  double tokens_per_s = 0;  // capacity at the SLO: computed prompt tokens, or generated tokens
  double start_s = 0;       // from asking for the nodes to serving
  double drain_s = 0;       // from closing to free nodes, typically; decode waits for its longest requests
  // What an idle unit does at best against what is asked: seconds to first token (lower is better), or tokens
  // per second and user (higher is better). 0: no SLO of this kind.
  double best_slo = 0;
  double wanted_slo = 0;
};

// How eagerly to follow the load: what an operator may want other than the default, whatever the fleet.
struct AutoscaleRules {
  double headroom = 0.05;       // share of spare capacity kept over the forecast
  double hysteresis = 0.08;     // further share that must stay spare after a unit has left
  double minimum_stay_s = 900;  // between a growth and a shrink of one kind, either way
  double catch_up_s = 120;      // a backlog is to be worked off in this time
  double interval_s = 60;       // between decisions; the forecast looks start_s + interval_s ahead to grow
  double look_ahead_s =
      1800;  // and so far to shrink, at least until a unit could be back: one needed within it stays
  double start_timeout_s = 900;  // a start not up by then is given up
  double backoff_s = 600;        // after a failed start; doubles with each further one, to backoff_s_max
  double backoff_s_max = 7200;
  // The forecast: a trend is that of so long, where there is no yesterday; where there is, today's level is
  // at least and at most so many times yesterday's before it is no day of the same shape.
  double trend_window_s = 1800;
  double level_min = 0.5;
  double level_max = 2;
};

struct AutoscaleOptions : AutoscaleRules {
  UnitProfile unit[kNumUnitKinds];
  int units_min[kNumUnitKinds] = {1, 1};
  int units_max[kNumUnitKinds] = {1 << 20, 1 << 20};
  int budget_nodes = 0;
  // Scale one decode unit together with this many prefill units, above tied_prefill_base (published: 3 and
  // 2). 0: apart.
  int tied_prefill_per_decode = 0;
  int tied_prefill_base = 0;
};

// A measurement of the past, ascending in time. Rates are demand, not throughput.
struct LoadPoint {
  double time_s = 0;
  double tokens_per_s[kNumUnitKinds] = {0, 0};  // prompt tokens to compute; tokens to generate
};

struct UnitCounts {
  int serving = 0;
  int starting = 0;
  int draining = 0;
  double changed_s = -1e18;  // when the target last rose or fell
  bool last_change_grew = false;
  double starting_since_s = 0;  // oldest start under way, if any
  int failed_starts = 0;        // in a row
  double last_failed_start_s = -1e18;

  int target() const { return serving + starting; }
};

struct AutoscaleSnapshot {
  double now_s = 0;
  UnitCounts units[kNumUnitKinds];
  std::optional<double> tokens_per_s[kNumUnitKinds];  // demand now; nullopt: not reported
  double backlog_tokens[kNumUnitKinds] = {0, 0};      // queued work
  std::span<const LoadPoint> history;
};

enum class ScaleReason {
  kSteady,          // needs what it has
  kGrow,            // forecast above capacity
  kShrink,          // forecast fits fewer units with hysteresis to spare
  kHysteresis,      // fewer would do, but not with hysteresis to spare
  kMinimumStay,     // a change now would follow the last one too closely
  kNoData,          // demand not reported: hold
  kBudget,          // more wanted than the budget allows
  kLimit,           // at units_min or units_max
  kSloUnreachable,  // even an idle unit misses the SLO: sized for throughput, more units would not help
  kStartTimedOut,   // starts given up; backing off
  kBackOff,         // waiting after failed starts
  kFlip,            // nodes change role
  kSchedule,        // a clock table said so
};
std::string_view scale_reason_name(ScaleReason reason);

// Units of one kind drained so that their nodes can start as the other; what does not divide is freed (2
// decode units are 9 prefill units exactly; one is 4 and two nodes).
struct RoleFlip {
  UnitKind from = UnitKind::kDecode;
  int units_from = 0;
  int units_to = 0;
  int nodes_freed = 0;
};

struct AutoscaleDecision {
  int target[kNumUnitKinds] = {0, 0};            // serving and starting, after this decision
  int give_up_starting[kNumUnitKinds] = {0, 0};  // starts to cancel
  ScaleReason reason[kNumUnitKinds] = {ScaleReason::kSteady, ScaleReason::kSteady};
  double forecast_tokens_per_s[kNumUnitKinds] = {0, 0};  // the largest within the growth horizon
  int wanted[kNumUnitKinds] = {0, 0};                    // units for it, before budget and stays
  RoleFlip flip;
  int nodes_in_use = 0;  // at once after the decision: serving, starting, draining
  int nodes_freed = 0;   // of the budget, neither in use nor about to be
  // The objective: equal use, forecast over the capacity of the target, of both kinds of unit; above 1 the
  // kind falls short.
  double use[kNumUnitKinds] = {0, 0};
  LoadSummary use_summary() const;
  std::string text() const;
};

Status validate_rules(const AutoscaleRules& rules);
Status validate_autoscale(const AutoscaleOptions& options);

// The decision. options must pass validate_autoscale.
AutoscaleDecision autoscale(const AutoscaleSnapshot& snapshot, const AutoscaleOptions& options);

// Units that carry `tokens_per_s` with `spare` (0.05: five percent) capacity left.
int units_for(double tokens_per_s, double unit_tokens_per_s, double spare);

// The largest demand expected from `now_s` to horizon_s later: yesterday's course scaled to today's level
// where there is a yesterday, else the recent trend; never below the present.
struct ForecastAsk {
  UnitKind kind = UnitKind::kPrefill;
  double now_s = 0;
  double now_tokens_per_s = 0;
  double horizon_s = 0;
};
double forecast_max(std::span<const LoadPoint> history, const ForecastAsk& ask,
                    const AutoscaleRules& rules = {});

// A fixed clock table: the baseline. Rows ascend by second of the day; before the first row the last one
// holds.
struct ScheduleRow {
  int second_of_day = 0;
  int units[kNumUnitKinds] = {0, 0};
};
AutoscaleDecision schedule_units(std::span<const ScheduleRow> rows, const AutoscaleSnapshot& snapshot,
                                 const AutoscaleOptions& options);

}  // namespace fathom
