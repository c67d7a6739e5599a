// The planner: which units, how many of them, split how, at what cost, for a model, a hardware profile, a
// load and service-level objectives. Pure. Capacity comes from the cost model; how it was checked against the
// published day is in docs/planning.md.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "sim/cost_model.h"
#include "sim/measured_steps.h"
#include "sim/planner_experts.h"
#include "sim/rank_imbalance.h"

namespace fathom::sim {

// What to plan for. docs/planning.md names the source of every default; nothing of the kind is in code.
struct PlanInput {
  ModelShape model;
  HardwareProfile hw;
  // Load.
  double requests_per_day = 168e6;
  std::array<double, 24> hourly_share{};  // of the day; zeros: a triangle of peak_over_mean
  int start_hour = 0;                     // clock time of the first of them
  double peak_over_mean = 1.33;           // used when hourly_share is not given
  double input_tokens_mean = 3619, input_cv2 = 1.5;
  double output_tokens_mean = 1000, output_cv2 = 1.74;
  double hit_share = 0.563;  // of prompt tokens found in a cache
  double kv_retention_hours = 24;
  // Objectives.
  double slo_ttft_s = 10;                 // 99 % of requests
  double slo_tokens_per_s_per_user = 20;  // mean over tokens at the day's peak
  // What balancers, queues and traffic are like.
  double mtp_acceptance = 0.85;                             // 0: MTP off
  double kv_imbalance = 1.110, requests_imbalance = 1.166;  // largest over mean of a decode unit's ranks
  double expert_popularity_sigma = 0.5;                     // of log popularity over experts
  double expert_popularity_drift = 0.08;                    // of its change since the experts were placed
  double expert_imbalance_scale = 1;   // on what the two above give beyond 1; 0: perfectly even experts
  double prefill_use_max = 0.90;       // of prefill capacity at the peak; queues grow beyond
  double prefill_packing = 0.97;       // mean over largest cost of the ranks in a saturated forward
  double ttft_p99_forwards = 2.3;      // time to first token at p99 over a forward's time, at that use
  double redundancy_gain_min = 0.015;  // of a unit's rate, that makes more expert slots per rank worth having
  // Limits. Unit sizes in nodes and expert slots per rank; 0: search.
  int decode_nodes = 0, prefill_nodes = 0;
  int decode_slots_per_rank = 0, prefill_slots_per_rank = 0;
  int spare_units = 0;     // of each kind, beyond what the load needs; 1 is N+1
  int nodes_max = 100000;  // at the peak
};

struct DecodeUnitPlan {
  int nodes = 0, ranks = 0, slots = 0, redundant = 0;
  double expert_imbalance = 1;
  double requests_per_rank = 0;  // at which the objective is just met
  double step_ms = 0;
  double tokens_per_s_per_user = 0;
  double kv_use_share = 0;
  double output_tokens_per_s = 0;  // of the unit
  std::string bound;               // what limits the batch
};

struct PrefillUnitPlan {
  int nodes = 0, ranks = 0, slots = 0, redundant = 0;
  double expert_imbalance = 1;
  double budget_tokens_per_rank = 0;  // whole blocks
  double forward_s = 0;
  double ttft_s_p99 = 0;
  double input_tokens_per_s = 0;         // of the unit, hits included
  double kv_read_gb_per_s_per_node = 0;  // at capacity
  std::string bound;
};

struct HourPlan {
  double requests_per_s = 0, requests_per_s_max = 0;   // on average, and at its busiest: what its units carry
  int decode_units = 0, prefill_units = 0, nodes = 0;  // spares included
};

// What the load alone takes, in fractions of units: smooth, for what whole units hide.
struct FluidNodes {
  double node_hours = 0, peak_nodes = 0;
};

struct PlanResult {
  DecodeUnitPlan decode;
  PrefillUnitPlan prefill;
  bool colocated = false;  // one machine does both (units of one rank)
  std::array<HourPlan, 24> hours{};
  int peak_decode_units = 0, peak_prefill_units = 0, peak_nodes = 0;
  double nodes_mean = 0;
  double node_hours = 0;  // whole units
  FluidNodes decode_fluid, prefill_fluid;
  double cost_usd_per_day = 0;
  double cost_usd_per_million_output_tokens = 0, cost_usd_per_million_tokens = 0;
  double kv_write_gb_per_s_peak = 0, kv_read_gb_per_s_peak = 0, kv_disk_tb = 0;
  // What users get at the day's peak from the units there are then.
  double tokens_per_s_per_user_peak = 0;
  double prefill_use_peak = 0;  // of capacity
  // After losing one unit at the peak.
  double speed_after_decode_loss = 0;  // 0: saturated, or no unit left
  double prefill_use_after_loss = 0;   // of capacity; 0: no unit left
  int spare_nodes = 0;                 // N+1: one more unit of each kind

  double node_hours_fluid() const { return decode_fluid.node_hours + prefill_fluid.node_hours; }
};

struct PlanOutcome {
  std::optional<PlanResult> plan;
  std::string reason;  // why nothing fits
};

inline constexpr int kUnitNodesMax = 128, kSpareUnitsMax = 100, kNodesMax = 1'000'000;

// The fewest node-hours of whole units that meet the objectives at every hour. Never fewer for more load or a
// stricter objective. `spreads` keeps what one plan drew for the next.
PlanOutcome make_plan(const PlanInput& input, ExpertSpreads& spreads);
PlanOutcome make_plan(const PlanInput& input);

// The input with the plan's unit sizes and expert slots for its own: the fleet that stands.
PlanInput at_sizes_of(const PlanInput& input, const PlanResult& plan);
// The day's deviations from its mean times `factor`.
void scale_day_shape(PlanInput& input, double factor);

// Says what is wrong with an input, naming the flag of `fathom plan` that gives it.
Status validate_plan_input(const PlanInput& input);

// Fits decode_phi and prefill_phi to measured steps of the given units, by least squares. Measurements give
// means over ranks: what of a step's time the imbalances explain is theirs, so that a plan that multiplies by
// them again gives the measured step.
struct ProfileFit {
  HardwareProfile hw;
  int decode_rows = 0, prefill_rows = 0;
  double decode_rms_percent = 0, prefill_rms_percent = 0;  // what is left after the fit
};
Result<ProfileFit> fit_profile(const std::vector<MeasuredStep>& steps, const HardwareProfile& hw,
                               const ModelShape& model, const DecodeUnitShape& decode,
                               const PrefillUnitShape& prefill, const RankImbalance& imbalance = {});

}  // namespace fathom::sim
