// The prefill balancer of the servers (balance/prefill_balancer.h) as a simulated fleet meets it: own
// dispatches count at once, a report of each unit, sent when it starts a forward or falls idle, arrives a
// delay later.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "balance/prefill_balancer.h"

namespace fathom::sim {

struct PrefillPlacementOptions {
  PrefillPolicy policy = PrefillPolicy::kFathom;
  PrefillCost cost;
  int64_t report_delay_ns = 50'000'000;
  double layers = 61;  // a forward's time over its time per layer
  uint64_t seed = 1;
};

class PrefillDispatch {
 public:
  PrefillDispatch(int num_units, int num_ranks, const PrefillPlacementOptions& options);

  void set_open(int unit, bool open) { balancer_.set_accepting(unit, open); }
  // The rank for a prompt, charged at once; nullopt when no unit is open.
  std::optional<RankRef> place(int64_t now_ns, int64_t prompt_tokens, int64_t cached_tokens);
  // forward_end_ns: when the forward that now runs ends; now_ns when none does.
  void report(int unit, int64_t now_ns, const std::vector<RankLoad>& loads, int64_t forward_end_ns);
  void forget(int unit);
  // The prompt placed last was refused there.
  void withdraw(int unit) { balancer_.cancel(unit, units_[unit].last_dispatch); }
  // Reports sent from now on take so long.
  void set_report_delay(int64_t delay_ns) { options_.report_delay_ns = delay_ns; }

 private:
  struct Report {
    int64_t due_ns = 0;
    LoadReport header;
    std::vector<RankLoad> loads;
    int64_t forward_end_ns = 0;
  };
  struct Unit {
    uint64_t epoch = 1;
    uint64_t sequence = 0;
    uint64_t last_dispatch = 0;
    int64_t forward_end_ns = 0;
  };
  void deliver(int64_t now_ns);
  void refresh_residuals(int64_t now_ns);

  PrefillPlacementOptions options_;
  PrefillBalancer balancer_;
  std::vector<Unit> units_;
  std::deque<Report> in_flight_;  // by due time
  int64_t next_residuals_ns_ = 0;
};

}  // namespace fathom::sim
