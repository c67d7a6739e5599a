// What the decisions cost. Targets: the expert balancer's 58 layers x 256 experts x 288 slots under 10 ms;
// the decision cores 5 M/s over 1,296 ranks without allocation; the whole live path of a prompt 100k/s, p99
// under 50 us, over 1,250 instances.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>

#include "balance/allocation_count_testing.h"
#include "balance/decode_balancer.h"
#include "balance/eplb.h"
#include "balance/eplb_refine.h"
#include "balance/prefill_router.h"
#include "balance/replica_choice.h"
#include "balance/route_hashes.h"
#include "balance/testing.h"
#include "kv/block_key.h"

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

// ---- the decision cores: choose, charge, and a report of a unit every so often ----

constexpr int kUnits = 9, kRanks = 144;  // the published peak: 1,296 ranks
// Requests that arrive per unit and step there; a report is sent each step.
constexpr uint64_t kDecisionsPerReport = 24;
constexpr int kPrompts = 4096;

std::vector<int64_t> published_prompts() {
  Rng rng(3);
  std::vector<int64_t> prompts(kPrompts);
  for (int64_t& prompt : prompts)
    prompt = std::clamp<int64_t>(static_cast<int64_t>(2289 * std::exp(0.957 * test_normal(rng))), 16, 131072);
  return prompts;
}

// Runs place(i) and, every so often, report(unit, sequence, acked); counts what they allocate.
template <typename Place, typename Report>
void run_core(benchmark::State& state, const Place& place, const Report& report) {
  uint64_t sequence = 0, placed = 0, refused = 0;
  std::vector<uint64_t> last(kUnits, 0);
  int64_t allocations = 0;
  const auto decide = [&] {
    const auto [unit, dispatch] = place(placed & (kPrompts - 1));
    if (unit >= 0) last[unit] = dispatch;
    refused += unit < 0;
    if (++placed % kDecisionsPerReport == 0) {
      const int of = static_cast<int>(placed / kDecisionsPerReport % kUnits);
      report(of, ++sequence, last[of]);
    }
  };
  for (int i = 0; i < 200'000; ++i) decide();  // buffers reach their sizes
  placed = refused = 0;
  const int64_t before = num_allocations;
  for (auto _ : state) decide();
  allocations = num_allocations - before;
  state.SetItemsProcessed(static_cast<int64_t>(placed));
  state.counters["allocations"] = static_cast<double>(allocations);
  state.counters["refused"] = static_cast<double>(refused);
}

void bench_decode_place(benchmark::State& state, DecodePolicy policy) {
  DecodeBalancerOptions options;
  options.policy = policy;
  options.admission.capacity_tokens = 669'000;  // of a decode rank
  DecodeBalancer balancer(options);
  Rng rng(3);
  std::vector<std::vector<RankLoad>> loads(kUnits, std::vector<RankLoad>(kRanks));
  for (int u = 0; u < kUnits; ++u) {
    balancer.add_unit(kRanks);
    for (RankLoad& load : loads[u])
      load = {80 + static_cast<int64_t>(rng.next_below(16)),
              380'000 + static_cast<int64_t>(rng.next_below(90'000)), 90'000};
  }
  const std::vector<int64_t> prompts = published_prompts();
  run_core(
      state,
      [&](uint64_t i) {
        const auto where = balancer.place({prompts[i], 1000});
        return where ? std::pair(where->rank.unit, where->dispatch) : std::pair(-1, uint64_t{0});
      },
      [&](int unit, uint64_t sequence, uint64_t acked) {
        balancer.report({.unit = unit, .sequence = sequence, .acked = acked, .loads = loads[unit]});
      });
}
BENCHMARK_CAPTURE(bench_decode_place, kv_capped, DecodePolicy::kKvCapped);
BENCHMARK_CAPTURE(bench_decode_place, least_requests, DecodePolicy::kLeastRequests);
BENCHMARK_CAPTURE(bench_decode_place, fathom, DecodePolicy::kFathom);

void bench_prefill_place(benchmark::State& state, PrefillPolicy policy) {
  PrefillBalancerOptions options;
  options.policy = policy;
  PrefillBalancer balancer(options);
  Rng rng(3);
  std::vector<std::vector<RankLoad>> loads(kUnits, std::vector<RankLoad>(kRanks));
  for (int u = 0; u < kUnits; ++u) {
    balancer.add_unit(kRanks);
    for (RankLoad& load : loads[u]) {
      const auto tokens = static_cast<int64_t>(rng.next_below(20'000));
      load = {tokens / 2000 + 1, tokens, options.cost.cost_ns(tokens, 2000)};
    }
  }
  const std::vector<int64_t> prompts = published_prompts();
  run_core(
      state,
      [&](uint64_t i) {
        const auto where = balancer.place({prompts[i], prompts[i] / 2, {}});
        return std::pair(where->choice.rank.unit, where->dispatch);
      },
      [&](int unit, uint64_t sequence, uint64_t acked) {
        balancer.report({.unit = unit, .sequence = sequence, .acked = acked, .loads = loads[unit]});
      });
}
BENCHMARK_CAPTURE(bench_prefill_place, least_tokens, PrefillPolicy::kLeastTokens);
BENCHMARK_CAPTURE(bench_prefill_place, fathom, PrefillPolicy::kFathom);

// ---- the whole live path ----

// Prompts of the published lengths. Sessions share one of 64 system prompts, then go their own way; a request
// is its session's beginning.
class Prompts {
 public:
  Prompts() {
    for (int32_t& token : pool_) token = static_cast<int32_t>(rng_.next_below(129'280));
    for (int32_t& length : lengths_) {
      length = static_cast<int32_t>(
          std::clamp(2289 * std::exp(0.957 * test_normal(rng_)), 16.0, double(kLengthMax)));
    }
  }

  std::span<const int32_t> next() {
    const uint64_t session = rng_.next_below(kSessions);
    const auto length = static_cast<size_t>(lengths_[rng_.next_below(lengths_.size())]);
    for (size_t at = 0; at < length; at += kBlockTokens) {
      const size_t block = at / kBlockTokens;
      const uint64_t from =
          block < kSharedBlocks ? hash_u64(session % 64, block) : hash_u64(100 + session, block);
      const int32_t* tokens = &pool_[from % (pool_.size() - kBlockTokens)];
      std::copy_n(tokens, std::min<size_t>(kBlockTokens, length - at), &tokens_[at]);
    }
    return std::span(tokens_).first(length);
  }

 private:
  static constexpr uint64_t kSessions = 20'000;
  static constexpr size_t kSharedBlocks = 6, kLengthMax = 131'072;

  Rng rng_{4};
  std::vector<int32_t> pool_ = std::vector<int32_t>(1 << 18);
  std::vector<int32_t> lengths_ = std::vector<int32_t>(kPrompts);
  std::vector<int32_t> tokens_ = std::vector<int32_t>(kLengthMax);
};

double us_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

double percentile(std::vector<double>& sorted, double share) {
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

// A prefill decision over 1,250 single-rank instances from the prompt's token ids: block hashes, prefix
// match, choice, charge, the blocks noted, and a report with every decision. Making the prompt up is not
// timed.
void bench_prefill_route(benchmark::State& state) {
  constexpr int kInstances = 1250;
  const std::vector<int> units(kInstances, 1);
  PrefillRouter router({}, units);
  Prompts prompts;
  const uint64_t root = route_root("model", "tenant");
  const std::vector<RankLoad> idle(1);
  std::vector<uint64_t> last(kInstances, 0), blocks;
  std::vector<double> latency_us;
  double hash_us = 0;
  uint64_t sequence = 0, hits = 0, num_tokens = 0;
  for (auto _ : state) {
    const std::span<const int32_t> tokens = prompts.next();
    const auto start = std::chrono::steady_clock::now();
    blocks.clear();
    append_route_hashes(root, tokens, kBlockTokens, blocks);
    hash_us += us_since(start);
    const auto placed = router.route(static_cast<int64_t>(tokens.size()), blocks, 0);
    latency_us.push_back(us_since(start));
    last[placed->choice.rank.unit] = placed->dispatch;
    hits += static_cast<uint64_t>(placed->choice.cached_tokens), num_tokens += tokens.size();
    const int unit = static_cast<int>(++sequence % kInstances);
    router.balancer().report({.unit = unit, .sequence = sequence, .acked = last[unit], .loads = idle});
    state.SetIterationTime(us_since(start) / 1e6);
  }
  const auto count = static_cast<double>(latency_us.size());
  std::sort(latency_us.begin(), latency_us.end());
  state.SetItemsProcessed(static_cast<int64_t>(latency_us.size()));
  state.counters["p50_us"] = percentile(latency_us, 0.5);
  state.counters["p99_us"] = percentile(latency_us, 0.99);
  state.counters["hash_mean_us"] = hash_us / count;
  state.counters["tokens_mean"] = static_cast<double>(num_tokens) / count;
  state.counters["hit_rate"] = static_cast<double>(hits) / static_cast<double>(num_tokens);
}
BENCHMARK(bench_prefill_route)->UseManualTime();

// For comparison, the store's keys of the same prompts, which a worker computes.
void bench_block_keys(benchmark::State& state) {
  Prompts prompts;
  const BlockKey root = root_key("model", "layout", "tenant");
  for (auto _ : state) {
    const std::span<const int32_t> tokens = prompts.next();
    const auto start = std::chrono::steady_clock::now();
    KeyChain keys(root);
    keys.extend(tokens);
    benchmark::DoNotOptimize(keys.size());
    state.SetIterationTime(us_since(start) / 1e6);
  }
}
BENCHMARK(bench_block_keys)->UseManualTime();

}  // namespace
}  // namespace fathom
