// What the decisions cost. The expert balancer's target: 58 layers x 256 experts x 288 slots under 10 ms.
#include <benchmark/benchmark.h>

#include "balance/eplb.h"
#include "balance/eplb_refine.h"
#include "balance/replica_choice.h"
#include "balance/testing.h"

namespace fathom {
namespace {

constexpr int kLayers = 58, kExperts = 256, kSlots = 288;

void bench_rebalance(benchmark::State& state, RebalanceShape shape) {
  Rng rng(1);
  const auto weights = lognormal_weights(rng, kLayers * kExperts, 0.6, 10000);
  for (auto _ : state)
    benchmark::DoNotOptimize(rebalance_experts({kLayers, kExperts, weights}, shape).value());
}
BENCHMARK_CAPTURE(bench_rebalance, prefill_32_hierarchical, {kSlots, 8, 4, 32})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(bench_rebalance, decode_144_global, {kSlots, 8, 18, 144})->Unit(benchmark::kMillisecond);

void bench_refine(benchmark::State& state, RebalanceShape shape) {
  Rng rng(1);
  const auto weights = lognormal_weights(rng, kExperts, 0.6, 10000);
  for (auto _ : state) benchmark::DoNotOptimize(rebalance_and_refine({1, kExperts, weights}, shape).value());
}
BENCHMARK_CAPTURE(bench_refine, prefill_32_one_layer, {kSlots, 8, 4, 32})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(bench_refine, decode_144_one_layer, {kSlots, 8, 18, 144})->Unit(benchmark::kMillisecond);

void bench_choose_replicas(benchmark::State& state, RebalanceShape shape, double tokens_mean) {
  Rng rng(2);
  const auto weights = lognormal_weights(rng, kExperts, 0.6, 10000);
  const ExpertPlacement placement = rebalance_experts({1, kExperts, weights}, shape).value();
  const PlacementView view = placement_view(placement, 0, shape.num_gpus);
  std::vector<std::vector<int32_t>> batches(16, std::vector<int32_t>(kExperts));
  for (auto& tokens : batches) {
    for (int e = 0; e < kExperts; ++e) {
      tokens[e] = static_cast<int32_t>(weights[e] / 10000 * tokens_mean * std::exp(0.15 * test_normal(rng)));
    }
  }
  ReplicaChooser chooser;
  ReplicaSplit split;
  size_t i = 0;
  for (auto _ : state) benchmark::DoNotOptimize(chooser.choose(batches[i++ % batches.size()], view, split));
}
BENCHMARK_CAPTURE(bench_choose_replicas, prefill_32, {kSlots, 8, 4, 32}, 1024)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(bench_choose_replicas, decode_144, {kSlots, 8, 18, 144}, 88 * 8)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace fathom
