// Choosing units, counting them over the day, pricing them.
#include "sim/planner.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/check.h"
#include "sim/day_files.h"
#include "sim/planner_units.h"

namespace fathom::sim {
namespace {

constexpr double kSecondsPerHour = 3600;
constexpr int kHours = 24;
constexpr double kGiga = 1e9;
constexpr double kWhole = 1e-9;  // a load that fills units exactly takes no further one
// What is tried: nodes of a unit, and expert slots per rank beyond the fewest that hold every expert.
constexpr int kUnitNodes[] = {1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32, 36};
constexpr int kExtraSlotsMax = 2;

std::array<double, kHours> shares(const PlanInput& in) {
  std::array<double, kHours> out = in.hourly_share;
  double sum = 0;
  for (const double s : out) sum += s;
  if (sum > 0) {
    for (double& s : out) s /= sum;
    return out;
  }
  // A day whose peak stands peak_over_mean above its mean: a triangle from trough to peak and back.
  const double swing = std::min(in.peak_over_mean - 1, 1.0);
  double total = 0;
  for (int h = 0; h < kHours; ++h) {
    const double wave = 1 - std::abs(h - 12) / 6.0;  // -1 at midnight, 1 at noon
    out[h] = (1 + swing * wave) / kHours;
    total += out[h];
  }
  for (double& s : out) s /= total;
  return out;
}

// Requests per second of each hour, on average and at its busiest: load moves within an hour as in the
// simulated day.
struct HourRates {
  std::array<double, kHours> mean, max;
};

HourRates request_rates(const PlanInput& in) {
  HourRates out{shares(in), {}};
  const DayLoad day(out.mean);
  for (int h = 0; h < kHours; ++h) {
    out.mean[h] *= in.requests_per_day / kSecondsPerHour;
    out.max[h] = out.mean[h];
    for (const double knot : {0.0, 0.5, 1.0}) {  // linear between
      const double second = std::min((h + knot) * kSecondsPerHour, kHours * kSecondsPerHour - 1e-6);
      out.max[h] = std::max(out.max[h], in.requests_per_day * day.share_per_s(second));
    }
  }
  return out;
}

double request_tokens(const PlanInput& in, const DecodeUnitPlan&) { return in.output_tokens_mean; }
double request_tokens(const PlanInput& in, const PrefillUnitPlan&) { return in.input_tokens_mean; }
double capacity(const DecodeUnitPlan& unit) { return unit.output_tokens_per_s; }
double capacity(const PrefillUnitPlan& unit) { return unit.input_tokens_per_s; }

// Units a load takes, in fractions.
template <typename Unit>
double units_for(const PlanInput& in, const Unit& unit, double requests_per_s) {
  return requests_per_s * request_tokens(in, unit) / capacity(unit);
}

// Above kNodesMax at any unit size, and far from what an int holds.
constexpr double kUnitsMax = 4e6;
static_assert(kUnitsMax > kNodesMax && (kUnitsMax + kSpareUnitsMax) * kUnitNodesMax * 2 < 2147483647.0);

int whole_units(const PlanInput& in, double units) {
  return static_cast<int>(std::clamp(std::ceil(units - kWhole), 1.0, kUnitsMax)) + in.spare_units;
}

// What a unit comes to over the day, in the order in which less is better.
using DayCost = std::tuple<double, int, int, double>;  // node-hours, nodes at the peak, of a unit, fluid

template <typename Unit>
DayCost day_cost(const PlanInput& in, const Unit& unit) {
  double hours = 0, fluid = 0;
  int peak = 0;
  const HourRates rates = request_rates(in);
  for (int h = 0; h < kHours; ++h) {
    const int nodes = whole_units(in, units_for(in, unit, rates.max[h])) * unit.nodes;
    hours += nodes;
    peak = std::max(peak, nodes);
    fluid += units_for(in, unit, rates.mean[h]) * unit.nodes;
  }
  return {hours, peak, unit.nodes, fluid};
}

constexpr double kPeakFirst = 1e12;  // far more node-hours than a day has

struct Search {
  int nodes, slots_per_rank;  // 0: search
  bool least_peak;            // a limit on nodes wants the fewest at the peak first
};

// The fewest slots per rank that come within redundancy_gain_min of the best rate.
template <typename Rate>
int slots_per_rank(const PlanInput& in, int nodes, Rate rate_at_most) {
  const int ranks = nodes * static_cast<int>(in.hw.gpus_per_node);
  const int fewest = static_cast<int>(std::ceil(in.model.experts / ranks));
  if (ranks == 1) return fewest;
  double rates[kExtraSlotsMax + 1], best = 0;
  for (int extra = 0; extra <= kExtraSlotsMax; ++extra) {
    rates[extra] = rate_at_most(nodes, fewest + extra);
    best = std::max(best, rates[extra]);
  }
  int extra = 0;
  while (rates[extra] * (1 + in.redundancy_gain_min) < best) ++extra;
  return fewest + extra;
}

// The unit whose day is cheapest.
template <typename Unit, typename Rate, typename Try>
std::optional<Unit> best_unit(const PlanInput& in, const Search& search, Rate rate_at_most, Try try_size) {
  std::optional<Unit> best;
  DayCost best_cost;
  for (const int tried : kUnitNodes) {
    const int nodes = search.nodes > 0 ? search.nodes : tried;
    if (best && !search.least_peak && (1 + in.spare_units) * nodes * kHours > std::get<0>(best_cost)) break;
    const int slots =
        search.slots_per_rank > 0 ? search.slots_per_rank : slots_per_rank(in, nodes, rate_at_most);
    std::optional<Unit> unit = try_size(nodes, slots);
    if (unit) {
      DayCost cost = day_cost(in, *unit);
      if (search.least_peak) std::get<0>(cost) += kPeakFirst * std::get<1>(cost);
      if (!best || cost < best_cost) {
        best = std::move(unit);
        best_cost = cost;
      }
    }
    if (search.nodes > 0) break;
  }
  return best;
}

void add_hours(const PlanInput& in, PlanResult& plan) {
  const HourRates rates = request_rates(in);
  for (int h = 0; h < kHours; ++h) {
    HourPlan& hour = plan.hours[h];
    hour.requests_per_s = rates.mean[h];
    hour.requests_per_s_max = rates.max[h];
    const auto add_fluid = [&](FluidNodes& fluid, const auto& unit) {
      fluid.node_hours += units_for(in, unit, rates.mean[h]) * unit.nodes;
      fluid.peak_nodes = std::max(fluid.peak_nodes, units_for(in, unit, rates.max[h]) * unit.nodes);
    };
    add_fluid(plan.decode_fluid, plan.decode);
    add_fluid(plan.prefill_fluid, plan.prefill);
    const double decode = units_for(in, plan.decode, rates.max[h]);
    const double prefill = units_for(in, plan.prefill, rates.max[h]);
    if (plan.colocated) {
      hour.decode_units = hour.prefill_units = whole_units(in, decode + prefill);
      hour.nodes = hour.decode_units * plan.decode.nodes;
    } else {
      hour.decode_units = whole_units(in, decode);
      hour.prefill_units = whole_units(in, prefill);
      hour.nodes = hour.decode_units * plan.decode.nodes + hour.prefill_units * plan.prefill.nodes;
    }
    plan.node_hours += hour.nodes;
    plan.peak_decode_units = std::max(plan.peak_decode_units, hour.decode_units);
    plan.peak_prefill_units = std::max(plan.peak_prefill_units, hour.prefill_units);
    plan.peak_nodes = std::max(plan.peak_nodes, hour.nodes);
  }
  plan.nodes_mean = plan.node_hours / kHours;
}

void add_costs(const PlanInput& in, double peak_requests_per_s, PlanResult& plan) {
  plan.cost_usd_per_day = plan.node_hours * in.hw.gpus_per_node * in.hw.price_usd_per_gpu_hour;
  const double output = in.requests_per_day * in.output_tokens_mean / 1e6;
  const double all = output + in.requests_per_day * in.input_tokens_mean / 1e6;
  plan.cost_usd_per_million_output_tokens = plan.cost_usd_per_day / output;
  plan.cost_usd_per_million_tokens = plan.cost_usd_per_day / all;
  const double kv_bytes = in.model.kv_bytes_per_token(with_mtp(in));
  const double new_tokens = (1 - in.hit_share) * in.input_tokens_mean + in.output_tokens_mean;
  plan.kv_write_gb_per_s_peak = peak_requests_per_s * new_tokens * kv_bytes / kGiga;
  plan.kv_read_gb_per_s_peak = peak_requests_per_s * in.input_tokens_mean * in.hit_share * kv_bytes / kGiga;
  plan.kv_disk_tb = in.requests_per_day * new_tokens * kv_bytes * in.kv_retention_hours / kHours / 1e12;
}

void add_peak(const PlanInput& in, double peak_requests_per_s, ExpertSpreads& spreads, PlanResult& plan) {
  plan.spare_nodes = plan.colocated ? plan.decode.nodes : plan.decode.nodes + plan.prefill.nodes;
  const double output_rate = peak_requests_per_s * in.output_tokens_mean;
  // A server that does both has its share of time for decode.
  const double decode = units_for(in, plan.decode, peak_requests_per_s);
  const double prefill = units_for(in, plan.prefill, peak_requests_per_s);
  const double decode_time = plan.colocated ? decode / (decode + prefill) : 1;
  const auto speed_of = [&](int units) {
    return units > 0 ? decode_speed_at(in, plan.decode, output_rate / (units * decode_time), spreads) : 0;
  };
  const auto use_of = [&](int units) {
    return units > 0 ? (plan.colocated ? decode + prefill : prefill) / units * in.prefill_use_max : 0;
  };
  plan.tokens_per_s_per_user_peak = speed_of(plan.peak_decode_units);
  plan.prefill_use_peak = use_of(plan.peak_prefill_units);
  plan.speed_after_decode_loss = speed_of(plan.peak_decode_units - 1);
  plan.prefill_use_after_loss = use_of(plan.peak_prefill_units - 1);
}

PlanOutcome try_plan(const PlanInput& in, bool least_peak, ExpertSpreads& spreads) {
  std::string reason;
  PlanResult plan;
  plan.colocated = in.hw.gpus_per_node < 2;
  const auto decode = best_unit<DecodeUnitPlan>(
      in, {plan.colocated ? 1 : in.decode_nodes, in.decode_slots_per_rank, least_peak},
      [&](int nodes, int slots) { return decode_rate_at_most(in, nodes, slots, spreads); },
      [&](int nodes, int slots) { return size_decode(in, nodes, slots, spreads, reason); });
  if (!decode) return {std::nullopt, reason};
  const auto prefill = best_unit<PrefillUnitPlan>(
      in, {plan.colocated ? 1 : in.prefill_nodes, in.prefill_slots_per_rank, least_peak},
      [&](int nodes, int slots) { return prefill_rate_at_most(in, nodes, slots, spreads); },
      [&](int nodes, int slots) { return size_prefill(in, nodes, slots, spreads, reason); });
  if (!prefill) return {std::nullopt, reason};
  plan.decode = *decode;
  plan.prefill = *prefill;
  add_hours(in, plan);
  const HourRates rates = request_rates(in);
  const double peak_requests_per_s = *std::max_element(rates.max.begin(), rates.max.end());
  add_costs(in, peak_requests_per_s, plan);
  add_peak(in, peak_requests_per_s, spreads, plan);
  return {plan, ""};
}

}  // namespace

PlanInput at_sizes_of(const PlanInput& input, const PlanResult& plan) {
  PlanInput out = input;
  out.decode_nodes = plan.decode.nodes;
  out.prefill_nodes = plan.prefill.nodes;
  out.decode_slots_per_rank = plan.decode.slots / plan.decode.ranks;
  out.prefill_slots_per_rank = plan.prefill.slots / plan.prefill.ranks;
  return out;
}

void scale_day_shape(PlanInput& input, double factor) {
  double mean = 0;
  for (const double s : input.hourly_share) mean += s / kHours;
  for (double& s : input.hourly_share) s = std::max(0.0, mean + (s - mean) * factor);
  input.peak_over_mean = std::clamp(1 + (input.peak_over_mean - 1) * factor, 1.0, 2.0);
}

PlanOutcome make_plan(const PlanInput& in, ExpertSpreads& spreads) {
  PlanOutcome outcome = try_plan(in, false, spreads);
  if (outcome.plan && outcome.plan->peak_nodes > in.nodes_max) outcome = try_plan(in, true, spreads);
  if (outcome.plan && outcome.plan->peak_nodes > in.nodes_max) {
    const int units = std::max(outcome.plan->peak_decode_units, outcome.plan->peak_prefill_units);
    return {std::nullopt, fmt::format("nodes: {}{} at the peak, the limit is {}",
                                      units - in.spare_units >= kUnitsMax ? "more than " : "",
                                      outcome.plan->peak_nodes, in.nodes_max)};
  }
  return outcome;
}

PlanOutcome make_plan(const PlanInput& in) {
  ExpertSpreads spreads;
  return make_plan(in, spreads);
}

Status validate_plan_input(const PlanInput& in) {
  const auto positive = [](const char* name, double value) {
    if (!(value > 0)) return invalid_argument("{}: {} must be above 0", name, value);
    return value <= 1e18 ? ok_status() : invalid_argument("{}: {} is above 1e18", name, value);
  };
  const auto within = [](const char* name, double value, double min, double max) {
    if (value >= min && value <= max) return ok_status();
    return invalid_argument("{}: {} is outside {}..{}", name, value, min, max);
  };
  const auto unit_nodes = [](const char* name, int value) {
    if (value >= 0 && value <= kUnitNodesMax) return ok_status();
    return invalid_argument("{}: {} is outside 0..{}", name, value, kUnitNodesMax);
  };
  RETURN_IF_ERROR(positive("--requests-per-day", in.requests_per_day));
  RETURN_IF_ERROR(positive("--input-tokens", in.input_tokens_mean));
  RETURN_IF_ERROR(positive("--output-tokens", in.output_tokens_mean));
  RETURN_IF_ERROR(positive("--ttft", in.slo_ttft_s));
  RETURN_IF_ERROR(positive("--tokens-per-s", in.slo_tokens_per_s_per_user));
  RETURN_IF_ERROR(positive("--input-cv2", in.input_cv2));
  RETURN_IF_ERROR(positive("--output-cv2", in.output_cv2));
  if (!(in.hit_share >= 0 && in.hit_share < 1))
    return invalid_argument("--hit-share: {} is not at least 0 and below 1", in.hit_share);
  RETURN_IF_ERROR(within("--mtp-acceptance", in.mtp_acceptance, 0, 1));
  RETURN_IF_ERROR(within("--kv-imbalance", in.kv_imbalance, 1, 100));
  RETURN_IF_ERROR(within("--requests-imbalance", in.requests_imbalance, 1, 100));
  RETURN_IF_ERROR(within("--expert-sigma", in.expert_popularity_sigma, 0, 5));
  RETURN_IF_ERROR(within("--expert-drift", in.expert_popularity_drift, 0, 5));
  RETURN_IF_ERROR(within("--expert-imbalance-scale", in.expert_imbalance_scale, 0, 100));
  RETURN_IF_ERROR(within("--prefill-use", in.prefill_use_max, 0.01, 1));
  RETURN_IF_ERROR(within("--prefill-packing", in.prefill_packing, 0.01, 1));
  RETURN_IF_ERROR(within("--ttft-forwards", in.ttft_p99_forwards, 1, 1000));
  if (!(in.peak_over_mean >= 1 && in.peak_over_mean <= 2)) {
    return invalid_argument("--peak: {} is outside 1..2; a sharper day needs its hours (--day-load)",
                            in.peak_over_mean);
  }
  RETURN_IF_ERROR(within("--kv-retention-hours", in.kv_retention_hours, 0, 1e6));
  RETURN_IF_ERROR(within("--redundancy-gain", in.redundancy_gain_min, 0, 1));
  RETURN_IF_ERROR(unit_nodes("--decode-nodes", in.decode_nodes));
  RETURN_IF_ERROR(unit_nodes("--prefill-nodes", in.prefill_nodes));
  RETURN_IF_ERROR(within("--spare-units", in.spare_units, 0, kSpareUnitsMax));
  if (in.nodes_max < 1) return invalid_argument("--nodes-max: {} is a budget below one unit", in.nodes_max);
  return within("--nodes-max", in.nodes_max, 1, kNodesMax);
}

}  // namespace fathom::sim
