// Histogram buckets.
#include "engine/stats.h"

#include <algorithm>

namespace fathom {

void LatencyHistogram::observe(double seconds) {
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin();
  ++counts_[static_cast<size_t>(bucket)];
  ++count_;
  sum_ += seconds;
}

}  // namespace fathom
