// Counts of positive values in buckets of about 0.8 % width: percentiles of millions of requests in 16 KB,
// mergeable, the same on every machine.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace fathom::sim {

class LogHistogram {
 public:
  void add(uint64_t value, uint64_t count = 1) {
    counts_[bucket_of(value)] += count;
    total_ += count;
  }
  uint64_t total() const { return total_; }

  // The upper edge's value of the bucket that holds the given share of the counts; 0 when empty.
  double percentile(double share) const {
    if (total_ == 0) return 0;
    const double want = share * static_cast<double>(total_);
    uint64_t seen = 0;
    for (int b = 0; b < kBuckets; ++b) {
      seen += counts_[b];
      if (counts_[b] > 0 && static_cast<double>(seen) >= want) return middle_of(b);
    }
    return middle_of(kBuckets - 1);
  }
  // Share of counts at or below a value (to a bucket's width).
  double share_at_most(uint64_t value) const {
    if (total_ == 0) return 1;
    uint64_t seen = 0;
    for (int b = 0; b <= bucket_of(value); ++b) seen += counts_[b];
    return static_cast<double>(seen) / static_cast<double>(total_);
  }
  void merge(const LogHistogram& other) {
    for (int b = 0; b < kBuckets; ++b) counts_[b] += other.counts_[b];
    total_ += other.total_;
  }

 private:
  static constexpr int kSubBits = 6;  // 64 buckets per power of two
  static constexpr int kBuckets = 40 << kSubBits;
  static int bucket_of(uint64_t value) {
    if (value < (1u << kSubBits)) return static_cast<int>(value);
    const int exponent = 63 - std::countl_zero(value);
    const int bucket = ((exponent - kSubBits + 1) << kSubBits) +
                       static_cast<int>((value >> (exponent - kSubBits)) & ((1 << kSubBits) - 1));
    return std::min(bucket, kBuckets - 1);
  }
  static double middle_of(int bucket) {
    if (bucket < (1 << kSubBits)) return bucket;
    const int shift = (bucket >> kSubBits) - 1;
    const uint64_t low = static_cast<uint64_t>((1 << kSubBits) + (bucket & ((1 << kSubBits) - 1))) << shift;
    return static_cast<double>(low) + 0.5 * static_cast<double>((1ull << shift) - 1);
  }
  std::array<uint64_t, kBuckets> counts_{};
  uint64_t total_ = 0;
};

}  // namespace fathom::sim
