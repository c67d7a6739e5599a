// Events in time order; between them the number of nodes is constant, so hours are exact.
#include "balance/fleet_ledger.h"

#include <algorithm>

#include "base/check.h"

namespace fathom {

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
  hours_.node_hours += hours * (in_use - drains);
  hours_.drain_node_hours += hours * drains;
  hours_.freed_node_hours += hours * (options_.budget_nodes - in_use);
  now_s_ = to_s;
}

double FleetLedger::next_event_s() const {
  double next = 1e300;
  for (const Kind& kind : kinds_) {
    if (!starts_blocked_ && !kind.starting.empty()) next = std::min(next, kind.starting.front().until_s);
    if (!kind.draining.empty()) next = std::min(next, kind.draining.front().until_s);
  }
  return next;
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
    for (const PendingFlip& flip : flips_) {
      if (flip.until_s > now_s_) continue;
      Kind& kind = kinds_[static_cast<int>(flip.to)];
      for (int i = 0; i < flip.units; ++i) {
        kind.starting.push_back({now_s_, now_s_ + options_.unit[static_cast<int>(flip.to)].start_s});
      }
      kind.changed_s = now_s_, kind.last_change_grew = true;
    }
    std::erase_if(flips_, [&](const PendingFlip& flip) { return flip.until_s <= now_s_; });
  }
  account(now_s);
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
  if (decision.flip.units_to > 0) {
    const int from = static_cast<int>(decision.flip.from);
    flips_.push_back(
        {now_s_ + options_.unit[from].drain_s, static_cast<UnitKind>(1 - from), decision.flip.units_to});
  }
  hours_.num_changes += changed;
  hours_.nodes_max = std::max(hours_.nodes_max, nodes_in_use());
}

}  // namespace fathom
