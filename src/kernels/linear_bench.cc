// Linear layers: memory-bound with few rows, compute-bound with many. One thread.
#include "kernels/kernel_bench.h"

namespace fathom {
namespace {

// Weights beyond the caches (64 MiB) for few rows; one tile's worth of work for many.
void bench_linear(benchmark::State& state, WeightFormat format) {
  const int64_t rows = state.range(0), n = state.range(1), k = state.range(2);
  const OwnedSource source(source_dtype_for(format), 128, k, 1);
  AlignedBuffer memory(static_cast<size_t>(packed_weight_bytes(format, n, k)));
  const PackedWeight w = make_packed_weight(format, n, k, memory.data());
  for (int64_t row = 0; row < n; row += 128)
    pack_rows(w, row, std::min<int64_t>(128, n - row), source.view, 0);
  const std::vector<float> x = random_floats(rows * k, 2);
  const OwnedActivations act(act_format_for(format), MatrixView<const float>(x.data(), rows, k));
  std::vector<float> y(static_cast<size_t>(rows * n));
  const double peak = format_peak(format);
  const LinearTiling tiling = plan_linear(rows, n, k, 2);
  for (auto _ : state) {
    for (int64_t i = 0; i < tiling.num_tiles(); ++i) {
      linear(act.view, w, tiling.tile(i), MatrixView<float>(y.data(), rows, n));
    }
    benchmark::DoNotOptimize(y.data());
  }
  report(state, static_cast<double>(w.bytes()), 2.0 * static_cast<double>(rows * n * k), peak);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "n", "k"})->Unit(benchmark::kMicrosecond);
  for (const int64_t rows : {1, 4, 16}) b->Args({rows, 16384, 2048});
  b->Args({6, 2816, 2048})->Args({64, 2816, 2048})->Args({512, 2816, 2048})->Args({512, 2048, 10944});
  b->Args({64, 256, 1024})->Args({64, 1024, 256});  // a small model's expert
}

BENCHMARK_CAPTURE(bench_linear, f32, WeightFormat::kF32)->Apply(shapes);
BENCHMARK_CAPTURE(bench_linear, f16, WeightFormat::kF16)->Apply(shapes);
BENCHMARK_CAPTURE(bench_linear, bf16, WeightFormat::kBf16)->Apply(shapes);
BENCHMARK_CAPTURE(bench_linear, fp8, WeightFormat::kFp8)->Apply(shapes);
BENCHMARK_CAPTURE(bench_linear, int8, WeightFormat::kInt8)->Apply(shapes);
BENCHMARK_CAPTURE(bench_linear, int4, WeightFormat::kInt4)->Apply(shapes);

}  // namespace
}  // namespace fathom
