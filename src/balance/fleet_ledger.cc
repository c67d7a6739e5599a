// Events in time order; between them the number of nodes is constant, so hours are exact.
#include "balance/fleet_ledger.h"

#include <algorithm>

#include "base/check.h"

namespace fathom {
namespace {

constexpr double kForever_s = 1e300;

}  // namespace

FleetLedger::FleetLedger(const AutoscaleOptions& options, const int (&units)[kNumUnitKinds], double now_s)
    : options_(options), now_s_(now_s) {
  for (int k = 0; k < kNumUnitKinds; ++k) kinds_[k].serving = units[k];
  CHECK(nodes_in_use() <= options.budget_nodes);
  hours_.nodes_max = nodes_in_use();
}

int FleetLedger::nodes_in_use() const {
  int nodes = 0;
  for (int k = 0; k < kNumUnitKinds; ++k) {
    const Kind& kind = kinds_[k];
    nodes += options_.unit[k].nodes *
             (kind.serving + static_cast<int>(kind.starting.size() + kind.draining.size()));
  }
  return nodes;
}

UnitCounts FleetLedger::counts(UnitKind which) const {
  const Kind& kind = kinds_[static_cast<int>(which)];
  UnitCounts counts;
  counts.serving = kind.serving;
  counts.starting = static_cast<int>(kind.starting.size());
  counts.draining = static_cast<int>(kind.draining.size());
  counts.changed_s = kind.changed_s;
  counts.last_change_grew = kind.last_change_grew;
  counts.failed_starts = kind.failed_starts;
  counts.last_failed_start_s = kind.last_failed_start_s;
  if (!kind.starting.empty()) counts.starting_since_s = kind.starting.front().since_s;
  return counts;
}

void FleetLedger::account(double to_s) {
  const double hours = (to_s - now_s_) / 3600;
  int drains = 0;
  for (int k = 0; k < kNumUnitKinds; ++k)
    drains += options_.unit[k].nodes * static_cast<int>(kinds_[k].draining.size());
  const int in_use = nodes_in_use();
  hours_.hours += hours;
  hours_.node_hours += hours * (in_use - drains);
  hours_.drain_node_hours += hours * drains;
  hours_.freed_node_hours += hours * (options_.budget_nodes - in_use);
  now_s_ = to_s;
}

double FleetLedger::next_event_s() const {
  double next = kForever_s;
  for (const Kind& kind : kinds_) {
    if (!starts_blocked_ && !kind.starting.empty()) next = std::min(next, kind.starting.front().until_s);
    if (!kind.draining.empty()) next = std::min(next, kind.draining.front().until_s);
  }
  return next;
}

// A flip's units start as its drains free their nodes. Where others took them meanwhile, the flip ends.
void FleetLedger::start_flipped() {
  for (PendingFlip& pending : flips_) {
    const int from = static_cast<int>(pending.flip.from), to = 1 - from;
    const int nodes_from = options_.unit[from].nodes, nodes_to = options_.unit[to].nodes;
    const auto left = std::count_if(kinds_[from].draining.begin(), kinds_[from].draining.end(),
                                    [&](const Pending& drain) { return drain.since_s <= pending.since_s; });
    const int drained = std::max(0, pending.flip.units_from - static_cast<int>(left));
    const int due = std::min(pending.flip.units_to, drained * nodes_from / nodes_to) - pending.started;
    const int room = std::max(0, options_.budget_nodes - nodes_in_use()) / nodes_to;
    Kind& kind = kinds_[to];
    for (int i = 0; i < std::min(due, room); ++i) {
      kind.starting.push_back({now_s_, now_s_ + options_.unit[to].start_s});
      kind.changed_s = now_s_, kind.last_change_grew = true;
      ++pending.started;
    }
    if (drained == pending.flip.units_from) pending.started = pending.flip.units_to;
  }
  std::erase_if(flips_, [](const PendingFlip& p) { return p.started == p.flip.units_to; });
}

void FleetLedger::advance(double now_s, const int (&draining)[kNumUnitKinds]) {
  for (int k = 0; k < kNumUnitKinds; ++k)
    kinds_[k].draining.assign(static_cast<size_t>(draining[k]), {-kForever_s, kForever_s});
  advance(now_s);
}

void FleetLedger::advance(double now_s) {
  for (double event_s = next_event_s(); event_s <= now_s; event_s = next_event_s()) {
    account(std::max(event_s, now_s_));
    for (Kind& kind : kinds_) {
      while (!starts_blocked_ && !kind.starting.empty() && kind.starting.front().until_s <= now_s_) {
        kind.starting.erase(kind.starting.begin());
        ++kind.serving;
        kind.failed_starts = 0;
      }
      while (!kind.draining.empty() && kind.draining.front().until_s <= now_s_)
        kind.draining.erase(kind.draining.begin());
    }
    start_flipped();
  }
  account(now_s);
  start_flipped();
  hours_.nodes_max = std::max(hours_.nodes_max, nodes_in_use());
}

void FleetLedger::apply(const AutoscaleDecision& decision) {
  bool changed = false;
  for (int k = 0; k < kNumUnitKinds; ++k) {
    Kind& kind = kinds_[k];
    const UnitProfile& unit = options_.unit[k];
    if (decision.give_up_starting[k] > 0) {
      kind.starting.clear();
      ++kind.failed_starts;
      kind.last_failed_start_s = now_s_;
    }
    const int have = kind.serving + static_cast<int>(kind.starting.size());
    const int change = decision.target[k] - have;
    if (change == 0) continue;
    changed = true;
    kind.changed_s = now_s_, kind.last_change_grew = change > 0;
    for (int i = 0; i < change; ++i) kind.starting.push_back({now_s_, now_s_ + unit.start_s});
    for (int i = 0; i < -change; ++i) {
      if (!kind.starting.empty()) {
        kind.starting.pop_back();
      } else {
        --kind.serving;
        kind.draining.push_back({now_s_, now_s_ + unit.drain_s});
      }
    }
  }
  if (decision.flip.units_to > 0) flips_.push_back({decision.flip, now_s_});
  hours_.num_changes += changed;
  hours_.nodes_max = std::max(hours_.nodes_max, nodes_in_use());
}

}  // namespace fathom
