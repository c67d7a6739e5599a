// The servers' autoscaler over the simulated day: units that start, serve and drain under a budget.
#include "sim/day_autoscaler.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "sim/fluid.h"

namespace fathom::sim {
namespace {

constexpr int kPrefill = static_cast<int>(UnitKind::kPrefill);
constexpr int kDecode = static_cast<int>(UnitKind::kDecode);
constexpr double kHistoryStep_s = 300;
// Largest over mean of a unit's ranks, as the simulated day has it: what capacity must allow for.
constexpr double kKvImbalance = 1.08, kRequestsImbalance = 1.16;

double hit_share(const LengthOptions& l) {
  return l.continuation_share * l.continuation_hit + (1 - l.continuation_share) * l.other_hit;
}

// Tokens per second each kind must handle when `requests_per_s` arrive.
void demand_of(double requests_per_s, const FleetOptions& fleet, double (&tokens_per_s)[kNumUnitKinds]) {
  tokens_per_s[kPrefill] = requests_per_s * fleet.lengths.input_mean_tokens * (1 - hit_share(fleet.lengths));
  tokens_per_s[kDecode] = requests_per_s * fleet.lengths.output_mean_tokens;
}

// The output of a decode unit at the batch at which users read at the speed asked for.
Result<double> decode_capacity(const HardwareProfile& hw, const ModelShape& model, const FleetOptions& fleet,
                               double wanted_speed) {
  const FleetShape& shape = fleet.shape;
  const DecodeUnitShape decode{static_cast<double>(shape.decode_ranks),
                               static_cast<double>(shape.decode_slots), 2, fleet.decode_expert_imbalance,
                               true};
  FluidLoad load;
  load.acceptance = fleet.mtp_acceptance;
  load.kv_imbalance = kKvImbalance;
  load.requests_imbalance = kRequestsImbalance;
  load.kv_tokens_per_request =
      fleet.lengths.input_mean_tokens + fleet.lengths.output_mean_tokens * (1 + fleet.lengths.output_cv2) / 2;
  const auto speed_at = [&](double requests) {
    return decode_point(hw, model, decode, load, requests).tokens_per_s_per_user;
  };
  double low = 1, high = 512;
  if (!(wanted_speed > 0) || speed_at(low) < wanted_speed) {
    return invalid_argument(
        "--unit-speed: {} tokens/s per user, a decode unit of one request per rank gives {:.1f}",
        wanted_speed, speed_at(low));
  }
  for (int i = 0; i < 50; ++i) {
    const double middle = (low + high) / 2;
    (speed_at(middle) >= wanted_speed ? low : high) = middle;
  }
  return shape.decode_ranks * low * speed_at(low);
}

// What a prefill unit's saturated forwards at the rank's budget compute.
double prefill_capacity(const HardwareProfile& hw, const ModelShape& model, const FleetOptions& fleet) {
  const FleetShape& shape = fleet.shape;
  const LayerCost cost =
      fit_prefill_cost(hw, model,
                       {static_cast<double>(shape.prefill_ranks), static_cast<double>(shape.prefill_slots),
                        fleet.prefill_expert_imbalance, fleet.cached_per_computed});
  const double budget_us = hw.prefill_rank_budget_ms_per_layer * 1e3;
  // Work per computed token: attended pairs follow from the lengths and the two classes of hits.
  const LengthModel lengths(fleet.lengths);
  Rng rng(1);
  double tokens = 0, work_us = 0;
  for (int i = 0; i < 200'000; ++i) {
    const RequestShape r = lengths.sample(rng);
    tokens += r.input_tokens - r.cached_tokens;
    const double computed = r.input_tokens - r.cached_tokens;
    work_us += cost.rank_us(computed, computed * (r.cached_tokens + computed / 2));
  }
  const double tokens_per_forward = shape.prefill_ranks * budget_us / (work_us / tokens);
  return tokens_per_forward / (prefill_forward_us(hw, model, cost, budget_us) / 1e6);
}

}  // namespace

Result<AutoscaleOptions> autoscale_options(const HardwareProfile& hw, const ModelShape& model,
                                           const FleetOptions& fleet, const DayAutoscaleOptions& options) {
  AutoscaleOptions out;
  out.budget_nodes = options.budget_nodes;
  out.unit[kPrefill].nodes = fleet.shape.prefill_nodes;
  out.unit[kDecode].nodes = fleet.shape.decode_nodes;
  if (out.budget_nodes < out.unit[kPrefill].nodes + out.unit[kDecode].nodes) {
    return invalid_argument("--budget: {} nodes hold no prefill and decode unit", out.budget_nodes);
  }
  ASSIGN_OR_RETURN(out.unit[kDecode].tokens_per_s,
                   decode_capacity(hw, model, fleet, options.speed_at_capacity));
  const double use = options.prefill_use_at_capacity;
  if (!(use > 0 && use <= 1)) return invalid_argument("--unit-use: {} is outside 0..1", use);
  out.unit[kPrefill].tokens_per_s = use * prefill_capacity(hw, model, fleet);
  out.unit[kPrefill].drain_s = 30;
  RETURN_IF_ERROR(validate_autoscale(out));
  return out;
}

DayAutoscaler::DayAutoscaler(const AutoscaleOptions& options, const FleetOptions& fleet,
                             const DayLoad* yesterday, UnitCounts initial, int start_hour)
    : options_(options), start_hour_(start_hour) {
  const Status valid = validate_autoscale(options);
  CHECK_MSG(valid.ok(), valid.message());
  kinds_[kPrefill].serving = initial.prefill;
  kinds_[kDecode].serving = initial.decode;
  if (yesterday == nullptr) return;
  for (double s = 0; s < kDaySeconds; s += kHistoryStep_s) {
    LoadPoint point;
    point.time_s = s - kDaySeconds;
    demand_of(fleet.requests_per_day * yesterday->share_per_s(s), fleet, point.tokens_per_s);
    history_.push_back(point);
  }
}

void DayAutoscaler::bring_up(double now_s) {
  for (Kind& kind : kinds_) {
    while (!kind.ready_s.empty() && kind.ready_s.front() <= now_s) {
      kind.ready_s.erase(kind.ready_s.begin());
      ++kind.serving;
    }
  }
}

void DayAutoscaler::apply(const AutoscaleDecision& decision, double now_s) {
  for (int k = 0; k < kNumUnitKinds; ++k) {
    Kind& kind = kinds_[k];
    const int have = kind.serving + static_cast<int>(kind.ready_s.size());
    int change = decision.target[k] - have;
    if (change == 0) continue;
    kind.books.changed_s = now_s;
    kind.books.last_change_grew = change > 0;
    for (; change > 0; --change) kind.ready_s.push_back(now_s + options_.unit[k].start_s);
    for (; change < 0; ++change) {
      if (!kind.ready_s.empty()) {
        kind.ready_s.pop_back();
      } else {
        --kind.serving;
      }
    }
  }
}

ScaleOutput DayAutoscaler::decide(const ScaleInput& in) {
  bring_up(in.day_second);
  AutoscaleSnapshot snapshot;
  snapshot.now_s = in.day_second;
  snapshot.tokens_per_s[kPrefill] = in.arrived_computed_tokens_per_s;
  snapshot.tokens_per_s[kDecode] = in.arrived_output_tokens_per_s;
  LoadPoint point;
  point.time_s = in.day_second;
  for (int k = 0; k < kNumUnitKinds; ++k) {
    point.tokens_per_s[k] = *snapshot.tokens_per_s[k];
    snapshot.units[k] = kinds_[k].books;
    snapshot.units[k].serving = kinds_[k].serving;
    snapshot.units[k].starting = static_cast<int>(kinds_[k].ready_s.size());
    snapshot.units[k].starting_since_s =
        kinds_[k].ready_s.empty() ? 0 : kinds_[k].ready_s.front() - options_.unit[k].start_s;
  }
  snapshot.units[kPrefill].draining = in.draining.prefill;
  snapshot.units[kDecode].draining = in.draining.decode;
  history_.push_back(point);
  snapshot.history = history_;
  const AutoscaleDecision decision = autoscale(snapshot, options_);
  const int before[kNumUnitKinds] = {snapshot.units[0].target(), snapshot.units[1].target()};
  apply(decision, in.day_second);
  if (decision.target[kPrefill] != before[kPrefill] || decision.target[kDecode] != before[kDecode]) {
    log_.push_back(fmt::format("{}  {}", clock_of(in.day_second, start_hour_), decision.text()));
  }
  ScaleOutput out;
  out.serving = {std::max(1, kinds_[kDecode].serving), std::max(1, kinds_[kPrefill].serving)};
  out.held = {out.serving.decode + static_cast<int>(kinds_[kDecode].ready_s.size()),
              out.serving.prefill + static_cast<int>(kinds_[kPrefill].ready_s.size())};
  return out;
}

double clairvoyant_node_hours(const DayLoad& load, const AutoscaleOptions& options,
                              const FleetOptions& fleet) {
  double hours = 0;
  constexpr double kStep_s = 60;
  for (double s = 0; s < kDaySeconds; s += kStep_s) {
    double tokens_per_s[kNumUnitKinds];
    demand_of(fleet.requests_per_day * load.share_per_s(s), fleet, tokens_per_s);
    for (int k = 0; k < kNumUnitKinds; ++k) {
      const double units = std::max(1.0, std::ceil(tokens_per_s[k] / options.unit[k].tokens_per_s - 1e-9));
      hours += units * options.unit[k].nodes * kStep_s / 3600;
    }
  }
  return hours;
}

}  // namespace fathom::sim
