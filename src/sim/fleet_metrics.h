// What a simulated fleet measures: totals, one cell per twelfth of an hour, histograms of what users feel.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "sim/decode_unit.h"
#include "sim/histogram.h"
#include "sim/prefill_unit.h"

namespace fathom::sim {

inline constexpr int kCellsPerHour = 12;

// Sums over a stretch of time; merge() adds another stretch.
struct FleetCell {
  double seconds = 0;
  // Prompts whose prefill finished, and output tokens of finished requests.
  int64_t requests = 0, input_tokens = 0, cached_tokens = 0;
  int64_t finished_requests = 0, finished_output_tokens = 0;
  int64_t arrived_requests = 0, arrived_computed_tokens = 0;
  int64_t refused_requests = 0;
  // Block-exact replays: told so at their deadline, and of these before the first token.
  int64_t expired_requests = 0, expired_without_token = 0;
  int64_t refused_offers = 0;                         // hand-overs that a decode rank turned down
  int64_t good_requests = 0, good_output_tokens = 0;  // within both service-level objectives
  // Decode steps. Token sums are of generated tokens (count x 1.85 a step).
  int64_t steps = 0, rank_steps = 0;
  double step_seconds = 0;
  double tokens = 0, tokens_x_speed = 0, tokens_x_kv = 0;
  double live_x_seconds = 0;  // requests in decode, times step time
  double unit_seconds_in_step = 0;
  // Over steps with more than 30 live requests per rank (block-exact: at least 4): largest over mean.
  int64_t balanced_steps = 0;
  double kv_ratio_sum = 0, requests_ratio_sum = 0;
  double kv_milli_max = 0;              // fullest rank seen
  double exposed_us = 0, layer_us = 0;  // per layer, summed over steps: waiting for communication
  int64_t retractions = 0, admission_waits = 0, replays = 0;
  double admission_wait_s = 0;
  // Prefill forwards. Saturated: prompts were left waiting (block-exact: a chunk for each rank on average).
  int64_t forwards = 0, saturated_forwards = 0;
  double forward_seconds = 0, efficiency_sum = 0;  // efficiency: mean over max cost, saturated forwards only
  double token_ratio_sum = 0;
  int64_t computed_tokens = 0;
  double prefill_exposed_us = 0, prefill_layer_us = 0;  // as in decode
  // Nodes in the schedule, and nodes that drain, times seconds.
  double decode_node_seconds = 0, prefill_node_seconds = 0;
  double decode_drain_node_seconds = 0, prefill_drain_node_seconds = 0;

  LogHistogram ttft_ms;
  LogHistogram speed_milli;  // tokens/s of a whole request, in thousandths
  LogHistogram queue_ms;     // arrival to start of prefill's last forward (block-exact: of its first)

  void merge(const FleetCell& other);
  // One prefill forward of a unit: its length, tokens, and of one layer what waits for communication and the
  // whole.
  void add_forward(double seconds_long, int64_t tokens_computed, double layer_exposed_us,
                   double layer_whole_us);

  // Shares of the requests within an objective: of those that got a first token or were to, and of those that
  // finished.
  double ttft_attainment(double slo_s) const;
  double speed_attainment(double slo_tokens_per_s) const;
};

// Cells of equal length over a run whose end nobody knows beforehand: where more than kCellsMax would be
// needed, pairs are merged and each takes twice the time.
class GrowingCells {
 public:
  static constexpr size_t kCellsMax = 200;
  static constexpr int64_t kFirstCellNs = 125'000'000;

  // Of a time; the reference holds until the next call.
  FleetCell& at(int64_t time_ns);
  int64_t cell_ns() const { return cell_ns_; }
  // Calls add(cell, seconds of it) for each part of a stretch of time.
  template <typename Add>
  void spread(int64_t from_ns, int64_t to_ns, Add add) {
    if (from_ns >= to_ns) return;
    at(to_ns - 1);  // the length of a cell no longer changes below
    while (from_ns < to_ns) {
      const int64_t end_ns = std::min(to_ns, (from_ns / cell_ns_ + 1) * cell_ns_);
      add(at(from_ns), static_cast<double>(end_ns - from_ns) / 1e9);
      from_ns = end_ns;
    }
  }
  // Up to a time; what was recorded later counts in the last one.
  std::vector<FleetCell> take(int64_t end_ns);

 private:
  int64_t cell_ns_ = kFirstCellNs;
  std::vector<FleetCell> cells_;
};

// At the end of a simulated hour: is anything stuck?
struct HourEnd {
  double oldest_prefill_s = 0;  // age of the oldest prompt that waits for prefill
  double oldest_decode_s = 0;   // age of the oldest request that waits for admission to decode
  double forward_s = 0;         // the longest prefill forward running
};

struct FleetMetrics {
  std::vector<FleetCell> cells;  // hour-major
  std::vector<HourEnd> hour_ends;
  FleetCell total() const;
  FleetCell hour(int hour) const;
};

}  // namespace fathom::sim
