// This machine's own limits, measured: read bandwidth and multiply-add rates, for benchmarks to divide by.
#include "kernels/peaks.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/peaks_loops.h"

namespace fathom {
namespace {

constexpr int kSamples = 5;
constexpr int64_t kIterations = 1'200'000;          // of a loop: some milliseconds
constexpr int64_t kReadBytes = int64_t{256} << 20;  // beyond what most caches hold
constexpr int64_t kReadTileBytes = int64_t{1} << 20;

}  // namespace

PeakMeter::PeakMeter(Isa isa, ThreadTeam& team, double (*seconds)())
    : isa_(isa), team_(team), seconds_(seconds), memory_(kReadBytes + 8192) {
  std::memset(memory_.data(), 1, memory_.size_bytes());
}

MachinePeaks PeakMeter::sample() {
  MachinePeaks peaks;
  if (isa_ < Isa::kAvx2) return peaks;
  peaks.read_bytes_per_s = read_rate();
  peaks.fma_flops = rate(isa_ >= Isa::kAvx512 ? fma_loop_avx512() : fma_loop_avx2());
  peaks.int8_ops = rate(isa_ >= Isa::kAvx512Vnni ? int8_loop_vnni() : int8_loop_avx2());
  if (isa_ >= Isa::kAvx512Bf16) peaks.bf16_flops = rate(bf16_loop_bf16());
  return peaks;
}

double PeakMeter::rate(PeakLoop loop) {
  if (loop.run == nullptr) return 0;
  std::atomic<float> sink{0};
  const double begin = seconds_();
  team_.run(team_.num_threads(), [&](int64_t, int) { sink.store(loop.run(kIterations)); });
  return loop.ops_per_iteration * kIterations * team_.num_threads() / (seconds_() - begin);
}

double PeakMeter::read_rate() {
  std::atomic<float> sink{0};
  const double begin = seconds_();
  team_.run(kReadBytes / kReadTileBytes, [&](int64_t tile, int) {
    sink.store(read_memory_avx2(memory_.data() + tile * kReadTileBytes, kReadTileBytes));
  });
  return static_cast<double>(kReadBytes) / (seconds_() - begin);
}

MachinePeaks measure_peaks(Isa isa, ThreadTeam& team, double (*seconds)()) {
  PeakMeter meter(isa, team, seconds);
  MachinePeaks best;
  for (int i = 0; i < kSamples; ++i) {
    const MachinePeaks now = meter.sample();
    best.read_bytes_per_s = std::max(best.read_bytes_per_s, now.read_bytes_per_s);
    best.fma_flops = std::max(best.fma_flops, now.fma_flops);
    best.bf16_flops = std::max(best.bf16_flops, now.bf16_flops);
    best.int8_ops = std::max(best.int8_ops, now.int8_ops);
  }
  return best;
}

}  // namespace fathom
