// The autoscaler (balance/autoscale) over the simulated day: units that start, serve and drain under a
// budget.
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

// Of a request in decode, over its steps.
double kv_per_request(const LengthOptions& lengths) {
  return lengths.input_mean_tokens + lengths.output_mean_tokens * (1 + lengths.output_cv2) / 2;
}

// Tokens/s per user at so many requests on each rank of a decode unit.
double decode_speed(const HardwareProfile& hw, const ModelShape& model, const FleetOptions& fleet,
                    const DayAutoscaleOptions& options, double requests_per_rank) {
  const RankImbalance imbalance = fleet.shape.decode_ranks > 1 ? options.imbalance : RankImbalance{};
  FluidLoad load;
  load.acceptance = fleet.mtp_acceptance;
  load.kv_imbalance = imbalance.kv;
  load.requests_imbalance = imbalance.requests;
  load.kv_tokens_per_request = kv_per_request(fleet.lengths);
  return decode_point(hw, model, decode_shape_of(fleet), load, requests_per_rank).tokens_per_s_per_user;
}

// The output of a decode unit at the batch at which users read at the speed asked for.
Result<double> decode_capacity(const HardwareProfile& hw, const ModelShape& model, const FleetOptions& fleet,
                               const DayAutoscaleOptions& options) {
  const double wanted_speed = options.speed_at_capacity;
  const auto speed_at = [&](double requests) { return decode_speed(hw, model, fleet, options, requests); };
  const double room_tokens = decode_room_tokens(hw, model, fleet);
  double low = 1, high = std::clamp(room_tokens / kv_per_request(fleet.lengths), low, 512.0);
  if (!(wanted_speed > 0) || speed_at(low) < wanted_speed) {
    return invalid_argument(
        "--unit-speed: {} tokens/s per user, a decode unit of one request per rank gives {:.1f}",
        wanted_speed, speed_at(low));
  }
  for (int i = 0; i < 50; ++i) {
    const double middle = (low + high) / 2;
    (speed_at(middle) >= wanted_speed ? low : high) = middle;
  }
  return fleet.shape.decode_ranks * low * speed_at(low);
}

// What a prefill unit's saturated forwards at the rank's budget compute.
double prefill_capacity(const HardwareProfile& hw, const ModelShape& model, const FleetOptions& fleet) {
  const PromptMix mix = LengthModel(fleet.lengths).prompt_mix();
  const PrefillUnitShape shape = prefill_shape_of(fleet, mix);
  const LayerCost cost = fit_prefill_cost(hw, model, shape);
  const double budget_us = hw.prefill_rank_budget_ms_per_layer * 1e3;
  const double tokens_per_rank = budget_us / cost.rank_us(1, mix.context_tokens);
  return shape.ep * tokens_per_rank / (prefill_forward_us(hw, model, cost, budget_us, tokens_per_rank) / 1e6);
}

// Seconds to the first token of a prompt of the mean length, no part of it cached, on an idle unit.
double best_ttft_s(const HardwareProfile& hw, const ModelShape& model, const FleetOptions& fleet) {
  const double tokens = fleet.lengths.input_mean_tokens;
  const LayerCost cost = fit_prefill_cost(hw, model, prefill_shape_of(fleet, {tokens, 0, tokens / 2}));
  const double rank_us = cost.rank_us(tokens, tokens * tokens / 2);
  return prefill_forward_us(hw, model, cost, rank_us, tokens) / 1e6 + hw.kv_handover_ms / 1e3;
}

}  // namespace

Result<AutoscaleOptions> autoscale_options(const HardwareProfile& hw, const ModelShape& model,
                                           const FleetOptions& fleet, const DayAutoscaleOptions& options) {
  AutoscaleOptions out;
  static_cast<AutoscaleRules&>(out) = options.rules;
  out.budget_nodes = options.budget_nodes;
  out.units_max[kPrefill] = options.units_max.prefill, out.units_max[kDecode] = options.units_max.decode;
  out.unit[kPrefill].nodes = fleet.shape.prefill_nodes;
  out.unit[kDecode].nodes = fleet.shape.decode_nodes;
  if (out.budget_nodes < out.unit[kPrefill].nodes + out.unit[kDecode].nodes) {
    return invalid_argument("--budget: {} nodes hold no prefill and decode unit", out.budget_nodes);
  }
  ASSIGN_OR_RETURN(out.unit[kDecode].tokens_per_s, decode_capacity(hw, model, fleet, options));
  const double use = options.prefill_use_at_capacity;
  if (!(use > 0 && use <= 1)) return invalid_argument("--unit-use: {} is not above 0 and at most 1", use);
  out.unit[kPrefill].tokens_per_s = use * prefill_capacity(hw, model, fleet);
  out.unit[kPrefill].start_s = out.unit[kDecode].start_s = options.times.start_s;
  out.unit[kPrefill].drain_s = options.times.prefill_drain_s;
  out.unit[kDecode].drain_s = options.times.decode_drain_s;
  out.unit[kPrefill].best_slo = best_ttft_s(hw, model, fleet);
  out.unit[kPrefill].wanted_slo = fleet.slo_ttft_s;
  out.unit[kDecode].best_slo = decode_speed(hw, model, fleet, options, 1);
  out.unit[kDecode].wanted_slo = fleet.slo_tokens_per_s_per_user;
  if (options.tied) RETURN_IF_ERROR(tie_as_published(out));
  RETURN_IF_ERROR(validate_autoscale(out));
  return out;
}

Status tie_as_published(AutoscaleOptions& options) {
  options.tied_prefill_per_decode = 3, options.tied_prefill_base = 2;
  const int nodes = options.unit[kDecode].nodes + 5 * options.unit[kPrefill].nodes;
  if (options.budget_nodes < nodes) {
    return invalid_argument("--tied: a budget of {} nodes, one decode unit and five prefill units take {}",
                            options.budget_nodes, nodes);
  }
  const int groups = std::min(options.units_max[kDecode], (options.units_max[kPrefill] - 2) / 3);
  if (groups < 1) {
    return invalid_argument(
        "--tied: one decode unit and five prefill units go together, the fleet has {} and {}",
        options.units_max[kDecode], options.units_max[kPrefill]);
  }
  options.units_max[kDecode] = groups, options.units_max[kPrefill] = 3 * groups + 2;
  return ok_status();
}

UnitCounts starting_units(UnitCounts wanted, const AutoscaleOptions& options) {
  const int per_decode = options.tied_prefill_per_decode, base = options.tied_prefill_base;
  if (per_decode == 0) return initial_units(wanted, options);
  const int group_nodes = options.unit[kDecode].nodes + per_decode * options.unit[kPrefill].nodes;
  const int most = (options.budget_nodes - base * options.unit[kPrefill].nodes) / group_nodes;
  int groups = std::max(wanted.decode, (wanted.prefill - base + per_decode - 1) / per_decode);
  groups = std::max(1, std::min({groups, most, options.units_max[kDecode]}));
  return {groups, per_decode * groups + base};
}

UnitCounts initial_units(UnitCounts wanted, const AutoscaleOptions& options) {
  UnitCounts units = wanted;
  const auto nodes = [&] {
    return units.decode * options.unit[kDecode].nodes + units.prefill * options.unit[kPrefill].nodes;
  };
  while (nodes() > options.budget_nodes && units.decode + units.prefill > 2) {
    const bool decode_has_more = units.decode * wanted.prefill >= units.prefill * wanted.decode;
    int& fewer = units.prefill == 1 || (decode_has_more && units.decode > 1) ? units.decode : units.prefill;
    --fewer;
  }
  return units;
}

DayDemand::DayDemand(const FleetOptions& fleet)
    : requests_per_day(fleet.requests_per_day),
      computed_per_request(LengthModel(fleet.lengths).prompt_mix().computed_tokens),
      output_per_request(fleet.lengths.output_mean_tokens) {}

void DayDemand::at(double share_per_s, double (&tokens_per_s)[kNumUnitKinds]) const {
  tokens_per_s[kPrefill] = requests_per_day * share_per_s * computed_per_request;
  tokens_per_s[kDecode] = requests_per_day * share_per_s * output_per_request;
}

DayAutoscaler::DayAutoscaler(const AutoscaleOptions& options, const FleetOptions& fleet, const DayLoad& load,
                             bool knows_yesterday, UnitCounts initial, int start_hour)
    : options_(options),
      demand_(fleet),
      load_(load),
      start_hour_(start_hour),
      ledger_(options, {initial.prefill, initial.decode}, 0) {
  const Status valid = validate_autoscale(options);
  CHECK_MSG(valid.ok(), valid.message());
  if (!knows_yesterday) return;
  for (double s = 0; s < kDaySeconds; s += kHistoryStep_s) {
    LoadPoint point;
    point.time_s = s - kDaySeconds;
    demand_.at(load.share_per_s(s), point.tokens_per_s);
    history_.push_back(point);
  }
}

void DayAutoscaler::step(double now_s, const double (&tokens_per_s)[kNumUnitKinds], bool starts_blocked,
                         const int (&draining)[kNumUnitKinds]) {
  ledger_.set_starts_blocked(starts_blocked);
  ledger_.advance(now_s, draining);
  AutoscaleSnapshot snapshot;
  snapshot.now_s = now_s;
  LoadPoint point;
  point.time_s = now_s;
  for (int k = 0; k < kNumUnitKinds; ++k) {
    snapshot.tokens_per_s[k] = point.tokens_per_s[k] = tokens_per_s[k];
    snapshot.units[k] = ledger_.counts(static_cast<UnitKind>(k));
    const double in_hand = serving(k) * options_.unit[k].tokens_per_s * kInHandSeconds;
    snapshot.backlog_tokens[k] = std::max(0.0, queued_tokens_[k] - (k == kPrefill ? in_hand : 0));
  }
  history_.push_back(point);
  snapshot.history = history_;
  const AutoscaleDecision decision = autoscale(snapshot, options_);
  ledger_.apply(decision);
  for (int k = 0; k < kNumUnitKinds; ++k)
    closed_s_[k].insert(closed_s_[k].end(), static_cast<size_t>(snapshot.units[k].serving - serving(k)),
                        now_s);
  bool worth_telling = decision.flip.units_to > 0;
  for (int k = 0; k < kNumUnitKinds; ++k) {
    const bool held_back = decision.reason[k] == ScaleReason::kSloUnreachable ||
                           decision.reason[k] == ScaleReason::kBudget ||
                           decision.reason[k] == ScaleReason::kBackOff;
    worth_telling |= decision.target[k] != snapshot.units[k].target() || decision.give_up_starting[k] > 0 ||
                     (held_back && decision.reason[k] != told_[k]);
    told_[k] = decision.reason[k];
  }
  if (worth_telling) log_.push_back(fmt::format("{}  {}", clock_of(now_s, start_hour_), decision.text()));
}

// Of a kind's units that drained when the fleet was last told, or have left since: so many are through.
int DayAutoscaler::drained_between(int kind, double now_s, int draining_before) const {
  const double drain_s = options_.unit[kind].drain_s;
  const std::vector<double>& closed_s = closed_s_[kind];
  const auto left = std::upper_bound(closed_s.begin(), closed_s.end(), now_s - drain_s) - closed_s.begin();
  return static_cast<int>(left) + (now_s - last_s_ >= drain_s ? draining_before : 0);
}

ScaleOutput DayAutoscaler::decide(const ScaleInput& in) {
  double tokens_per_s[kNumUnitKinds];
  tokens_per_s[kPrefill] = in.arrived_computed_tokens_per_s;
  tokens_per_s[kDecode] = in.arrived_output_tokens_per_s;
  // Queues of the end of one simulated part are not those of the time between the parts.
  std::fill(std::begin(queued_tokens_), std::end(queued_tokens_), 0);
  const int before[kNumUnitKinds] = {in.draining.prefill, in.draining.decode};
  int drained[kNumUnitKinds] = {0, 0}, draining[kNumUnitKinds] = {before[kPrefill], before[kDecode]};
  const auto drain_until = [&](double now_s) {
    for (int k = 0; k < kNumUnitKinds; ++k) {
      drained[k] = drained_between(k, now_s, before[k]);
      draining[k] = before[k] + static_cast<int>(closed_s_[k].size()) - drained[k];
    }
  };
  for (std::vector<double>& closed_s : closed_s_) closed_s.clear();
  // Between the simulated parts of hours the day goes on: decisions see its load, and units drain.
  if (in.day_second - last_s_ > 1.5 * options_.interval_s) {
    for (double s = last_s_ + options_.interval_s; s < in.day_second; s += options_.interval_s) {
      demand_.at(load_.share_per_s(s), tokens_per_s);
      drain_until(s);
      step(s, tokens_per_s, in.starts_blocked, draining);
    }
    demand_.at(load_.share_per_s(in.day_second), tokens_per_s);
    drain_until(in.day_second);
  } else {
    queued_tokens_[kPrefill] = in.queued_computed_tokens;
    queued_tokens_[kDecode] = in.queued_output_tokens;
  }
  step(in.day_second, tokens_per_s, in.starts_blocked, draining);
  last_s_ = in.day_second;
  ScaleOutput out;
  out.serving = {std::max(1, serving(kDecode)), std::max(1, serving(kPrefill))};
  out.held = {out.serving.decode + ledger_.counts(UnitKind::kDecode).starting,
              out.serving.prefill + ledger_.counts(UnitKind::kPrefill).starting};
  out.drained = {drained[kDecode], drained[kPrefill]};
  return out;
}

Clairvoyant clairvoyant_day(const DayLoad& load, const AutoscaleOptions& options, const FleetOptions& fleet) {
  const DayDemand demand(fleet);
  Clairvoyant out;
  double asked[kNumUnitKinds] = {0, 0}, left[kNumUnitKinds] = {0, 0};
  constexpr double kStep_s = 60;
  for (double s = 0; s < kDaySeconds; s += kStep_s) {
    double tokens_per_s[kNumUnitKinds];
    demand.at(load.share_per_s(s), tokens_per_s);
    int units[kNumUnitKinds];
    for (int k = 0; k < kNumUnitKinds; ++k) {
      const double needed = std::ceil(tokens_per_s[k] / options.unit[k].tokens_per_s - 1e-9);
      const int most = std::min(options.units_max[k], options.budget_nodes / options.unit[k].nodes);
      units[k] = static_cast<int>(std::min<double>(most, std::max(1.0, needed)));
    }
    const UnitCounts held = initial_units({units[kDecode], units[kPrefill]}, options);
    units[kDecode] = held.decode, units[kPrefill] = held.prefill;
    for (int k = 0; k < kNumUnitKinds; ++k) {
      out.node_hours += units[k] * options.unit[k].nodes * kStep_s / 3600;
      asked[k] += tokens_per_s[k];
      left[k] += std::max(0.0, tokens_per_s[k] - units[k] * options.unit[k].tokens_per_s);
    }
  }
  for (int k = 0; k < kNumUnitKinds; ++k) out.not_carried_share[k] = asked[k] > 0 ? left[k] / asked[k] : 0;
  return out;
}

}  // namespace fathom::sim
