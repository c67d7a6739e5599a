// Which units of a block-exact fleet serve, and whose nodes they are.
#include <algorithm>

#include "sim/block_fleet_impl.h"

namespace fathom::sim {
namespace {

constexpr int64_t kAccountNs = 1'000'000'000;

}  // namespace

UnitCounts BlockFleet::draining() const {
  UnitCounts draining;
  for (const Unit& unit : units_) {
    if (unit.open) continue;
    const bool works = std::any_of(unit.ranks.begin(), unit.ranks.end(),
                                   [](const BlockRank& rank) { return rank.num_sequences() > 0; });
    if (works) ++(unit.decode ? draining.decode : draining.prefill);
  }
  return draining;
}

void BlockFleet::account_nodes(int64_t until_ns) {
  const UnitCounts drains = draining();
  const UnitCounts& of = options_.unit_nodes;
  cells_.spread(accounted_ns_, until_ns, [&](FleetCell& c, double seconds) {
    c.seconds += seconds;
    c.decode_node_seconds += seconds * held_.decode * of.decode;
    c.prefill_node_seconds += seconds * held_.prefill * of.prefill;
    c.decode_drain_node_seconds += seconds * drains.decode * of.decode;
    c.prefill_drain_node_seconds += seconds * drains.prefill * of.prefill;
  });
  // The sums end with the last arrival: what is left then is answered, and nothing new comes.
  const int64_t counted_ns = std::min(until_ns, last_arrival_ns_) - std::min(accounted_ns_, last_arrival_ns_);
  const double seconds = static_cast<double>(counted_ns) / 1e9;
  const int held_nodes = held_.decode * of.decode + held_.prefill * of.prefill;
  const int drain_nodes = drains.decode * of.decode + drains.prefill * of.prefill;
  result_.node_seconds += seconds * held_nodes;
  result_.drain_node_seconds += seconds * drain_nodes;
  result_.nodes_peak = std::max(result_.nodes_peak, held_nodes + drain_nodes);
  accounted_ns_ = std::max(accounted_ns_, until_ns);
}

// To the second, as long as requests come or run.
void BlockFleet::count_drains() {
  account_nodes(now_);
  if (now_ < last_arrival_ns_ || num_ended() < result_.requests)
    events_.at(now_ + kAccountNs, [this] { count_drains(); });
}

// The highest closes first. A unit that opens is a new one: what it had cached went with its nodes.
void BlockFleet::open_units(bool decode, int wanted) {
  const int first = decode ? options_.prefill_units : 0;
  const int num_units = decode ? options_.decode_units : options_.prefill_units;
  const auto unit_at = [&](int u) -> Unit& { return units_[static_cast<size_t>(first + u)]; };
  int have = 0;
  for (int u = 0; u < num_units; ++u) have += unit_at(u).open;
  for (int u = num_units - 1; u >= 0 && have > wanted; --u) {
    if (!unit_at(u).open) continue;
    unit_at(u).open = false, --have;
    if (!registry_lost_) set_accepting(unit_at(u), false);
  }
  for (int u = 0; u < num_units && have < wanted; ++u) {
    Unit& unit = unit_at(u);
    if (unit.open) continue;
    unit.open = true, ++have;
    for (BlockRank& rank : unit.ranks) {
      if (rank.num_sequences() == 0) rank.clear();
    }
    if (unit.alive && !registry_lost_) set_accepting(unit, true);
  }
}

void BlockFleet::start_scaling() {
  held_ = options_.scale ? options_.scale_initial : UnitCounts{options_.decode_units, options_.prefill_units};
  use_units(held_, held_);
  events_.at(last_arrival_ns_, [this] { account_nodes(now_); });
  if (!options_.scale) return;
  events_.at(kAccountNs, [this] { count_drains(); });
  const int64_t interval_ns = seconds_ns(options_.scale_interval_s);
  for (int64_t at = interval_ns; at < last_arrival_ns_; at += interval_ns)
    events_.at(at, [this] { scale_units(); });
}

void BlockFleet::scale_units() {
  account_nodes(now_);
  ScaleInput in;
  in.day_second = static_cast<double>(now_) / 1e9;
  in.draining = draining();
  in.starts_blocked = starts_blocked_;
  in.arrived_computed_tokens_per_s =
      static_cast<double>(scaled_input_) * (1 - result_.hit_share()) / options_.scale_interval_s;
  in.arrived_output_tokens_per_s = static_cast<double>(scaled_output_) / options_.scale_interval_s;
  scaled_input_ = scaled_output_ = 0;
  for (const Unit& unit : units_) {
    if (unit.decode) continue;
    for (const BlockRank& rank : unit.ranks) {
      in.queued_computed_tokens += static_cast<double>(rank.prefill_load(cost_).tokens);
      for (const auto& s : rank.sequences()) {
        const bool waits =
            s->stage == SequenceStage::kHandover && s->prefill_leg.state() == PrefillLeg::State::kIdle;
        if (waits) in.queued_output_tokens += s->left_tokens;
      }
    }
  }
  for (const Request& request : requests_) {
    if (request.phase == Phase::kUnrouted && request.epoch == 0)
      in.queued_computed_tokens += request.prompt_tokens;
  }
  const ScaleOutput out = options_.scale(in);
  use_units(out.serving, out.held);
}

void BlockFleet::use_units(UnitCounts serving, UnitCounts held) {
  serving.decode = std::clamp(serving.decode, 1, options_.decode_units);
  serving.prefill = std::clamp(serving.prefill, 1, options_.prefill_units);
  open_units(true, serving.decode);
  open_units(false, serving.prefill);
  held_ = held;
  account_nodes(now_);
  if (!result_.units.empty() && result_.units.back().units == serving) return;
  const int nodes =
      serving.decode * options_.unit_nodes.decode + serving.prefill * options_.unit_nodes.prefill;
  const double now_s = static_cast<double>(now_) / 1e9;
  const double second = options_.clock_s ? options_.clock_s(now_s) : now_s;
  result_.units.push_back({static_cast<int>(second), nodes, serving});
}

}  // namespace fathom::sim
