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

namespace fathom::sim {

struct PlanInput {
  ModelShape model;
  HardwareProfile hw;
  // Load.
  double requests_per_day = 168e6;
  std::array<double, 24> hourly_share{};  // of the day; zeros: flat but for peak_over_mean
  int start_hour = 0;                     // clock time of the first of them
  double peak_over_mean = 1.33;           // used when hourly_share is not given
  double input_tokens_mean = 3619, input_cv2 = 1.5;
  double output_tokens_mean = 1000, output_cv2 = 1.74;
  double hit_share = 0.563;  // of prompt tokens found in a cache
  // Objectives.
  double slo_ttft_s = 10;                 // 99 % of requests
  double slo_tokens_per_s_per_user = 20;  // mean over tokens at the day's peak
  // How well the balancers do, from the simulator.
  double kv_imbalance = 1.10, requests_imbalance = 1.16;
  double expert_imbalance_factor = 1;  // scales what the expert balancer's Monte Carlo says of each unit
  double mtp_acceptance = 0.85;        // 0: MTP off
  double utilisation_max = 0.90;       // of prefill capacity at peak; queues grow beyond
  double kv_retention_hours = 24;
  // Fixed unit sizes in nodes; 0: search.
  int decode_nodes = 0, prefill_nodes = 0;
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
  double budget_tokens_per_rank = 0;
  double forward_s = 0;
  double ttft_s_p99 = 0;
  double input_tokens_per_s = 0;         // of the unit, hits included
  double kv_read_gb_per_s_per_node = 0;  // at capacity
  std::string bound;
};

struct HourPlan {
  double requests_per_s = 0;
  int decode_units = 0, prefill_units = 0, nodes = 0;
};

struct PlanResult {
  DecodeUnitPlan decode;
  PrefillUnitPlan prefill;
  bool colocated = false;  // one machine does both (units of one rank)
  std::array<HourPlan, 24> hours{};
  int peak_decode_units = 0, peak_prefill_units = 0, peak_nodes = 0;
  double nodes_mean = 0;
  double node_hours = 0;        // whole units
  double node_hours_fluid = 0;  // fractions of units: smooth, for sensitivities
  double cost_usd_per_day = 0;
  double cost_usd_per_million_output_tokens = 0, cost_usd_per_million_tokens = 0;
  double kv_write_gb_per_s_peak = 0, kv_read_gb_per_s_peak = 0, kv_disk_tb = 0;
  // After losing one unit at the peak, without a spare.
  double speed_after_decode_loss = 0;  // 0: saturated
  double prefill_use_after_loss = 0;   // of capacity
  int spare_nodes = 0;                 // N+1: one more unit of each kind
  std::string binding_constraint;
};

struct PlanOutcome {
  std::optional<PlanResult> plan;
  std::string reason;  // why nothing fits
};

inline constexpr int kUnitNodesMax = 128;

PlanOutcome make_plan(const PlanInput& input);

struct Sensitivity {
  std::string input;
  // Relative change of fluid node-hours and of the cost per million output tokens at -10 % and +10 % of the
  // input; nullopt where nothing fits any more.
  std::optional<double> node_hours_minus, node_hours_plus;
  std::optional<double> cost_minus, cost_plus;
};
std::vector<Sensitivity> plan_sensitivities(const PlanInput& input, const PlanResult& plan);

// Largest over mean dispatch-receive load of a unit's ranks: lognormal expert popularity (sigma 0.5, as
// measured EPLB gains suggest) that drifted since the placement, plus the noise of one step's tokens.
double expert_imbalance_of(const ModelShape& model, int ranks, int slots, double tokens_per_rank);

// Says what is wrong with an input, naming the field.
Status validate_plan_input(const PlanInput& input);

// Fits decode_phi and prefill_phi to measured steps of the given units, by least squares.
struct ProfileFit {
  HardwareProfile hw;
  int decode_rows = 0, prefill_rows = 0;
  double decode_rms_percent = 0, prefill_rms_percent = 0;  // what is left after the fit
};
Result<ProfileFit> fit_profile(const std::vector<MeasuredStep>& steps, const HardwareProfile& hw,
                               const ModelShape& model, const DecodeUnitShape& decode,
                               const PrefillUnitShape& prefill);

}  // namespace fathom::sim
