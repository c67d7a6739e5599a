// What choosing a token costs, per row of logits.
#include <benchmark/benchmark.h>

#include "base/rng.h"
#include "model/sampler.h"

namespace fathom {
namespace {

void bench_sample(benchmark::State& state, SamplingParams params) {
  std::vector<float> logits(static_cast<size_t>(state.range(0)));
  Rng rng(1);
  for (float& logit : logits) logit = static_cast<float>(20 * rng.next_double() - 10);
  const Sampler sampler(std::move(params), 0, {});
  SamplerWorkspace work;
  int32_t position = 0;
  for (auto _ : state) benchmark::DoNotOptimize(sampler.sample(logits, position++, work).value().token);
}
BENCHMARK_CAPTURE(bench_sample, greedy, {.temperature = 0})
    ->Arg(4096)
    ->Arg(129280)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(bench_sample, plain, {})->Arg(4096)->Arg(129280)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(bench_sample, top_p, {.temperature = 0.6f, .top_p = 0.95f})
    ->Arg(4096)
    ->Arg(129280)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(bench_sample, logprobs, {.temperature = 0, .num_logprobs = 20})
    ->Arg(4096)
    ->Arg(129280)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace fathom
