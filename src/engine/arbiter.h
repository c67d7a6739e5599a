// Who steps next, prefill or decode, and how long a prefill step may be: both engines live on one thread
// budget, and what prefill takes is what decoding clients see as a gap between tokens. Pure, apart from what
// StepCosts remembers.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "engine/options.h"

namespace fathom {

// What steps cost, learned from those that ran; recent ones count most.
class StepCosts {
 public:
  void observe_prefill(int64_t num_tokens, double seconds);
  void observe_decode(double seconds);

  double decode_seconds() const { return decode_seconds_; }  // 0: not known
  double prefill_seconds(int64_t num_tokens) const;          // 0: not known
  // The tokens a prefill step may have to last `seconds`; 0 when not even an empty one fits, or not known.
  int64_t prefill_tokens_within(double seconds) const;

 private:
  struct Line {
    double fixed = 0;      // seconds
    double per_token = 0;  // seconds; 0: not known
  };
  Line line() const;

  static constexpr double kForget = 0.85;  // weight of the past against one new observation
  // Exponentially weighted sums for the line seconds = a + b * tokens.
  double weight_ = 0, sum_x_ = 0, sum_y_ = 0, sum_xx_ = 0, sum_xy_ = 0;
  double decode_seconds_ = 0;
};

// Whether a step that several requests share is stopped for one that was cancelled: not when it is about to
// end anyway, and never twice running, so that cancels cannot keep the others from moving on. At least every
// other step runs to its end.
class SharedStepStop {
 public:
  static constexpr Duration kSoon = std::chrono::milliseconds(500);

  // `expected`: how long the step should last; zero: not known.
  void on_begin(TimePoint now, Duration expected);
  // The step that has begun and not ended.
  bool may_stop(TimePoint now) const;
  void on_stop() { stopped_ = true; }
  void on_end() { last_stopped_ = stopped_; }

 private:
  TimePoint begin_{};
  Duration expected_{};
  bool stopped_ = false;       // this step
  bool last_stopped_ = false;  // the step before
};

enum class StepKind : uint8_t { kNone, kPrefill, kDecode };

// Alternates while both have work.
StepKind choose_step(bool can_prefill, bool can_decode, StepKind last);

// Prefill tokens one rank may take in the next step: a multiple of 64 in [64,
// options.prefill_tokens_per_rank()]. `num_busy_ranks`: ranks with something to compute, which share the
// time. `decoding`: sequences wait for their next token meanwhile.
int32_t choose_chunk_tokens(const EngineOptions& options, const StepCosts& costs, bool decoding,
                            int32_t num_busy_ranks);

}  // namespace fathom
