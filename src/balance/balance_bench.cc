// What the decisions cost. The expert balancer's target: 58 layers x 256 experts x 288 slots under 10 ms.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>

#include "balance/decode_balancer.h"
#include "balance/eplb.h"
#include "balance/eplb_refine.h"
#include "balance/prefill_router.h"
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

// The whole live path of a prefill decision over 1,250 single-rank instances: chained hashes in, prefix
// match, choice, charge, the blocks noted, and a report with every decision. Target: 100k/s on one core, p99
// under 50 us.
void bench_prefill_route(benchmark::State& state) {
  constexpr int kInstances = 1250, kSessions = 20000;
  const std::vector<int> units(kInstances, 1);
  PrefillRouter router({}, units);
  Rng rng(4);
  // Sessions share one of 64 system prompts, then go their own way; a request is a session's prefix of
  // growing length.
  std::vector<std::vector<uint64_t>> sessions(kSessions);
  for (int s = 0; s < kSessions; ++s) {
    uint64_t hash = s % 64;
    const int num_blocks = std::min(1024, 8 + static_cast<int>(40 * std::exp(0.957 * test_normal(rng))));
    for (int b = 0; b < num_blocks; ++b) {
      hash = hash_u64(hash, b < 6 ? b : 1000 * s + b);
      sessions[s].push_back(hash);
    }
  }
  std::vector<uint64_t> last(kInstances, 0);
  std::vector<double> latency_us;
  uint64_t sequence = 0, hits = 0, blocks_seen = 0;
  for (auto _ : state) {
    const auto& session = sessions[rng.next_below(kSessions)];
    const std::span blocks = std::span(session).first(1 + rng.next_below(session.size()));
    const auto start = std::chrono::steady_clock::now();
    const auto placed = router.route(static_cast<int64_t>(blocks.size()) * 64 + 20, blocks, 0);
    latency_us.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    last[placed->choice.rank.unit] = placed->dispatch;
    hits += static_cast<uint64_t>(placed->choice.cached_tokens) / 64, blocks_seen += blocks.size();
    const int unit = static_cast<int>(++sequence % kInstances);
    const std::vector<RankLoad> idle(1);
    router.balancer().report({.unit = unit, .sequence = sequence, .acked = last[unit], .loads = idle});
  }
  std::sort(latency_us.begin(), latency_us.end());
  state.SetItemsProcessed(static_cast<int64_t>(latency_us.size()));
  state.counters["p50_us"] = latency_us[latency_us.size() / 2];
  state.counters["p99_us"] = latency_us[latency_us.size() * 99 / 100];
  state.counters["hit_rate"] = static_cast<double>(hits) / static_cast<double>(blocks_seen);
}
BENCHMARK(bench_prefill_route);

}  // namespace
}  // namespace fathom
