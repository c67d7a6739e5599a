// The day's faults, the units that serve, and whose nodes they are.
#include <cmath>

#include "sim/fleet_sim_impl.h"

namespace fathom::sim {
namespace {

// Before, short answers are over-represented among the finished.
constexpr int64_t kMeanOutputRequests = 1'000'000;
constexpr double kForwardTokensMin = 64;  // a block

// The highest open unit closes first; the lowest opens, one that is free of requests before one that drains.
template <typename Drains>
void open_units(int wanted, std::vector<char>& open, const Drains& drains) {
  const auto num_units = static_cast<int>(open.size());
  int have = static_cast<int>(std::count(open.begin(), open.end(), 1));
  for (int u = num_units - 1; have > wanted; --u) {
    if (open[u]) open[u] = 0, --have;
  }
  for (const bool draining : {false, true}) {
    for (int u = 0; u < num_units && have < wanted; ++u) {
      if (!open[u] && drains(u) == draining) open[u] = 1, ++have;
    }
  }
}

// So many more of the units that drain have freed their nodes.
template <typename Drains>
void mark_drained(int count, std::vector<char>& drained, const Drains& drains) {
  for (size_t u = 0; u < drained.size(); ++u) {
    if (!drains(static_cast<int>(u))) {
      drained[u] = 0;
    } else if (count > 0 && !drained[u]) {
      drained[u] = 1, --count;
    }
  }
}

}  // namespace

void FleetSim::schedule_faults() {
  for (const Fault& fault : options_.faults) {
    faults_.push_back({clock_.simulated_ns(fault.at_s), fault, true});
    faults_.push_back({clock_.simulated_ns(fault.at_s + fault.for_s), fault, false});
  }
  std::stable_sort(faults_.begin(), faults_.end(), [](const Due& a, const Due& b) { return a.at < b.at; });
}

void FleetSim::next_fault(int64_t now) {
  const Due due = faults_[fault_idx_++];
  apply_fault(due.fault, due.begins, now);
  refresh_next_event();
}

void FleetSim::apply_fault(const Fault& fault, bool begins, int64_t now) {
  active_.set(fault, begins);
  switch (fault.kind) {
    case FaultKind::kUnitLoss:
      fault_unit_loss(fault, begins, now);
      break;
    case FaultKind::kSlowRank:
      fault_slow_rank(fault);
      break;
    case FaultKind::kStaleReports: {
      const int64_t delay_ns = report_delay_ns_ + static_cast<int64_t>(active_.stale_s() * kNsPerSecond);
      placement_->set_report_delay(delay_ns);
      prefill_placement_->set_report_delay(delay_ns);
      break;
    }
    case FaultKind::kFlashCrowd:
      crowd_ = active_.crowd();
      next_rate_ns_ = 0;
      next_arrival_ns_ = draw_arrival(now);
      break;
    case FaultKind::kLostRegistry:
      registry_lost_ = active_.any(FaultKind::kLostRegistry);
      tell_balancers(now);
      break;
    case FaultKind::kNoNodes:
      starts_blocked_ = active_.any(FaultKind::kNoNodes);
      break;
  }
}

// Broken connections tell of a loss at once, registry or not; of a return only the registry tells.
void FleetSim::fault_unit_loss(const Fault& fault, bool begins, int64_t now) {
  const int u = fault.unit;
  char& lost = (fault.decode ? decode_lost_ : prefill_lost_)[u];
  const bool was_lost = lost;
  lost = active_.lost(fault.decode, u);
  if (!begins) {
    tell_balancers(now);
  } else if (was_lost) {
    return;
  } else if (fault.decode) {
    placement_->set_open(u, false);
    lose_decode(u, now);
  } else {
    prefill_placement_->set_open(u, false);
    lose_prefill(u, now);
  }
}

void FleetSim::fault_slow_rank(const Fault& fault) {
  const double factor = active_.slowness(fault.decode, fault.unit, fault.rank);
  if (!fault.decode) {
    prefill_[fault.unit].set_slowness(fault.rank, factor);
    return;
  }
  std::erase_if(slow_decode_,
                [&](const SlowRank& s) { return s.unit == fault.unit && s.rank == fault.rank; });
  if (factor != 1) slow_decode_.push_back({fault.unit, fault.rank, factor});
}

// A slow rank holds its unit up as a rank with so much more to do would: everybody waits at each layer.
StepLoad FleetSim::slowed(int u, const StepLoad& load) const {
  StepLoad out = load;
  for (const SlowRank& slow : slow_decode_) {
    if (slow.unit != u) continue;
    const auto as_if = [&](const std::vector<int32_t>& ranks) {
      return static_cast<int32_t>(std::min(2e9, ranks[slow.rank] * slow.factor));
    };
    out.requests_max = std::max(out.requests_max, as_if(decode_[u].requests()));
    out.kv_milli_max = std::max(out.kv_milli_max, as_if(decode_[u].kv_milli()));
  }
  return out;
}

void FleetSim::tell_balancers(int64_t now) {
  if (registry_lost_) return;
  for (int u = 0; u < num_decode(); ++u) placement_->set_open(u, decode_open_[u] && !decode_lost_[u]);
  for (size_t u = 0; u < prefill_.size(); ++u)
    prefill_placement_->set_open(static_cast<int>(u), prefill_open_[u] && !prefill_lost_[u]);
  if (!unrouted_.empty()) dispatch_unrouted(now);
  if (!waiting_decode_.empty()) admit_waiting(now);
}

// Requests of a lost decode unit are replayed: their KV is in the external store up to the last whole block.
void FleetSim::lose_decode(int u, int64_t now) {
  std::vector<DecodeJob> lost;
  decode_[u].lose_all(lost);
  set_event(u, kNever);
  placement_->forget(u);
  if (options_.sabotage == DaySabotage::kLoseRequests) return;
  cell().replays += static_cast<int64_t>(lost.size());
  for (const DecodeJob& job : lost) {
    PrefillJob again;
    again.arrival_ns = now;
    again.input_tokens = std::max<int32_t>(1, job.kv_milli / static_cast<int32_t>(kMilli));
    again.cached_tokens = again.computed_from = (again.input_tokens - 1) / 64 * 64;
    again.accepted = again.replay = true;
    again.output_tokens = static_cast<int32_t>(replays_.size());
    replays_.push_back(job);
    dispatch_prefill(now, again);
  }
}

DecodeJob FleetSim::replay_of(const PrefillJob& job, int64_t ready) {
  DecodeJob decode = replays_[static_cast<size_t>(job.output_tokens)];
  decode.ready_ns = ready;
  return decode;
}

void FleetSim::lose_prefill(int u, int64_t now) {
  std::vector<PrefillJob> lost;
  prefill_[u].lose_all(lost);
  set_event(num_decode() + u, kNever);
  prefill_placement_->forget(u);
  cell().replays += static_cast<int64_t>(lost.size());
  for (const PrefillJob& job : lost) dispatch_prefill(now, job);
}

int64_t FleetSim::next_scale_after(int64_t now) const {
  // Each window's start: after a gap the units of the hour before are not this one's.
  int64_t next = (now / clock_.window_ns() + 1) * clock_.window_ns();
  if (options_.scale) {
    const int64_t at = now + static_cast<int64_t>(options_.scale_interval_s * kNsPerSecond);
    return options_.fraction < 1 ? std::min(next, at) : at;
  }
  // The schedule's changes inside simulated windows.
  for (const DaySchedule::Change& change : day_.schedule.changes()) {
    const int hour = change.second / 3600;
    const int64_t inside = static_cast<int64_t>(change.second - hour * 3600) * 1'000'000'000;
    const int64_t at = hour * clock_.window_ns() + inside;
    if (inside < clock_.window_ns() && at > now) next = std::min(next, at);
  }
  return next;
}

void FleetSim::scale(int64_t now) {
  const double day_second = clock_.day_second(now);
  if (options_.scale) {
    account_nodes(now);
    const ScaleOutput out = options_.scale(scale_input(now));
    set_units(now, out.serving, out.held, out.drained);
  } else {
    const UnitCounts units = day_.schedule.units_at(day_second);
    set_units(now, units, units);
  }
  next_scale_ns_ = next_scale_after(now);
  refresh_next_event();
}

ScaleInput FleetSim::scale_input(int64_t now) {
  ScaleInput in;
  in.day_second = clock_.day_second(now);
  in.starts_blocked = starts_blocked_;
  int64_t arrived = 0, computed = 0, finished = 0, output = 0;
  for (int i = 0; i <= cell_idx_; ++i) {
    const FleetCell& c = result_.metrics.cells[static_cast<size_t>(i)];
    arrived += c.arrived_requests;
    computed += c.arrived_computed_tokens;
    finished += c.finished_requests;
    output += c.finished_output_tokens;
  }
  const double mean_output = finished > kMeanOutputRequests
                                 ? static_cast<double>(output) / static_cast<double>(finished)
                                 : options_.lengths.output_mean_tokens;
  const double since_s = static_cast<double>(now - scaled_ns_) / kNsPerSecond;
  if (since_s > 0) {
    in.arrived_computed_tokens_per_s = static_cast<double>(computed - scaled_computed_) / since_s;
    in.arrived_output_tokens_per_s = static_cast<double>(arrived - scaled_arrived_) * mean_output / since_s;
  }
  scaled_ns_ = now;
  scaled_arrived_ = arrived;
  scaled_computed_ = computed;
  in.draining = draining();
  for (const PrefillUnit& unit : prefill_) {
    for (const RankLoad& rank : unit.loads()) in.queued_computed_tokens += static_cast<double>(rank.tokens);
  }
  for (const PrefillJob& job : unrouted_) in.queued_computed_tokens += job.input_tokens - job.cached_tokens;
  for (const DecodeJob& job : waiting_decode_) in.queued_output_tokens += job.output_tokens;
  return in;
}

void FleetSim::set_units(int64_t now, UnitCounts units, UnitCounts held, UnitCounts drained) {
  units.decode = std::clamp(units.decode, 1, num_decode());
  units.prefill = std::clamp(units.prefill, 1, static_cast<int>(prefill_.size()));
  account_nodes(now);
  if (result_.units.empty() || units != units_) {
    const int nodes =
        units.decode * options_.shape.decode_nodes + units.prefill * options_.shape.prefill_nodes;
    result_.units.push_back({static_cast<int>(clock_.day_second(now)), nodes, units});
  }
  units_ = units;
  held_ = held;
  open_units(units.decode, decode_open_, [&](int u) { return drains_decode(u); });
  open_units(units.prefill, prefill_open_, [&](int u) { return drains_prefill(u); });
  mark_drained(drained.decode, decode_drained_, [&](int u) { return drains_decode(u); });
  mark_drained(drained.prefill, prefill_drained_, [&](int u) { return drains_prefill(u); });
  note_nodes();
  tell_balancers(now);
}

// Those that hold nodes.
UnitCounts FleetSim::draining() const {
  UnitCounts draining;
  for (int u = 0; u < num_decode(); ++u) draining.decode += drains_decode(u) && !decode_drained_[u];
  for (int u = 0; u < static_cast<int>(prefill_.size()); ++u)
    draining.prefill += drains_prefill(u) && !prefill_drained_[u];
  return draining;
}

void FleetSim::note_nodes() {
  const UnitCounts drains = draining();
  const int nodes = (held_.decode + drains.decode) * options_.shape.decode_nodes +
                    (held_.prefill + drains.prefill) * options_.shape.prefill_nodes;
  result_.nodes_peak = std::max(result_.nodes_peak, nodes);
}

void FleetSim::account_nodes(int64_t now) {
  const double seconds = static_cast<double>(now - accounted_ns_) / kNsPerSecond;
  accounted_ns_ = now;
  FleetCell& c = cell();
  c.seconds += seconds;
  c.decode_node_seconds += seconds * held_.decode * options_.shape.decode_nodes;
  c.prefill_node_seconds += seconds * held_.prefill * options_.shape.prefill_nodes;
  for (int u = 0; u < num_decode(); ++u) {
    if (drains_decode(u)) c.decode_drain_node_seconds += seconds * options_.shape.decode_nodes;
  }
  for (int u = 0; u < static_cast<int>(prefill_.size()); ++u) {
    if (drains_prefill(u)) c.prefill_drain_node_seconds += seconds * options_.shape.prefill_nodes;
  }
}

DecodeUnitShape decode_shape_of(const FleetOptions& options) {
  const bool mtp = options.mtp_acceptance > 0;
  return {static_cast<double>(options.shape.decode_ranks), static_cast<double>(options.shape.decode_slots),
          mtp ? 2.0 : 1.0, options.decode_expert_imbalance, mtp};
}

PrefillUnitShape prefill_shape_of(const FleetOptions& options, const PromptMix& mix) {
  return {static_cast<double>(options.shape.prefill_ranks), static_cast<double>(options.shape.prefill_slots),
          options.prefill_expert_imbalance, mix.cached_per_computed, mix.context_tokens};
}

double decode_room_tokens(const HardwareProfile& hw, const ModelShape& model, const FleetOptions& options) {
  if (options.decode_blocks_per_rank > 0) return options.decode_blocks_per_rank * 64.0;
  const DecodeUnitShape shape = decode_shape_of(options);
  return kv_room_tokens(hw, model, shape.slots / shape.ep, shape.mtp);
}

Status validate_day_profile(const HardwareProfile& hw, const ModelShape& model, const FleetOptions& options) {
  const FleetShape& shape = options.shape;
  const int gpus = shape.decode_ranks / shape.decode_nodes;
  if (hw.gpus_per_node != gpus) {
    return invalid_argument("{}: {} GPUs, the day's units are of nodes of {}", hw.gpus_place,
                            hw.gpus_per_node, gpus);
  }
  const double room = decode_room_tokens(hw, model, options);
  if (room < 1 || room > static_cast<double>(kRoomTokensMax)) {
    return invalid_argument("{}: {} GB leave room for {:.0f} KV tokens per decode rank, outside 1..{}",
                            hw.hbm_place, hw.hbm_gb, room, kRoomTokensMax);
  }
  const PromptMix mix = LengthModel(options.lengths).prompt_mix();
  const LayerCost cost = fit_prefill_cost(hw, model, prefill_shape_of(options, mix));
  const double tokens = hw.prefill_rank_budget_ms_per_layer * 1e3 / cost.rank_us(1, mix.context_tokens);
  if (tokens < kForwardTokensMin) {
    return invalid_argument(
        "profile {}: prefill.rank_budget_ms_per_layer: {} ms compute {:.0f} tokens, a forward takes {:.0f}",
        hw.name, hw.prefill_rank_budget_ms_per_layer, tokens, kForwardTokensMin);
  }
  return ok_status();
}

Status validate_faults(const std::vector<Fault>& faults, const UnitCounts& units_max,
                       const FleetShape& shape) {
  for (const Fault& fault : faults) {
    const bool of_rank = fault.kind == FaultKind::kSlowRank;
    if (!of_rank && fault.kind != FaultKind::kUnitLoss) continue;
    const char* phase = fault.decode ? "decode" : "prefill";
    const int units = fault.decode ? units_max.decode : units_max.prefill;
    const int ranks = fault.decode ? shape.decode_ranks : shape.prefill_ranks;
    if (fault.unit >= units)
      return invalid_argument("--fault: unit: {} of {} {} units", fault.unit, units, phase);
    if (of_rank && fault.rank >= ranks)
      return invalid_argument("--fault: rank: {} of {} {} ranks", fault.rank, ranks, phase);
    if (of_rank && !(fault.factor > 0)) return invalid_argument("--fault: factor: must be above 0");
  }
  return ok_status();
}

}  // namespace fathom::sim
