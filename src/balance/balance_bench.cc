// What the decisions cost. The expert balancer's target: 58 layers x 256 experts x 288 slots under 10 ms.
#include <benchmark/benchmark.h>

#include "balance/decode_balancer.h"
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

// The decision core: choose, charge and every so often report, over the published peak (9 units of 144
// ranks). Target: 5 M decisions/s without allocation.
void bench_decode_place(benchmark::State& state, DecodePolicy policy) {
  DecodeBalancerOptions options;
  options.policy = policy;
  DecodeBalancer balancer(options);
  constexpr int kUnits = 9, kRanks = 144;
  Rng rng(3);
  std::vector<std::vector<RankLoad>> loads(kUnits, std::vector<RankLoad>(kRanks));
  for (int u = 0; u < kUnits; ++u) {
    balancer.add_unit(kRanks);
    for (RankLoad& load : loads[u])
      load = {80 + static_cast<int64_t>(rng.next_below(16)),
              380000 + static_cast<int64_t>(rng.next_below(90000)), 90000};
  }
  std::vector<int64_t> prompts(4096);
  for (int64_t& prompt : prompts)
    prompt = static_cast<int64_t>(3619 * 0.63 * std::exp(0.957 * test_normal(rng)));
  uint64_t sequence = 0, placed = 0;
  std::vector<uint64_t> last(kUnits, 0);
  for (auto _ : state) {
    const auto where = balancer.place({prompts[placed & 4095], 1000});
    last[where->rank.unit] = where->dispatch;
    // A report per unit and step: 24 requests arrive per unit and step at the published peak.
    if (++placed % 24 == 0) {
      const int unit = static_cast<int>(placed / 24 % kUnits);
      balancer.report(
          {.unit = unit, .epoch = 1, .sequence = ++sequence, .acked = last[unit], .loads = loads[unit]});
    }
  }
  state.SetItemsProcessed(static_cast<int64_t>(placed));
}
BENCHMARK_CAPTURE(bench_decode_place, kv_capped, DecodePolicy::kKvCapped);
BENCHMARK_CAPTURE(bench_decode_place, least_requests, DecodePolicy::kLeastRequests);
BENCHMARK_CAPTURE(bench_decode_place, fathom, DecodePolicy::kFathom);

}  // namespace
}  // namespace fathom
