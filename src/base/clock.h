// Time comes in as an argument: components take a Clock&, tests and the simulator pass a ManualClock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace fathom {

using Duration = std::chrono::nanoseconds;
// Monotonic time since an arbitrary start; never a wall-clock date.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  // Seconds since the Unix epoch, for API fields such as "created" only.
  virtual int64_t unix_seconds() const = 0;
};

// The machine's clock. Thread-safe.
class SystemClock final : public Clock {
 public:
  TimePoint now() const override;
  int64_t unix_seconds() const override;
};

// Advanced by hand. Thread-safe.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(Duration(now_ns_.load(std::memory_order_acquire))); }
  int64_t unix_seconds() const override { return now_ns_.load(std::memory_order_acquire) / 1'000'000'000; }
  void advance(Duration by) { now_ns_.fetch_add(by.count(), std::memory_order_acq_rel); }

 private:
  std::atomic<int64_t> now_ns_{0};
};

inline double to_seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
inline Duration from_seconds(double s) { return Duration(static_cast<int64_t>(s * 1e9)); }

}  // namespace fathom
