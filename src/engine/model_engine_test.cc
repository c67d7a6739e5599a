// The whole engine on a real (tiny, random) model. Names of the promises:
//   deterministic  tokens are bit-equal whatever the batch, chunk, ranks, threads, cache and retraction
//   fast default   tokens are equal over batch and chunk sizes
#include <gtest/gtest.h>

#include "base/cpu.h"
#include "engine/engine.h"
#include "engine/memory_estimate.h"
#include "engine/model_parts.h"
#include "engine/test_scripted.h"
#include "model/testing.h"

namespace fathom {
namespace {

using Answers = std::vector<std::vector<int32_t>>;

constexpr int kPrompts = 20;
constexpr int kFillers = 12;  // run beside them, so that a batch has 32 rows; their answers are not compared
constexpr size_t kWholeBatch = kPrompts + kFillers;
constexpr int32_t kAnyLength = 1000;
// Steps of many ranks are slow on few cores; the short sanitizer run takes fewer still.
#ifdef FATHOM_SANITIZED
constexpr bool kFewTokens = true;
#else
constexpr bool kFewTokens = false;
#endif

// Tells how many sequences the fullest step had.
class CountingExecutor final : public Executor {
 public:
  CountingExecutor(std::unique_ptr<Executor> inner, size_t& sequences_max)
      : inner_(std::move(inner)), sequences_max_(sequences_max) {}
  int num_ranks() const override { return inner_->num_ranks(); }
  Status step(std::span<const RankBatch> ranks, MatrixView<const float>* logits) override {
    size_t sequences = 0;
    for (const RankBatch& rank : ranks) sequences += rank.chunks.size();
    sequences_max_ = std::max(sequences_max_, sequences);
    return inner_->step(ranks, logits);
  }
  void request_stop() override { inner_->request_stop(); }
  ExchangeStats last_exchange() const override { return inner_->last_exchange(); }

 private:
  const std::unique_ptr<Executor> inner_;
  size_t& sequences_max_;
};

std::vector<GenerationRequest> make_requests(int32_t vocab) {
  std::vector<GenerationRequest> requests;
  Rng rng(11);
  for (int i = 0; i < kPrompts; ++i) {
    GenerationRequest request{.max_new_tokens = i < 3 ? 80 : 20};
    request.prompt.resize(1 + rng.next_below(i < 3 ? 62 : 240));
    for (int32_t& token : request.prompt)
      token = static_cast<int32_t>(rng.next_below(static_cast<uint64_t>(vocab)));
    request.sampling.seed = 100 + static_cast<uint64_t>(i);
    request.sampling.temperature = i % 2 == 0 ? 0 : 1;
    requests.push_back(std::move(request));
  }
  return requests;
}

EngineOptions base_options(const Model& model) {
  EngineOptions options{.kv_memory_bytes = 120 * kv_layout_of(model).block_bytes(),
                        .max_context = 320,
                        .max_running = 32,  // all prompts at once, or one by one
                        .prefill_chunk_tokens = 512};
  // Chunks as long as they may be, however slow the machine is just now.
  options.decode_gap_seconds_max = options.prefill_step_seconds_max = 1000;
  options.decode_gap_ratio_max = 1000;
  return options;
}

std::vector<GenerationRequest> make_fillers(int32_t vocab) {
  std::vector<GenerationRequest> fillers;
  Rng rng(12);
  for (int i = 0; i < kFillers; ++i) {
    GenerationRequest filler{.max_new_tokens = 250, .ignore_eos = true};  // until the prompts have ended
    for (int n = 0; n < 20 + i; ++n)
      filler.prompt.push_back(static_cast<int32_t>(rng.next_below(static_cast<uint64_t>(vocab))));
    filler.sampling.seed = 200 + static_cast<uint64_t>(i);
    fillers.push_back(std::move(filler));
  }
  return fillers;
}

Answers run(Engine& engine, bool one_by_one, int32_t vocab, int32_t tokens_max = kAnyLength) {
  std::vector<std::shared_ptr<RecordingListener>> listeners;
  const auto submit = [&](GenerationRequest request) {
    listeners.push_back(std::make_shared<RecordingListener>());
    const Result<RequestId> id = engine.submit(std::move(request), listeners.back());
    CHECK_MSG(id.ok(), id.status().to_string());
    if (one_by_one) listeners.back()->wait();
    return *id;
  };
  for (GenerationRequest& request : make_requests(vocab)) {
    request.max_new_tokens = std::min(request.max_new_tokens, tokens_max);
    submit(std::move(request));
  }
  std::vector<RequestId> fillers;
  if (!one_by_one) {
    for (GenerationRequest& filler : make_fillers(vocab)) fillers.push_back(submit(std::move(filler)));
  }
  Answers answers;
  for (size_t i = 0; i < kPrompts; ++i) {
    listeners[i]->wait();
    EXPECT_EQ(listeners[i]->info.reason, FinishReason::kLength) << listeners[i]->info.status.to_string();
    answers.push_back(listeners[i]->tokens);
  }
  for (const RequestId id : fillers) engine.cancel(id);
  for (const auto& listener : listeners) listener->wait();
  return answers;
}

struct Computed {
  Answers answers;
  size_t batch_max = 0;  // rows of the fullest decode step
};

Computed compute(const Model& model, const EngineOptions& options, bool one_by_one = false,
                 int32_t tokens_max = kAnyLength) {
  SystemClock clock;
  Computed computed;
  EngineParts parts = make_model_parts(options, model, clock).value();
  parts.decode = std::make_unique<CountingExecutor>(std::move(parts.decode), computed.batch_max);
  const auto engine = Engine::create(options, std::move(parts), clock).value();
  computed.batch_max = 0;  // the warm-up is no batch of requests
  computed.answers = run(*engine, one_by_one, static_cast<int32_t>(model.config().vocab_size), tokens_max);
  return computed;
}

Answers answers_of(const Model& model, const EngineOptions& options) {
  return compute(model, options).answers;
}

// Prefixes found in the cache or not, and with so little memory that requests are retracted and resumed.
void expect_same_whatever_the_memory(const Model& model, const EngineOptions& options, const Answers& want,
                                     int32_t tokens_max = kAnyLength) {
  SCOPED_TRACE(options.prefill_ep);
  SystemClock clock;
  const auto engine = Engine::create(options, model, clock).value();
  const auto vocab = static_cast<int32_t>(model.config().vocab_size);
  EXPECT_EQ(run(*engine, false, vocab, tokens_max), want) << "cold";
  EXPECT_EQ(run(*engine, false, vocab, tokens_max), want) << "warm";
  EXPECT_GT(engine->stats().hit_tokens, 0);

  EngineOptions little_memory = options;
  little_memory.kv_memory_bytes = 5 * kv_layout_of(model).block_bytes();
  const auto squeezed = Engine::create(little_memory, model, clock).value();
  EXPECT_EQ(run(*squeezed, false, vocab, tokens_max), want) << "retraction";
  EXPECT_GT(squeezed->stats().retractions, 0);
}

// A model that says it is large gets room for expanded prompts; one that says nothing gets none.
TEST(ModelEngine, keys_kept_between_steps_change_no_token) {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kInt8}) {
    const auto plain = testing::random_model(testing::tiny_config(), format, 6);
    const auto keeping = testing::random_model(testing::tiny_config(), format, 6, int64_t{1} << 30);
    for (const int prefill_ep : {1, 2}) {
      EngineOptions options = base_options(*plain);
      options.kv_memory_bytes = 4096 * kv_layout_of(*plain).block_bytes();
      options.prefill_ep = prefill_ep;
      options.prefill_chunk_tokens = 64 * prefill_ep;
      const Answers want = compute(*plain, options, true, 8).answers;
      EXPECT_EQ(compute(*keeping, options, true, 8).answers, want) << "EP " << prefill_ep;
      SystemClock clock;
      const auto bytes_of = [&](const Model& model) {
        const int64_t before = AlignedBuffer::live_bytes();
        const EngineParts parts = make_model_parts(options, model, clock).value();
        return AlignedBuffer::live_bytes() - before;
      };
      EXPECT_GT(bytes_of(*keeping), bytes_of(*plain)) << "nothing was kept";
    }
  }
}

TEST(ModelEngine, deterministic_tokens_do_not_depend_on_how_they_are_computed) {
  const auto model = testing::random_model(testing::tiny_config(), WeightFormat::kFp8, 5);
  EngineOptions options = base_options(*model);
  options.deterministic = true;
  const Computed alone = compute(*model, options, true);
  EXPECT_EQ(alone.batch_max, 1u);
  const Answers& want = alone.answers;

  const Computed together = compute(*model, options);
  EXPECT_EQ(together.batch_max, kWholeBatch);
  EXPECT_EQ(together.answers, want) << "batch 32";

  EngineOptions small_chunks = options;
  small_chunks.prefill_chunk_tokens = 64;
  small_chunks.threads = 2;
  EXPECT_EQ(answers_of(*model, small_chunks), want) << "batch, chunk 64, 2 threads";

  EngineOptions two_threads = options;
  two_threads.threads = 2;
  EXPECT_EQ(answers_of(*model, two_threads), want) << "2 threads alone";

  EngineOptions many_ranks = options;
  many_ranks.prefill_ep = 4;
  many_ranks.decode_ep = 6;
  EXPECT_EQ(answers_of(*model, many_ranks), want) << "EP 4 and 6";

  for (const int ep : {1, 4}) {
    options.prefill_ep = options.decode_ep = ep;
    expect_same_whatever_the_memory(*model, options, want);
  }
}

ModelConfig config_of_256_experts() {
  ModelConfig config = testing::tiny_config();
  config.n_routed_experts = 256;
  config.n_group = 8;
  config.topk_group = 4;
  config.num_experts_per_tok = 8;
  return config;
}

// DeepSeek's own degrees among them: 256 experts and 32 redundant slots, 9 slots a rank at EP32, 2 at EP144.
// Tokens are counted where steps are slow: 144 ranks on a few cores.
TEST(ModelEngine, deterministic_tokens_at_ep_1_4_32_and_144) {
  const auto model = testing::random_model(config_of_256_experts(), WeightFormat::kFp8, 8);
  EngineOptions options = base_options(*model);
  options.deterministic = true;
  const Answers whole = compute(*model, options, true).answers;
  options.redundant_experts = 32;
  struct Case {
    int prefill_ep, decode_ep, tokens;
  };
  for (const Case& c : {Case{1, 4, 80}, {4, 32, 32}, {32, 144, 16}, {144, 4, 32}}) {
    Answers want = whole;
    const int tokens = kFewTokens ? 2 : c.tokens;
    for (auto& answer : want) answer.resize(std::min<size_t>(answer.size(), tokens));
    for (const int32_t chunk : {64, 512}) {
      options.prefill_ep = c.prefill_ep;
      options.decode_ep = c.decode_ep;
      options.prefill_chunk_tokens = chunk;
      options.threads = chunk == 64 ? 2 : 1;
      const Computed got = compute(*model, options, false, tokens);
      EXPECT_EQ(got.answers, want) << "EP " << c.prefill_ep << " and " << c.decode_ep << ", chunk " << chunk;
      // In small chunks the first prompts have ended before the last have begun.
      EXPECT_LE(got.batch_max, kWholeBatch);
      EXPECT_GE(got.batch_max, chunk == 512 && !kFewTokens ? kWholeBatch : 1);
    }
  }
}

TEST(ModelEngine, deterministic_tokens_at_ep_32_and_144_whatever_the_memory) {
  const auto model = testing::random_model(config_of_256_experts(), WeightFormat::kFp8, 8);
  EngineOptions options = base_options(*model);
  options.deterministic = true;
  const int32_t tokens = 12;  // fewer lead to no retraction
  const Answers want = compute(*model, options, true, tokens).answers;
  options.redundant_experts = 32;
  options.prefill_ep = 32;
  options.decode_ep = kFewTokens ? 4 : 144;
  expect_same_whatever_the_memory(*model, options, want, tokens);
}

TEST(ModelEngine, fast_default_tokens_do_not_depend_on_batch_and_chunk) {
  const auto model = testing::random_model(testing::tiny_config(), WeightFormat::kBf16, 6);
  EngineOptions options = base_options(*model);
  const Answers want = compute(*model, options, true).answers;
  EXPECT_EQ(answers_of(*model, options), want) << "batch";
  options.prefill_chunk_tokens = 64;
  EXPECT_EQ(answers_of(*model, options), want) << "chunk 64";
}

TEST(ModelEngine, too_little_memory_is_refused_with_the_arithmetic) {
  const auto model = testing::random_model(testing::tiny_config(), WeightFormat::kF32, 7);
  EngineOptions options = base_options(*model);
  options.kv_memory_bytes = 100'000;
  SystemClock clock;
  EXPECT_EQ(Engine::create(options, *model, clock).status().message(),
            "--kv-memory: 100000 bytes hold 2 blocks of 36864 bytes, one request of 320 tokens needs 5");
}

// On nodes that this machine may not have: two that share its memory, each with one of its processors.
TEST(ModelEngine, tokens_do_not_depend_on_where_ranks_and_pages_lie) {
  const auto model = testing::random_model(testing::tiny_config(), WeightFormat::kBf16, 10);
  EngineOptions options = base_options(*model);
  options.deterministic = true;
  const Answers want = answers_of(*model, options);
  const std::vector<int> cpus = available_cpus();
  options.numa_nodes = {{.id = 0, .cpus = {cpus.front()}}, {.id = 0, .cpus = {cpus.back()}}};
  options.threads = 2;
  for (const auto& [prefill_ep, decode_ep] : {std::pair{1, 1}, {2, 4}}) {
    options.prefill_ep = prefill_ep;
    options.decode_ep = decode_ep;
    EXPECT_EQ(answers_of(*model, options), want) << "EP " << prefill_ep << " and " << decode_ep;
  }
}

TEST(ModelEngine, experts_lie_near_the_decode_rank_that_has_them) {
  EngineOptions options{.decode_ep = 4, .redundant_experts = 2};
  EXPECT_TRUE(weight_pages(options, 10).nodes.empty()) << "one node: nothing to place";
  options.numa_nodes = {{.id = 0, .cpus = {0, 1}}, {.id = 1, .cpus = {2, 3}}};
  // 12 slots on 4 ranks: experts 0-5 on ranks 0 and 1, on node 0.
  EXPECT_EQ(weight_pages(options, 10).expert_nodes, (std::vector<int>{0, 0, 0, 0, 0, 0, 1, 1, 1, 1}));
  options.decode_ep = 1;
  options.redundant_experts = 0;
  EXPECT_EQ(weight_pages(options, 4).expert_nodes, std::vector<int>(4, kAnyNode));
}

// The estimate is made before the weights are read; what the engine then allocates must stay below it, and
// not far.
TEST(ModelEngine, buffers_take_no_more_than_estimated) {
  ModelConfig config = testing::tiny_config();
  config.n_routed_experts = 64;
  config.num_experts_per_tok = 4;
  SystemClock clock;
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kFp8}) {
    const auto model = testing::random_model(config, format, 9, int64_t{1} << 30);
    for (const auto& [prefill_ep, decode_ep, redundant, threads] :
         {std::tuple{1, 1, 0, 1}, {1, 4, 0, 2}, {8, 16, 16, 1}}) {
      EngineOptions options = base_options(*model);
      options.max_context = 2048;
      options.prefill_ep = prefill_ep;
      options.decode_ep = decode_ep;
      options.redundant_experts = redundant;
      options.threads = threads;
      const int64_t before = AlignedBuffer::live_bytes();
      const auto engine = Engine::create(options, *model, clock).value();
      const int64_t kv = engine->stats().kv_blocks_total * kv_layout_of(*model).block_bytes();
      const int64_t taken = AlignedBuffer::live_bytes() - before - kv;
      const int64_t estimate = activation_bytes(config, options);
      EXPECT_LE(taken, estimate) << "EP " << prefill_ep << " and " << decode_ep;
      EXPECT_GE(taken * 4, estimate) << "EP " << prefill_ep << " and " << decode_ep;
    }
  }
}

}  // namespace
}  // namespace fathom
