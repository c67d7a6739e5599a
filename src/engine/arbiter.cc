// Step costs and the two choices made from them.
#include "engine/arbiter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kv/storage.h"

namespace fathom {

void StepCosts::observe_prefill(int64_t num_tokens, double seconds) {
  const auto x = static_cast<double>(num_tokens);
  weight_ = weight_ * kForget + 1;
  sum_x_ = sum_x_ * kForget + x;
  sum_y_ = sum_y_ * kForget + seconds;
  sum_xx_ = sum_xx_ * kForget + x * x;
  sum_xy_ = sum_xy_ * kForget + x * seconds;
}

void StepCosts::observe_decode(double seconds) {
  decode_seconds_ = decode_seconds_ == 0 ? seconds : 0.8 * decode_seconds_ + 0.2 * seconds;
}

StepCosts::Line StepCosts::line() const {
  if (sum_x_ <= 0) return {};
  // Through the origin, unless the observations differ enough in size to tell a fixed cost from one per
  // token.
  Line line{.per_token = sum_y_ / sum_x_};
  const double spread = weight_ * sum_xx_ - sum_x_ * sum_x_;
  if (spread > 0.01 * sum_x_ * sum_x_) {
    const double slope = (weight_ * sum_xy_ - sum_x_ * sum_y_) / spread;
    const double intercept = (sum_y_ - slope * sum_x_) / weight_;
    if (slope > 0 && intercept > 0) line = {.fixed = intercept, .per_token = slope};
  }
  return line;
}

double StepCosts::prefill_seconds(int64_t num_tokens) const {
  const Line costs = line();
  return costs.fixed + costs.per_token * static_cast<double>(num_tokens);
}

int64_t StepCosts::prefill_tokens_within(double seconds) const {
  if (sum_x_ <= 0) return 0;
  const Line costs = line();
  if (costs.per_token <= 0) return std::numeric_limits<int32_t>::max();
  const double tokens = (seconds - costs.fixed) / costs.per_token;
  return static_cast<int64_t>(std::clamp(tokens, 0.0, 1e9));
}

void SharedStepStop::on_begin(TimePoint now, Duration expected) {
  begin_ = now;
  expected_ = expected;
  stopped_ = false;
}

bool SharedStepStop::may_stop(TimePoint now) const {
  if (stopped_ || last_stopped_) return false;
  if (expected_ == Duration::zero()) return true;
  const Duration elapsed = now - begin_;
  // One that lasts longer than expected, and than can be called soon, may last much longer.
  const bool ends_soon = expected_ - elapsed <= kSoon && elapsed <= std::max(expected_, kSoon);
  return !ends_soon;
}

StepKind choose_step(bool can_prefill, bool can_decode, StepKind last) {
  if (can_prefill && can_decode) return last == StepKind::kPrefill ? StepKind::kDecode : StepKind::kPrefill;
  if (can_prefill) return StepKind::kPrefill;
  return can_decode ? StepKind::kDecode : StepKind::kNone;
}

int32_t choose_chunk_tokens(const EngineOptions& options, const StepCosts& costs, bool decoding,
                            int32_t num_busy_ranks) {
  double seconds_max = options.prefill_step_seconds_max;
  if (decoding) {
    // A gap is one prefill step and one decode step.
    const double decode_seconds = costs.decode_seconds();
    const double gap =
        std::min(options.decode_gap_seconds_max, options.decode_gap_ratio_max * decode_seconds);
    seconds_max = std::min(seconds_max, gap - decode_seconds);
  }
  const int64_t tokens = costs.prefill_tokens_within(seconds_max) / std::max(1, num_busy_ranks);
  const int64_t whole_blocks = tokens / kBlockTokens * kBlockTokens;
  return static_cast<int32_t>(
      std::clamp<int64_t>(whole_blocks, kBlockTokens, options.prefill_tokens_per_rank()));
}

}  // namespace fathom
