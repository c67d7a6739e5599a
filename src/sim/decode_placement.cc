// The decode balancer with a delay between a unit's report and its arrival.
#include "sim/decode_placement.h"

#include <algorithm>

namespace fathom::sim {
namespace {

constexpr size_t kReportsInFlight = 2;  // first size of a unit's ring; it grows with the delay

DecodeBalancerOptions balancer_options(const PlacementOptions& options) {
  DecodeBalancerOptions out;
  out.policy = options.policy;
  out.admission.capacity_tokens = options.kv_room_tokens;
  out.seed = options.seed;
  return out;
}

}  // namespace

DecodePlacement::DecodePlacement(int num_units, int num_ranks, const PlacementOptions& options)
    : num_ranks_(num_ranks), options_(options), balancer_(balancer_options(options)), units_(num_units) {
  for (int u = 0; u < num_units; ++u) {
    balancer_.add_unit(num_ranks);
    balancer_.set_accepting(u, false);
    units_[u].in_flight.resize(kReportsInFlight);
  }
}

std::optional<RankRef> DecodePlacement::place(int64_t now_ns, int64_t kv_milli) {
  if (now_ns >= next_delivery_ns_) deliver(now_ns);
  const auto placed = balancer_.place({kv_milli / kMilli, options_.new_request_growth_tokens});
  if (!placed) return std::nullopt;
  units_[placed->rank.unit].last_dispatch = placed->dispatch;
  return placed->rank;
}

void DecodePlacement::report(int unit_idx, int64_t now_ns, const std::vector<int32_t>& requests,
                             const std::vector<int32_t>& kv_milli) {
  Unit& unit = units_[unit_idx];
  const int64_t due_ns = now_ns + options_.report_delay_ns;
  while (unit.count > 0 &&
         unit.in_flight[(unit.first + unit.count - 1) % unit.in_flight.size()].due_ns > due_ns)
    --unit.count;
  if (unit.count == unit.in_flight.size()) {
    std::rotate(unit.in_flight.begin(), unit.in_flight.begin() + static_cast<ptrdiff_t>(unit.first),
                unit.in_flight.end());
    unit.first = 0;
    unit.in_flight.resize(unit.in_flight.size() * 2);
  }
  Report& report = unit.in_flight[(unit.first + unit.count++) % unit.in_flight.size()];
  report.due_ns = due_ns;
  // Nothing is lost between balancer and unit here: every dispatch so far is in the loads.
  report.header = {unit_idx, unit.epoch, ++unit.sequence, unit.last_dispatch, 0, {}};
  report.loads.resize(num_ranks_);
  for (int r = 0; r < num_ranks_; ++r) {
    report.loads[r] = {requests[r], kv_milli[r] / kMilli, requests[r] * options_.live_request_growth_tokens};
  }
  next_delivery_ns_ = std::min(next_delivery_ns_, report.due_ns);
}

void DecodePlacement::deliver(int64_t now_ns) {
  next_delivery_ns_ = INT64_MAX;
  for (Unit& unit : units_) {
    while (unit.count > 0 && unit.in_flight[unit.first].due_ns <= now_ns) {
      Report& report = unit.in_flight[unit.first];
      report.header.loads = report.loads;
      balancer_.report(report.header);
      unit.first = (unit.first + 1) % unit.in_flight.size();
      --unit.count;
    }
    if (unit.count > 0) next_delivery_ns_ = std::min(next_delivery_ns_, unit.in_flight[unit.first].due_ns);
  }
}

void DecodePlacement::forget(int unit_idx) {
  Unit& unit = units_[unit_idx];
  unit.count = 0;
  unit.sequence = 0;
  ++unit.epoch;
  const std::vector<RankLoad> empty(num_ranks_);
  balancer_.report({unit_idx, unit.epoch, ++unit.sequence, unit.last_dispatch, 0, empty});
}

}  // namespace fathom::sim
