// Attention: one decode token over a long context, and one head of a prefill chunk. One thread.
#include "kernels/attention.h"
#include "kernels/kernel_bench.h"

namespace fathom {
namespace {

struct BenchStorage {
  AlignedBuffer memory;
  std::vector<const void*> blocks;
  int64_t stride;

  BenchStorage(int64_t dim, int64_t tokens) : memory(static_cast<size_t>(tokens * dim * 2)), stride(dim) {
    const std::vector<float> row = random_floats(64 * dim, 1);
    for (int64_t t = 0; t < tokens; t += 64) {
      from_f32(row.data(), 64 * dim, DType::kBf16, memory.data() + t * dim * 2);
      blocks.push_back(memory.data() + t * dim * 2);
    }
  }
};

// Contexts of one sequence after the other, so that the latents come from memory.
void bench_absorbed(benchmark::State& state) {
  const int64_t heads = state.range(0), latent = state.range(1), rope = state.range(2),
                context = state.range(3);
  constexpr int64_t kSequences = 32;
  const BenchStorage kv(latent + rope, context * kSequences);
  const std::vector<float> q = random_floats(heads * (latent + rope), 2);
  std::vector<float> out(static_cast<size_t>(heads * latent));
  AlignedBuffer scratch(static_cast<size_t>(mla_absorbed_scratch_bytes(heads, latent, rope)));
  int64_t sequence = 0;
  for (auto _ : state) {
    const LatentBlocks view{kv.blocks.data() + sequence * context / 64, DType::kBf16, kv.stride, latent,
                            rope};
    const AbsorbedQuery query{q.data(), latent + rope, q.data() + latent, latent + rope, heads,
                              context,  0.1f,          out.data(),        latent};
    mla_absorbed(view, query, scratch.data());
    benchmark::DoNotOptimize(out.data());
    sequence = (sequence + 1) % kSequences;
  }
  report(state, static_cast<double>(context * (latent + rope) * 2),
         2.0 * static_cast<double>(heads * context * (2 * latent + rope)), bench_peaks().half_flops());
}
BENCHMARK(bench_absorbed)
    ->ArgNames({"heads", "latent", "rope", "context"})
    ->Args({16, 512, 64, 128})
    ->Args({16, 512, 64, 2048})
    ->Args({16, 256, 32, 2048})
    ->Args({128, 512, 64, 2048})
    ->Unit(benchmark::kMicrosecond);

void bench_per_head(benchmark::State& state) {
  const int64_t nope = state.range(0), rope = state.range(1), v = state.range(2), start = state.range(3);
  constexpr int64_t kRows = 512;
  const int64_t context = start + kRows;
  const BenchStorage kv(512 + rope, context), expanded(nope + v, context);
  const std::vector<float> q = random_floats(kRows * (nope + rope), 2);
  std::vector<float> out(static_cast<size_t>(kRows * v));
  AlignedBuffer scratch(static_cast<size_t>(mla_per_head_scratch_bytes(nope, rope, v)));
  const LatentBlocks view{kv.blocks.data(), DType::kBf16, kv.stride, 512, rope};
  const auto* rows = expanded.memory.as<Bf16>();
  const PerHeadKeys keys{rows, nope + v, nope, rows + nope, nope + v, v};
  const PerHeadQuery query{q.data(), nope + rope, kRows, start, 0.1f, out.data(), v};
  for (auto _ : state) {
    mla_per_head(view, keys, query, scratch.data());
    benchmark::DoNotOptimize(out.data());
  }
  const double pairs = static_cast<double>(kRows * start) + 0.5 * kRows * (kRows + 1);
  report(state, static_cast<double>(context * (nope + v + rope) * 2),
         2.0 * pairs * static_cast<double>(nope + rope + v), bench_peaks().half_flops());
}
BENCHMARK(bench_per_head)
    ->ArgNames({"nope", "rope", "v", "start"})
    ->Args({128, 64, 128, 0})
    ->Args({128, 64, 128, 1536})
    ->Args({64, 32, 64, 1536})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace fathom
