// n requests of k tokens each with m tokens still to come, memoryless: between departures the sum climbs n
// per step, departures come at rate n / m and take k. For k > m the sum drifts down and sup(excess) ~
// Exp(theta) with theta * m = 1 - exp(-theta * k) (the root of the process's exponent). For k <= m it first
// climbs, to n m exp(k / m - 1).
#include "balance/kv_admission.h"

#include <algorithm>
#include <cmath>

#include "base/det_math.h"

namespace fathom {
namespace {

// The positive root x of x = 1 - exp(-x ratio), ratio > 1, by bisection.
double decay_root(double ratio) {
  double low = 1e-9, high = 1.0;
  for (int i = 0; i < 60; ++i) {
    const double x = (low + high) / 2;
    (1 - det_exp(-x * ratio) > x ? low : high) = x;
  }
  return low;
}

}  // namespace

KvAdmission::KvAdmission(const KvAdmissionOptions& options)
    : options_(options), log_inverse_(det_log(1 / options.overflow_probability)) {
  CHECK(options.overflow_probability > 0 && options.overflow_probability < 1);
  for (int i = 0; i < kTableSize; ++i) {
    const double ratio = i * kRatioStep;
    decay_[i] = ratio > 1 ? decay_root(ratio) : 0;
  }
  for (int n = 0; n < kCountsMax; ++n) spread_[n] = std::sqrt(log_inverse_ / std::max(1, n));
}

int64_t KvAdmission::reserve_tokens(const RankLoad& load) const {
  if (load.requests <= 0 || load.cost <= 0) return 0;
  const double n = static_cast<double>(load.requests);
  const double k = static_cast<double>(load.tokens) / n;
  const double m = static_cast<double>(load.cost) / n;
  // Nobody can need more than every request running to its expected end.
  const double all = static_cast<double>(load.cost);
  const double ratio = k / m;
  // At the climb's top the count has shrunk by exp(k / m - 1); its spread is that of the departures until
  // then.
  const double climb = ratio < 1 ? n * m * det_exp(ratio - 1) - n * k : 0;
  const double spread = m * std::sqrt(n * log_inverse_);
  const int cell = std::min(kTableSize - 1, static_cast<int>(ratio / kRatioStep));
  const double decay = decay_[cell];
  const double excess = decay > 0 ? std::min(spread, m * log_inverse_ / decay) : spread;
  return static_cast<int64_t>(std::min(all * (1 + std::sqrt(log_inverse_ / n)), climb + excess));
}

bool KvAdmission::admits(const RankLoad& rank, const RankLoad& request) const {
  if (!limited()) return true;
  if (rank.requests == 0 && rank.tokens == 0) return request.tokens <= options_.capacity_tokens;
  RankLoad after = rank;
  after += request;
  const int64_t room = options_.capacity_tokens - after.tokens;
  if (room < 0) return false;
  // Where requests hold more than they will generate there is no climb, and the spread bounds the reserve.
  // Most ranks have that much room, and are spared the rest.
  const double spread = spread_[std::min<int64_t>(after.requests, kCountsMax - 1)];
  if (after.tokens >= after.cost && spread * static_cast<double>(after.cost) <= static_cast<double>(room))
    return true;
  return reserve_tokens(after) <= room;
}

}  // namespace fathom
