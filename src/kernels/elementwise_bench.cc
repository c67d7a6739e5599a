// Row-wise ops on rows that fit the caches, and packing of weights. One thread.
#include "kernels/gate.h"
#include "kernels/kernel_bench.h"

namespace fathom {
namespace {

constexpr int64_t kRows = 16;

void bench_quantize(benchmark::State& state, ActFormat format) {
  const int64_t k = state.range(0);
  const std::vector<float> x = random_floats(kRows * k, 1);
  AlignedBuffer memory(static_cast<size_t>(act_bytes(format, kRows, k)));
  const Activations out = make_activations(format, kRows, k, memory.data());
  for (auto _ : state) {
    quantize_rows({x.data(), kRows, k}, out);
    benchmark::DoNotOptimize(memory.data());
  }
  report(state, static_cast<double>(kRows * k * 4), static_cast<double>(kRows * k), 0);
}
BENCHMARK_CAPTURE(bench_quantize, bf16, ActFormat::kBf16)->Arg(2048);
BENCHMARK_CAPTURE(bench_quantize, fp8, ActFormat::kFp8)->Arg(2048);
BENCHMARK_CAPTURE(bench_quantize, int8, ActFormat::kInt8)->Arg(2048);

void bench_rms_norm(benchmark::State& state) {
  const int64_t k = state.range(0);
  std::vector<float> x = random_floats(kRows * k, 1);
  const std::vector<float> gain = random_floats(k, 2);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    rms_norm({x.data(), kRows, k}, gain.data(), 1e-6f, {y.data(), kRows, k});
    benchmark::DoNotOptimize(y.data());
  }
  report(state, static_cast<double>(kRows * k * 8), static_cast<double>(kRows * k * 4), 0);
}
BENCHMARK(bench_rms_norm)->Arg(2048);

void bench_silu_mul(benchmark::State& state) {
  const int64_t k = state.range(0);
  const std::vector<float> gate = random_floats(kRows * k, 1), up = random_floats(kRows * k, 2);
  std::vector<float> y(gate.size());
  for (auto _ : state) {
    silu_mul({gate.data(), kRows, k}, {up.data(), kRows, k}, {y.data(), kRows, k});
    benchmark::DoNotOptimize(y.data());
  }
  report(state, static_cast<double>(kRows * k * 12), static_cast<double>(kRows * k), 0);
}
BENCHMARK(bench_silu_mul)->Arg(1408);

// V3's choice of 8 of 256 experts from 4 of 8 groups: items are tokens.
void bench_gate(benchmark::State& state) {
  const GateConfig config{.num_experts = 256, .top_k = 8, .num_groups = 8, .top_groups = 4, .scale = 2.5f};
  const std::vector<float> logits = random_floats(kRows * config.num_experts, 1);
  const std::vector<float> bias = random_floats(config.num_experts, 2);
  std::vector<int32_t> experts(static_cast<size_t>(config.top_k));
  std::vector<float> weights(experts.size());
  for (auto _ : state) {
    for (int64_t row = 0; row < kRows; ++row) {
      gate_choose(config, logits.data() + row * config.num_experts, bias.data(), experts.data(),
                  weights.data());
      benchmark::DoNotOptimize(weights.data());
    }
  }
  state.SetItemsProcessed(state.iterations() * kRows);
}
BENCHMARK(bench_gate);

// GB/s of source.
void bench_pack(benchmark::State& state, WeightFormat format, DType dtype) {
  const int64_t n = 512, k = 2048;
  const OwnedSource source(dtype, n, k, 1);
  AlignedBuffer memory(static_cast<size_t>(packed_weight_bytes(format, n, k)));
  const PackedWeight w = make_packed_weight(format, n, k, memory.data());
  for (auto _ : state) {
    pack_rows(w, 0, n, source.view, 0);
    benchmark::DoNotOptimize(memory.data());
  }
  report(state, static_cast<double>(n * source.view.row_bytes()), static_cast<double>(n * k), 0);
}
BENCHMARK_CAPTURE(bench_pack, bf16, WeightFormat::kBf16, DType::kBf16);
BENCHMARK_CAPTURE(bench_pack, fp8, WeightFormat::kFp8, DType::kFp8E4m3);
BENCHMARK_CAPTURE(bench_pack, int8, WeightFormat::kInt8, DType::kInt8);
BENCHMARK_CAPTURE(bench_pack, int4, WeightFormat::kInt4, DType::kInt4);
BENCHMARK_CAPTURE(bench_pack, bf16_to_int8, WeightFormat::kInt8, DType::kBf16);
BENCHMARK_CAPTURE(bench_pack, bf16_to_int4, WeightFormat::kInt4, DType::kBf16);
BENCHMARK_CAPTURE(bench_pack, bf16_to_fp8, WeightFormat::kFp8, DType::kBf16);

}  // namespace
}  // namespace fathom
