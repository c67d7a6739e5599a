// Histogram buckets.
#include "engine/stats.h"

#include <algorithm>
#include <cmath>

namespace fathom {

void LatencyHistogram::observe(double seconds) {
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin();
  ++counts_[static_cast<size_t>(bucket)];
  ++count_;
  sum_ += seconds;
}

double LatencyHistogram::quantile_bound(double q) const {
  if (count_ == 0) return 0;
  const auto rank = static_cast<int64_t>(std::ceil(q * static_cast<double>(count_)));
  int64_t seen = 0;
  for (size_t bucket = 0; bucket < kBounds.size(); ++bucket) {
    seen += counts_[bucket];
    if (seen >= rank) return kBounds[bucket];
  }
  return kBounds.back();
}

}  // namespace fathom
