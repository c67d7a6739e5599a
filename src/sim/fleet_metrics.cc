// Merging cells, hours and days.
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
  decode_node_seconds += o.decode_node_seconds;
  prefill_node_seconds += o.prefill_node_seconds;
  decode_drain_node_seconds += o.decode_drain_node_seconds;
  prefill_drain_node_seconds += o.prefill_drain_node_seconds;
  ttft_ms.merge(o.ttft_ms);
  speed_milli.merge(o.speed_milli);
  queue_ms.merge(o.queue_ms);
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
