// What the micro-benchmarks share: peaks measured once in the same run, and counters as a share of them.
#pragma once

#include <benchmark/benchmark.h>

#include <ctime>

#include "kernels/kernel_testing.h"
#include "kernels/peaks.h"

namespace fathom {

// Processor time, which a busy neighbour does not stretch.
inline double bench_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// One thread: micro-benchmarks measure one.
inline const MachinePeaks& bench_peaks() {
  static const MachinePeaks peaks = [] {
    ThreadTeam team(1);
    const MachinePeaks p = measure_peaks(active_isa(), team, bench_seconds);
    std::fprintf(stderr,
                 "%s, 1 thread: read %.1f GB/s, FMA %.0f GFLOP/s, BF16 %.0f GFLOP/s, int8 %.0f Gop/s\n",
                 std::string(isa_name(active_isa())).c_str(), p.read_bytes_per_s / 1e9, p.fma_flops / 1e9,
                 p.bf16_flops / 1e9, p.int8_ops / 1e9);
    return p;
  }();
  return peaks;
}

// bytes and ops of one iteration; `peak` in operations per second.
inline void report(benchmark::State& state, double bytes, double ops, double peak) {
  using benchmark::Counter;
  const double n = static_cast<double>(state.iterations());
  state.counters["GB/s"] = Counter(bytes * n / 1e9, Counter::kIsRate);
  state.counters["Gop/s"] = Counter(ops * n / 1e9, Counter::kIsRate);
  state.counters["of_read"] = Counter(bytes * n / bench_peaks().read_bytes_per_s, Counter::kIsRate);
  if (peak > 0) state.counters["of_peak"] = Counter(ops * n / peak, Counter::kIsRate);
}

inline double format_peak(WeightFormat format) {
  const MachinePeaks& peaks = bench_peaks();
  switch (act_format_for(format)) {
    case ActFormat::kF32:
      return peaks.fma_flops;
    case ActFormat::kBf16:
    case ActFormat::kFp8:
      return peaks.half_flops();
    case ActFormat::kInt8:
      return peaks.int8_ops;
  }
  return 0;
}

}  // namespace fathom
