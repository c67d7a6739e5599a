// Steps of a single-rank forward group on random weights: tokens/s, and the time of each stage per step.
//   demo   the shape of the built-in model: overheads show here, a step is well under a millisecond
//   medium a model whose weights exceed the caches: bandwidth shows here
#include <benchmark/benchmark.h>

#include <map>

#include "model/testing.h"

namespace fathom {
namespace {

enum Shape { kDemo, kMedium };

ModelConfig bench_config(Shape shape) {
  ModelConfig c = testing::tiny_config();
  c.max_position_embeddings = 4096;
  c.vocab_size = 2048;
  c.hidden_size = 128;
  c.num_hidden_layers = 5;
  c.num_attention_heads = 4;
  c.intermediate_size = 384;
  c.q_lora_rank = 96;
  c.kv_lora_rank = 64;
  c.qk_nope_head_dim = c.qk_rope_head_dim = c.v_head_dim = 32;
  c.n_routed_experts = 16;
  c.num_experts_per_tok = 4;
  c.moe_intermediate_size = 96;
  if (shape == kDemo) return c;
  c.hidden_size = 1024;
  c.num_hidden_layers = 3;
  c.num_attention_heads = 16;
  c.intermediate_size = 2816;
  c.q_lora_rank = 512;
  c.kv_lora_rank = 256;
  c.qk_nope_head_dim = c.v_head_dim = 64;
  c.n_routed_experts = 64;
  c.num_experts_per_tok = 8;
  c.n_group = 8;
  c.topk_group = 4;
  c.moe_intermediate_size = 256;
  c.vocab_size = 4096;
  return c;
}

const Model& bench_model(Shape shape, WeightFormat format) {
  static std::map<std::pair<Shape, WeightFormat>, std::unique_ptr<Model>> models;
  auto& model = models[{shape, format}];
  if (model == nullptr) model = testing::random_model(bench_config(shape), format, 1);
  return *model;
}

constexpr const char* kStageNames[kNumStages] = {"embed",  "attn0",   "attn1", "dispatch", "mlp",
                                                 "shared", "combine", "head",  "dense",    "core"};

void report(benchmark::State& state, const ForwardGroup& group, int64_t tokens, const double* stage_us) {
  (void)group;
  state.SetItemsProcessed(state.iterations() * tokens);
  for (int i = 0; i < kNumStages; ++i) {
    state.counters[kStageNames[i]] = stage_us[i] / static_cast<double>(state.iterations());
  }
}

void run_steps(benchmark::State& state, const ForwardOptions& options, int sequences, int new_tokens,
               int context) {
  const Model& model =
      bench_model(static_cast<Shape>(state.range(0)), static_cast<WeightFormat>(state.range(1)));
  const int32_t blocks = blocks_for_tokens(context + new_tokens);
  KvStorage storage(testing::kv_layout(model), blocks * sequences);
  auto group = ForwardGroup::create(model, storage, options).value();
  Rng rng(1);
  std::vector<testing::TestSequence> all;
  std::vector<RankBatch> ranks(options.num_ranks);
  for (int i = 0; i < sequences; ++i) {
    std::vector<int32_t> tokens(context + new_tokens);
    for (int32_t& token : tokens) token = static_cast<int32_t>(rng.next_below(model.config().vocab_size));
    all.push_back(testing::test_sequence(std::move(tokens), i * blocks, context + new_tokens));
    all.back().stored = context;
  }
  for (int i = 0; i < sequences; ++i) {
    ranks[i % options.num_ranks].chunks.push_back(testing::next_chunk(all[i], new_tokens, true));
  }
  MatrixView<const float> logits;
  double stage_us[kNumStages] = {};
  for (auto _ : state) {
    CHECK(group->step(ranks, &logits).ok());
    for (int i = 0; i < kNumStages; ++i) stage_us[i] += to_seconds(group->last_stats().stage_time[i]) * 1e6;
  }
  report(state, *group, int64_t{sequences} * new_tokens, stage_us);
}

const SystemClock& bench_clock() {
  static const SystemClock clock;
  return clock;
}

void decode(benchmark::State& state) {
  const ForwardOptions options{.threads = static_cast<int>(state.range(3)), .clock = &bench_clock()};
  run_steps(state, options, static_cast<int>(state.range(2)), 1, 128);
}
void prefill(benchmark::State& state) {
  const ForwardOptions options{
      .phase = Phase::kPrefill, .threads = static_cast<int>(state.range(3)), .clock = &bench_clock()};
  run_steps(state, options, 1, static_cast<int>(state.range(2)), 0);
}

constexpr int kBf16 = static_cast<int>(WeightFormat::kBf16);
constexpr int kInt8 = static_cast<int>(WeightFormat::kInt8);

BENCHMARK(decode)
    ->ArgNames({"shape", "format", "batch", "threads"})
    ->ArgsProduct({{kDemo, kMedium}, {kBf16, kInt8}, {1, 16, 64}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(prefill)
    ->ArgNames({"shape", "format", "tokens", "threads"})
    ->ArgsProduct({{kDemo, kMedium}, {kBf16, kInt8}, {64, 512}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace fathom
