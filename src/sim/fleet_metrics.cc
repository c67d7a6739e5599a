// Merging cells, hours and days; cells that grow with a run.
#include "sim/fleet_metrics.h"

#include <algorithm>

namespace fathom::sim {

void FleetCell::merge(const FleetCell& o) {
  seconds += o.seconds;
  requests += o.requests;
  input_tokens += o.input_tokens;
  cached_tokens += o.cached_tokens;
  finished_requests += o.finished_requests;
  finished_output_tokens += o.finished_output_tokens;
  arrived_requests += o.arrived_requests;
  refused_requests += o.refused_requests;
  expired_requests += o.expired_requests;
  expired_without_token += o.expired_without_token;
  refused_offers += o.refused_offers;
  arrived_computed_tokens += o.arrived_computed_tokens;
  good_requests += o.good_requests;
  good_output_tokens += o.good_output_tokens;
  steps += o.steps;
  rank_steps += o.rank_steps;
  step_seconds += o.step_seconds;
  tokens += o.tokens;
  tokens_x_speed += o.tokens_x_speed;
  tokens_x_kv += o.tokens_x_kv;
  live_x_seconds += o.live_x_seconds;
  unit_seconds_in_step += o.unit_seconds_in_step;
  balanced_steps += o.balanced_steps;
  kv_ratio_sum += o.kv_ratio_sum;
  requests_ratio_sum += o.requests_ratio_sum;
  kv_milli_max = std::max(kv_milli_max, o.kv_milli_max);
  exposed_us += o.exposed_us;
  layer_us += o.layer_us;
  retractions += o.retractions;
  replays += o.replays;
  admission_waits += o.admission_waits;
  admission_wait_s += o.admission_wait_s;
  forwards += o.forwards;
  saturated_forwards += o.saturated_forwards;
  forward_seconds += o.forward_seconds;
  efficiency_sum += o.efficiency_sum;
  token_ratio_sum += o.token_ratio_sum;
  computed_tokens += o.computed_tokens;
  prefill_exposed_us += o.prefill_exposed_us;
  prefill_layer_us += o.prefill_layer_us;
  decode_node_seconds += o.decode_node_seconds;
  prefill_node_seconds += o.prefill_node_seconds;
  decode_drain_node_seconds += o.decode_drain_node_seconds;
  prefill_drain_node_seconds += o.prefill_drain_node_seconds;
  ttft_ms.merge(o.ttft_ms);
  speed_milli.merge(o.speed_milli);
  queue_ms.merge(o.queue_ms);
}

void FleetCell::add_forward(double seconds_long, int64_t tokens_computed, double layer_exposed_us,
                            double layer_whole_us) {
  ++forwards;
  forward_seconds += seconds_long;
  computed_tokens += tokens_computed;
  prefill_exposed_us += layer_exposed_us;
  prefill_layer_us += layer_whole_us;
}

double FleetCell::ttft_attainment(double slo_s) const {
  const auto served = static_cast<double>(ttft_ms.total());
  const double all = served + static_cast<double>(expired_without_token + refused_requests);
  if (all == 0) return 1;
  return ttft_ms.share_at_most(static_cast<uint64_t>(slo_s * 1e3)) * served / all;
}

double FleetCell::speed_attainment(double slo_tokens_per_s) const {
  if (speed_milli.total() == 0) return 1;
  return 1 - speed_milli.share_at_most(static_cast<uint64_t>(slo_tokens_per_s * 1e3));
}

FleetCell& GrowingCells::at(int64_t time_ns) {
  while (time_ns / cell_ns_ >= static_cast<int64_t>(kCellsMax)) {
    for (size_t i = 0; i < cells_.size(); ++i) {
      if (i % 2 == 1) {
        cells_[i / 2].merge(cells_[i]);
      } else if (i > 0) {
        cells_[i / 2] = cells_[i];
      }
    }
    cells_.resize((cells_.size() + 1) / 2);
    cell_ns_ *= 2;
  }
  const auto idx = static_cast<size_t>(time_ns / cell_ns_);
  if (idx >= cells_.size()) cells_.resize(idx + 1);
  return cells_[idx];
}

std::vector<FleetCell> GrowingCells::take(int64_t end_ns) {
  at(std::max<int64_t>(end_ns, 1) - 1);
  const auto last = static_cast<size_t>((std::max<int64_t>(end_ns, 1) - 1) / cell_ns_);
  for (size_t i = last + 1; i < cells_.size(); ++i) cells_[last].merge(cells_[i]);
  cells_.resize(last + 1);
  return std::move(cells_);
}

FleetCell FleetMetrics::total() const {
  FleetCell sum;
  for (const FleetCell& cell : cells) sum.merge(cell);
  return sum;
}

FleetCell FleetMetrics::hour(int hour) const {
  FleetCell sum;
  for (int i = 0; i < kCellsPerHour; ++i) sum.merge(cells[hour * kCellsPerHour + i]);
  return sum;
}

}  // namespace fathom::sim
