// This machine's own limits, measured: read bandwidth and multiply-add rates, for benchmarks to divide by.
#include "kernels/peaks.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/peaks_loops.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

// Best of several rounds: a neighbour only ever makes one slower.
constexpr int kRounds = 5;
constexpr int64_t kReadBytes = int64_t{256} << 20;
constexpr int64_t kReadTileBytes = int64_t{1} << 20;

double best_rate(ThreadTeam& team, double (*seconds)(), PeakLoop loop) {
  if (loop.run == nullptr) return 0;
  constexpr int64_t kIterations = 400'000;
  std::atomic<float> sink{0};
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = seconds();
    team.run(team.num_threads(), [&](int64_t, int) { sink.store(loop.run(kIterations)); });
    const double work = loop.ops_per_iteration * kIterations * team.num_threads();
    best = std::max(best, work / (seconds() - begin));
  }
  return best;
}

double best_read_rate(ThreadTeam& team, double (*seconds)()) {
  AlignedBuffer buffer(kReadBytes + 8192);
  std::memset(buffer.data(), 1, buffer.size_bytes());
  std::atomic<float> sink{0};
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = seconds();
    team.run(kReadBytes / kReadTileBytes, [&](int64_t tile, int) {
      sink.store(read_memory_avx2(buffer.data() + tile * kReadTileBytes, kReadTileBytes));
    });
    best = std::max(best, static_cast<double>(kReadBytes) / (seconds() - begin));
  }
  return best;
}

}  // namespace

MachinePeaks measure_peaks(Isa isa, ThreadTeam& team, double (*seconds)()) {
  MachinePeaks peaks;
  if (isa < Isa::kAvx2) return peaks;
  peaks.read_bytes_per_s = best_read_rate(team, seconds);
  peaks.fma_flops = best_rate(team, seconds, isa >= Isa::kAvx512 ? fma_loop_avx512() : fma_loop_avx2());
  peaks.int8_ops = best_rate(team, seconds, isa >= Isa::kAvx512Vnni ? int8_loop_vnni() : int8_loop_avx2());
  if (isa >= Isa::kAvx512Bf16) peaks.bf16_flops = best_rate(team, seconds, bf16_loop_bf16());
  return peaks;
}

}  // namespace fathom
