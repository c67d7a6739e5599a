// The prefill balancer with a delay between a unit's report and its arrival.
#include "sim/prefill_placement.h"

#include <algorithm>

namespace fathom::sim {
namespace {

// How often what is left of running forwards is told to the balancer; they last seconds.
constexpr int64_t kResidualRefreshNs = 100'000'000;

PrefillBalancerOptions balancer_options(const PrefillPlacementOptions& options) {
  PrefillBalancerOptions out;
  out.policy = options.policy;
  out.cost = options.cost;
  out.seed = options.seed;
  return out;
}

}  // namespace

PrefillDispatch::PrefillDispatch(int num_units, int num_ranks, const PrefillPlacementOptions& options)
    : options_(options), balancer_(balancer_options(options)), units_(num_units) {
  for (int u = 0; u < num_units; ++u) {
    balancer_.add_unit(num_ranks);
    balancer_.set_accepting(u, false);
  }
}

std::optional<RankRef> PrefillDispatch::place(int64_t now_ns, int64_t prompt_tokens, int64_t cached_tokens) {
  if (!in_flight_.empty() && in_flight_.front().due_ns <= now_ns) deliver(now_ns);
  if (now_ns >= next_residuals_ns_) refresh_residuals(now_ns);
  const auto placed = balancer_.place({prompt_tokens, cached_tokens, {}});
  if (!placed) return std::nullopt;
  const RankRef rank = placed->choice.rank;
  units_[rank.unit].last_dispatch = placed->dispatch;
  return rank;
}

void PrefillDispatch::report(int unit_idx, int64_t now_ns, const std::vector<RankLoad>& loads,
                             int64_t forward_end_ns) {
  Unit& unit = units_[unit_idx];
  // Nothing is lost between balancer and unit here: every dispatch so far is in the loads.
  const LoadReport header{unit_idx, unit.epoch, ++unit.sequence, unit.last_dispatch, 0, {}};
  const int64_t due_ns = now_ns + options_.report_delay_ns;
  auto at = in_flight_.end();
  while (at != in_flight_.begin() && (at - 1)->due_ns > due_ns) --at;
  in_flight_.insert(at, {due_ns, header, loads, forward_end_ns});
}

void PrefillDispatch::refresh_residuals(int64_t now_ns) {
  for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
    const int64_t left_ns = std::max<int64_t>(0, units_[u].forward_end_ns - now_ns);
    balancer_.set_residual(u, static_cast<int64_t>(static_cast<double>(left_ns) / options_.layers));
  }
  next_residuals_ns_ = now_ns + kResidualRefreshNs;
}

void PrefillDispatch::deliver(int64_t now_ns) {
  while (!in_flight_.empty() && in_flight_.front().due_ns <= now_ns) {
    Report& report = in_flight_.front();
    report.header.loads = report.loads;
    if (balancer_.report(report.header) == ReportOutcome::kApplied) {
      units_[report.header.unit].forward_end_ns = report.forward_end_ns;
      const int64_t left_ns = std::max<int64_t>(0, report.forward_end_ns - now_ns);
      balancer_.set_residual(report.header.unit,
                             static_cast<int64_t>(static_cast<double>(left_ns) / options_.layers));
    }
    in_flight_.pop_front();
  }
}

void PrefillDispatch::forget(int unit_idx) {
  Unit& unit = units_[unit_idx];
  ++unit.epoch;
  unit.sequence = 0;
  unit.forward_end_ns = 0;
}

}  // namespace fathom::sim
