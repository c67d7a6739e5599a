// The faults that are under way. Where several of one kind overlap, the end of one leaves the others.
#pragma once

#include <algorithm>
#include <vector>

#include "sim/block_fleet.h"

namespace fathom::sim {

class ActiveFaults {
 public:
  void set(const Fault& fault, bool begins) {
    if (begins) {
      under_way_.push_back(fault);
      return;
    }
    const auto it = std::find(under_way_.begin(), under_way_.end(), fault);
    if (it != under_way_.end()) under_way_.erase(it);
  }

  bool any(FaultKind kind) const {
    return std::any_of(under_way_.begin(), under_way_.end(), [&](const Fault& f) { return f.kind == kind; });
  }
  bool lost(bool decode, int unit) const {
    return std::any_of(under_way_.begin(), under_way_.end(), [&](const Fault& f) {
      return f.kind == FaultKind::kUnitLoss && f.decode == decode && f.unit == unit;
    });
  }
  // Times the rank's usual time.
  double slowness(bool decode, int unit, int rank) const {
    return product([&](const Fault& f) {
      return f.kind == FaultKind::kSlowRank && f.decode == decode && f.unit == unit && f.rank == rank;
    });
  }
  // Times the usual arrivals.
  double crowd() const {
    return product([](const Fault& f) { return f.kind == FaultKind::kFlashCrowd; });
  }
  double stale_s() const {
    double stale_s = 0;
    for (const Fault& f : under_way_) {
      if (f.kind == FaultKind::kStaleReports) stale_s = std::max(stale_s, f.factor);
    }
    return stale_s;
  }

 private:
  template <typename Which>
  double product(const Which& which) const {
    double factor = 1;
    for (const Fault& f : under_way_) {
      if (which(f)) factor *= f.factor;
    }
    return factor;
  }

  std::vector<Fault> under_way_;
};

}  // namespace fathom::sim
