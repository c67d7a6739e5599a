// The decode balancer of the servers (balance/decode_balancer.h) as a simulated fleet meets it: its own
// dispatches count at once; what the units report, one message per unit and step, arrives a delay later.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "balance/decode_balancer.h"
#include "sim/decode_unit.h"

namespace fathom::sim {

struct PlacementOptions {
  DecodePolicy policy = DecodePolicy::kKvCapped;
  int64_t report_delay_ns = 50'000'000;
  int64_t kv_room_tokens = 0;                 // of a rank; 0: no admission by KV
  int64_t new_request_growth_tokens = 1000;   // expected output of a request that starts
  int64_t live_request_growth_tokens = 1370;  // and of one that runs: long ones are over-represented
  uint64_t seed = 1;
};

class DecodePlacement {
 public:
  DecodePlacement(int num_units, int num_ranks, const PlacementOptions& options);

  // Dispatchable units are those the schedule keeps; others drain.
  void set_open(int unit, bool open) { balancer_.set_accepting(unit, open); }
  // nullopt: no open unit has a rank with room. A choice counts as dispatched.
  std::optional<RankRef> place(int64_t now_ns, int64_t kv_milli);
  // The unit's state just after a step's start; it becomes known report_delay_ns later.
  void report(int unit, int64_t now_ns, const std::vector<int32_t>& requests,
              const std::vector<int32_t>& kv_milli);
  // The unit is empty and restarts (unit loss).
  void forget(int unit);
  // Reports sent from now on take so long. One that overtakes older ones makes them obsolete.
  void set_report_delay(int64_t delay_ns) { options_.report_delay_ns = delay_ns; }
  // Makes every report that has arrived by now known.
  void deliver(int64_t now_ns);

 private:
  struct Report {
    int64_t due_ns = 0;
    LoadReport header;
    std::vector<RankLoad> loads;
  };
  struct Unit {
    uint64_t epoch = 1;
    uint64_t sequence = 0;
    uint64_t last_dispatch = 0;
    std::vector<Report> in_flight;  // ring, oldest first
    size_t first = 0, count = 0;
  };

  const int num_ranks_;
  PlacementOptions options_;
  DecodeBalancer balancer_;
  std::vector<Unit> units_;
  int64_t next_delivery_ns_ = INT64_MAX;
};

}  // namespace fathom::sim
