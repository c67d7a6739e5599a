// Dispatches in flight are a ring per unit, indexed by their number.
#include "balance/load_ledger.h"

namespace fathom {

int LoadLedger::add_unit(int num_ranks) {
  CHECK(num_ranks > 0);
  Unit& unit = units_.emplace_back();
  unit.loads.resize(num_ranks);
  unit.in_flight.resize(num_ranks);
  return num_units() - 1;
}

uint64_t LoadLedger::charge(RankRef to, const RankLoad& load) {
  Unit& unit = units_[to.unit];
  if (unit.next - unit.first == unit.ring.size()) {
    std::vector<InFlight> bigger(unit.ring.size() * 2);
    for (uint64_t d = unit.first; d < unit.next; ++d) bigger[d & (bigger.size() - 1)] = slot(unit, d);
    unit.ring = std::move(bigger);
  }
  slot(unit, unit.next) = {to.rank, load};
  ++unit.num_open;
  unit.loads[to.rank] += load;
  unit.in_flight[to.rank] += load;
  unit.total += load;
  return unit.next++;
}

// The dispatch is no longer ours to count.
void LoadLedger::settle(Unit& unit, uint64_t dispatch) {
  InFlight& entry = slot(unit, dispatch);
  if (entry.rank < 0) return;
  unit.in_flight[entry.rank] -= entry.load;
  entry.rank = -1;
  --unit.num_open;
}

void LoadLedger::cancel(int unit_idx, uint64_t dispatch) {
  CHECK(unit_idx >= 0 && unit_idx < num_units());
  Unit& unit = units_[unit_idx];
  if (dispatch < unit.first || dispatch >= unit.next) return;
  const InFlight entry = slot(unit, dispatch);
  if (entry.rank < 0) return;
  settle(unit, dispatch);
  release({unit_idx, entry.rank}, entry.load);
}

void LoadLedger::release(RankRef from, const RankLoad& load) {
  Unit& unit = units_[from.unit];
  const RankLoad before = unit.loads[from.rank];
  unit.loads[from.rank] -= load;
  const RankLoad& after = unit.loads[from.rank];
  unit.total -= {before.requests - after.requests, before.tokens - after.tokens, before.cost - after.cost};
}

ReportOutcome LoadLedger::apply(const LoadReport& report) {
  Unit& unit = units_[report.unit];
  CHECK(report.epoch > 0 && report.loads.size() == unit.loads.size());
  if (report.epoch < unit.epoch) return ReportOutcome::kOldEpoch;
  if (unit.epoch == 0) {
    unit.epoch = report.epoch;  // first contact: what was sent before is still on its way
  } else if (report.epoch > unit.epoch) {
    for (uint64_t d = unit.first; d < unit.next; ++d) settle(unit, d);
    unit.first = unit.next;
    unit.epoch = report.epoch;
    unit.reported = false;
  }
  if (unit.reported && report.sequence <= unit.report_sequence) return ReportOutcome::kStale;
  unit.reported = true;
  unit.report_sequence = report.sequence;
  while (unit.first < unit.next && unit.first <= report.acked) settle(unit, unit.first++);
  for (uint64_t bits = report.acked_beyond; bits != 0; bits &= bits - 1) {
    const uint64_t dispatch = report.acked + 1 + static_cast<uint64_t>(__builtin_ctzll(bits));
    if (dispatch >= unit.first && dispatch < unit.next) settle(unit, dispatch);
  }
  unit.total = {};
  for (size_t r = 0; r < unit.loads.size(); ++r) {
    unit.loads[r] = report.loads[r];
    unit.loads[r] += unit.in_flight[r];
    unit.total += unit.loads[r];
  }
  return ReportOutcome::kApplied;
}

bool AckTracker::accept(uint64_t dispatch) {
  if (dispatch <= acked_) return false;
  while (dispatch - acked_ > 64) {
    // The oldest gap is given up.
    beyond_ >>= 1;
    ++acked_;
    advance();
  }
  if (dispatch <= acked_) return false;
  const uint64_t bit = uint64_t{1} << (dispatch - acked_ - 1);
  if ((beyond_ & bit) != 0) return false;
  beyond_ |= bit;
  advance();
  return true;
}

void AckTracker::advance() {
  while ((beyond_ & 1) != 0) {
    beyond_ >>= 1;
    ++acked_;
  }
}

}  // namespace fathom
