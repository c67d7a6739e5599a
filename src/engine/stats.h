// What an engine counts. Plain values: a snapshot is a copy; the server exports it in its own format.
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"
#include "ep/exchange.h"

namespace fathom {

// Durations in seconds, cumulative-free: counts[i] is the number of values in (bounds[i-1], bounds[i]], the
// last counts entry those above every bound.
class LatencyHistogram {
 public:
  // Three bounds a decade from 0.1 ms to 1000 s.
  static constexpr std::array<double, 22> kBounds = {1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2,
                                                     5e-2, 0.1,  0.2,  0.5,  1,    2,    5,    10,
                                                     20,   50,   100,  200,  500,  1000};
  void observe(double seconds);

  int64_t count() const { return count_; }
  double sum() const { return sum_; }
  const std::array<int64_t, kBounds.size() + 1>& counts() const { return counts_; }

 private:
  std::array<int64_t, kBounds.size() + 1> counts_{};
  int64_t count_ = 0;
  double sum_ = 0;
};

struct EngineStats {
  // Now.
  int32_t num_queued = 0;      // waiting to start, retracted requests included
  int32_t num_prefilling = 0;  // admitted, first token not sampled yet (or being resumed)
  int32_t num_decoding = 0;
  int32_t kv_blocks_total = 0;
  int32_t kv_blocks_free = 0;    // hold nothing
  int32_t kv_blocks_cached = 0;  // hold a cached prefix that nobody uses; evicted when needed
  // Since the start.
  int64_t requests_submitted = 0;
  int64_t requests_refused = 0;                // queue full, invalid or draining
  std::array<int64_t, 6> requests_finished{};  // by FinishReason
  int64_t hit_tokens = 0;  // prompt tokens; hit + miss = prompt tokens of started requests
  int64_t miss_tokens = 0;
  int64_t prefill_tokens = 0;    // computed by prefill steps, resumed sequences' replays included
  int64_t generated_tokens = 0;  // sampled, in both engines
  int64_t prefill_steps = 0;
  int64_t decode_steps = 0;
  int64_t failed_steps = 0;  // each ended the requests in it
  int64_t retractions = 0;
  int64_t evicted_blocks = 0;
  int64_t handovers = 0;
  int64_t handovers_expired = 0;
  ExchangeStats prefill_exchange;  // dispatched and combined between ranks
  ExchangeStats decode_exchange;
  int64_t expert_layers_placed = 0;  // MoE layers whose expert copies were placed anew, in both engines
  double prefill_seconds = 0;        // spent in prefill steps
  double decode_seconds = 0;
  LatencyHistogram ttft;        // submit to first token
  LatencyHistogram itl;         // gap between two tokens of one request
  LatencyHistogram queue_wait;  // submit to first prefill step
  LatencyHistogram request;     // submit to finish, finished requests only
  // When the engine last moved: a stage of a layer or a whole step was done, or it looked and had nothing to
  // do. Stands still from a failed step on until one succeeds. Health is the age of this, not an open port.
  TimePoint last_progress;
  // The last step of either engine failed, stopped ones excepted. A failed group fails every step, so this
  // seldom ends.
  bool failing = false;
};

}  // namespace fathom
