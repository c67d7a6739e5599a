// Invariants of the forward pass, by name:
//   batch_free       fast default: a sequence's logits do not depend on what shares its steps
//   chunk_free       fast default: nor on how its prompt is cut
//   placement_free   deterministic: nor on ranks, replicas, threads, or the phase that computes it
//   idle_ranks_step  ranks without tokens take part
// and of the group: limits are errors, a stop ends a step, a failed rank fails the group without a hang.
#include "model/forward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "model/rank_forward.h"
#include "model/testing.h"
#include "transport/faults.h"
#include "transport/inproc.h"

namespace fathom {
namespace {

using testing::next_chunk;
using testing::test_sequence;
using testing::TestSequence;

// How a test computes its sequences.
struct Way {
  ForwardOptions options;
  int64_t chunk = 512;      // tokens of a sequence per step
  bool one_by_one = false;  // sequences one after the other, or all in the same steps
};

using Logits = std::vector<std::vector<float>>;  // after each sequence's last token

std::vector<std::vector<int32_t>> random_prompts(uint64_t seed, int count, int64_t vocab, int max_tokens) {
  Rng rng(seed);
  std::vector<std::vector<int32_t>> prompts(count);
  for (auto& prompt : prompts) {
    prompt.resize(1 + rng.next_below(max_tokens));
    for (int32_t& token : prompt) token = static_cast<int32_t>(rng.next_below(vocab));
  }
  return prompts;
}

// Adds the sequences' next chunks to the ranks, round robin, as far as they hold them. Returns who takes
// part.
std::vector<std::pair<int, size_t>> fill_ranks(const std::vector<TestSequence>& sequences, const Way& way,
                                               std::span<const size_t> active,
                                               std::vector<RankBatch>& ranks) {
  std::vector<std::pair<int, size_t>> order;
  int rank = 0;
  for (size_t i : active) {
    const TestSequence& s = sequences[i];
    const auto rest = static_cast<int64_t>(s.tokens.size()) - s.stored;
    const int64_t count = std::min(rest, way.chunk);
    if (rest == 0 || ranks[rank].num_tokens() + count > way.options.max_tokens_per_rank) continue;
    ranks[rank].chunks.push_back(next_chunk(s, count, count == rest));
    order.emplace_back(rank, i);
    rank = (rank + 1) % way.options.num_ranks;
  }
  std::stable_sort(order.begin(), order.end(), [](auto& a, auto& b) { return a.first < b.first; });
  return order;
}

void run_sequences(ForwardGroup& group, const Way& way, std::vector<TestSequence>& sequences,
                   std::span<const size_t> active, Logits& out) {
  for (;;) {
    std::vector<RankBatch> ranks(way.options.num_ranks);
    const auto order = fill_ranks(sequences, way, active, ranks);
    if (order.empty()) return;
    MatrixView<const float> logits;
    const Status status = group.step(ranks, &logits);
    ASSERT_TRUE(status.ok()) << status.to_string();
    int64_t row = 0;
    std::vector<size_t> next(way.options.num_ranks, 0);
    for (auto [rank, i] : order) {
      const SequenceChunk& chunk = ranks[rank].chunks[next[rank]++];
      sequences[i].stored += static_cast<int32_t>(chunk.tokens.size());
      if (chunk.want_logits) out[i].assign(logits.row(row), logits.row(row) + logits.cols), ++row;
    }
    ASSERT_EQ(row, logits.rows);
  }
}

Logits compute(const Model& model, const Way& way, const std::vector<std::vector<int32_t>>& prompts) {
  std::vector<TestSequence> sequences;
  int32_t blocks = 0;
  for (const auto& prompt : prompts) {
    sequences.push_back(test_sequence(prompt, blocks, static_cast<int32_t>(prompt.size())));
    blocks += static_cast<int32_t>(sequences.back().blocks.size());
  }
  KvStorage storage(testing::kv_layout(model), blocks);
  auto group = ForwardGroup::create(model, storage, way.options);
  EXPECT_TRUE(group.ok()) << group.status().to_string();
  Logits out(prompts.size());
  std::vector<size_t> all(prompts.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  if (way.one_by_one) {
    for (size_t i : all) run_sequences(**group, way, sequences, {&i, 1}, out);
  } else {
    run_sequences(**group, way, sequences, all, out);
  }
  return out;
}

void expect_same_bits(const Logits& a, const Logits& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].size(), b[i].size()) << what;
    ASSERT_FALSE(a[i].empty()) << what;
    ASSERT_EQ(std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)), 0)
        << what << ", sequence " << i;
  }
}

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8,
                                     WeightFormat::kInt8, WeightFormat::kInt4};

TEST(Forward, FastDefaultIsBatchFreeAndChunkFree) {
  for (WeightFormat format : kFormats) {
    const auto model = testing::random_model(testing::tiny_config(), format, 3);
    const auto prompts = random_prompts(17, 3, model->config().vocab_size, 140);
    for (Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      Way way{.options = {.phase = phase}, .chunk = 512, .one_by_one = true};
      const Logits alone = compute(*model, way, prompts);
      way.one_by_one = false;
      for (auto [chunk, threads, expanded] :
           {std::tuple{7, 1, 0}, {64, 2, 0}, {7, 2, 1 << 16}, {40, 1, 1 << 20}}) {
        way.chunk = chunk;
        way.options.threads = threads;
        way.options.expanded_bytes = expanded;
        expect_same_bits(alone, compute(*model, way, prompts),
                         fmt::format("{}, phase {}, chunk {}, {} bytes of expanded keys",
                                     weight_format_name(format), static_cast<int>(phase), chunk, expanded));
      }
    }
  }
}

TEST(Forward, KeysKeptBetweenStepsChangeNoBit) {
  for (WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    const auto model = testing::random_model(testing::tiny_config(), format, 12);
    const auto prompts = random_prompts(40, 3, model->config().vocab_size, 400);
    ASSERT_GT(std::max({prompts[0].size(), prompts[1].size(), prompts[2].size()}), 300u);
    Way way{.options = {.phase = Phase::kPrefill, .threads = 2}};
    const int64_t block_bytes = 3 * 3 * 64 * dtype_bytes(model->weights().core_dtype, 16 + 20);
    for (const auto& [chunk, num_ranks, room_blocks, overlap] :
         {std::tuple{50, 1, 100, false}, {50, 1, 2, false}, {64, 2, 100, false}, {90, 1, 100, true}}) {
      for (const bool one_by_one : {true, false}) {
        way.chunk = chunk;
        way.one_by_one = one_by_one;
        way.options.num_ranks = num_ranks;
        way.options.overlap_min_tokens = overlap ? std::optional<int64_t>(0) : std::nullopt;
        way.options.expanded_bytes = 0;
        const Logits plain = compute(*model, way, prompts);
        way.options.expanded_bytes = room_blocks * num_ranks * block_bytes;
        expect_same_bits(plain, compute(*model, way, prompts),
                         fmt::format("{}, chunk {}, {} ranks, room for {} blocks, overlap {}",
                                     weight_format_name(format), chunk, num_ranks, room_blocks, overlap));
      }
    }
  }
}

TEST(Forward, BothAttentionFormsAgree) {
  const auto model = testing::random_model(testing::tiny_config(), WeightFormat::kF32, 5);
  const auto prompts = random_prompts(2, 4, model->config().vocab_size, 150);
  const Logits per_head = compute(*model, {.options = {.phase = Phase::kPrefill}}, prompts);
  const Logits absorbed = compute(*model, {.options = {.phase = Phase::kDecode}}, prompts);
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (size_t j = 0; j < per_head[i].size(); ++j) ASSERT_NEAR(per_head[i][j], absorbed[i][j], 2e-5);
  }
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double{a[i]} - b[i], 2);
    size += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / size);
}

// Sizes that are multiples of nothing, layers without experts, experts without a shared one, no q_lora.
ModelConfig odd_config(uint64_t seed) {
  Rng rng(seed);
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(rng.next_below(high - low + 1));
  };
  ModelConfig c = testing::tiny_config();
  c.vocab_size = between(3, 150);
  c.hidden_size = between(5, 150);
  c.num_hidden_layers = between(1, 3);
  c.num_attention_heads = between(1, 5);
  c.intermediate_size = between(1, 150);
  c.q_lora_rank = between(0, 2) == 0 ? 0 : between(1, 140);
  c.kv_lora_rank = between(1, 140);
  c.qk_nope_head_dim = between(1, 40);
  c.qk_rope_head_dim = 2 * between(1, 9);
  c.v_head_dim = between(1, 40);
  c.n_group = between(1, 3);
  c.topk_group = between(1, c.n_group);
  c.n_routed_experts = between(0, 3) == 0 ? 0 : c.n_group * between(2, 4);
  c.num_experts_per_tok = between(1, 2);
  c.n_shared_experts = between(0, 2);
  c.moe_intermediate_size = between(1, 150);
  c.first_k_dense_replace = between(0, 1);
  return c;
}

TEST(Forward, OddShapesAreChunkFreeAndBothFormsAgree) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const WeightFormat format = kFormats[seed % std::size(kFormats)];
    const auto model = testing::random_model(odd_config(seed), format, seed);
    const auto prompts = random_prompts(seed, 2, model->config().vocab_size, 70);
    Way way{.options = {.phase = Phase::kPrefill}, .one_by_one = true};
    const Logits alone = compute(*model, way, prompts);
    way = {.options = {.phase = Phase::kPrefill, .threads = 2, .expanded_bytes = 1 << 20}, .chunk = 33};
    expect_same_bits(alone, compute(*model, way, prompts), "chunks of 33");
    if (format != WeightFormat::kF32) continue;
    const Logits absorbed = compute(*model, {.options = {.phase = Phase::kDecode}}, prompts);
    for (size_t i = 0; i < prompts.size(); ++i) EXPECT_LT(relative_difference(absorbed[i], alone[i]), 1e-4);
  }
}

TEST(Forward, Fp8DispatchCostsALittleAccuracyAndNoInvariance) {
  const auto model = testing::random_model(testing::tiny_config(), WeightFormat::kBf16, 21);
  const auto prompts = random_prompts(3, 4, model->config().vocab_size, 60);
  for (Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    Way way{.options = {.phase = phase}};
    const Logits native = compute(*model, way, prompts);
    way.options.dispatch_format = ActFormat::kFp8;
    const Logits fp8 = compute(*model, way, prompts);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_GT(relative_difference(fp8[i], native[i]), 0.0);
      EXPECT_LT(relative_difference(fp8[i], native[i]), 0.2);
    }
    way.chunk = 9;
    expect_same_bits(fp8, compute(*model, way, prompts), "chunks of 9");
    way.options.dispatch_format = ActFormat::kInt8;
    KvStorage storage(testing::kv_layout(*model), 1);
    EXPECT_EQ(ForwardGroup::create(*model, storage, way.options).status().message(),
              "dispatch carries bf16 here, or fp8; not int8");
  }
}

TEST(Forward, DeterministicIsPlacementFree) {
  struct Case {
    Phase phase;
    int num_ranks, redundant;
    int64_t chunk;
    int threads;
  };
  for (WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8,
                              WeightFormat::kInt8, WeightFormat::kInt4}) {
    const auto model = testing::random_model(testing::tiny_config(), format, 11);
    const auto prompts = random_prompts(23, 5, model->config().vocab_size, 90);
    Way way{.options = {.phase = Phase::kDecode, .deterministic = true}, .chunk = 512, .one_by_one = true};
    const Logits alone = compute(*model, way, prompts);
    way.one_by_one = false;
    for (const Case& c : {Case{Phase::kPrefill, 1, 6, 13, 2}, Case{Phase::kPrefill, 3, 0, 64, 1},
                          Case{Phase::kDecode, 9, 6, 5, 1}, Case{Phase::kPrefill, 18, 6, 512, 36}}) {
      way.options = {.phase = c.phase,
                     .num_ranks = c.num_ranks,
                     .redundant_experts = c.redundant,
                     .deterministic = true,
                     .threads = c.threads};
      way.chunk = c.chunk;
      expect_same_bits(
          alone, compute(*model, way, prompts),
          fmt::format("{}, phase {}, {} ranks, {} redundant, chunk {}", weight_format_name(format),
                      static_cast<int>(c.phase), c.num_ranks, c.redundant, c.chunk));
    }
  }
}

// 256 experts of tiny width, as the published units split them.
ModelConfig wide_config() {
  ModelConfig c = testing::tiny_config();
  c.n_routed_experts = 256;
  c.num_experts_per_tok = 8;
  c.n_group = 8;
  c.topk_group = 4;
  c.moe_intermediate_size = 8;
  c.hidden_size = 32;
  c.num_hidden_layers = 2;
  return c;
}

TEST(Forward, PublishedUnitsOf32And144RanksGiveTheBitsOfOneRank) {
  const auto model = testing::random_model(wide_config(), WeightFormat::kF32, 8);
  const auto prompts = random_prompts(31, 20, model->config().vocab_size, 40);
  Way way{.options = {.deterministic = true}, .one_by_one = true};
  const Logits alone = compute(*model, way, prompts);
  way.one_by_one = false;
  for (auto [num_ranks, redundant] : {std::pair{4, 0}, {32, 32}, {144, 32}}) {
    way.options = {.num_ranks = num_ranks,
                   .redundant_experts = redundant,
                   .deterministic = true,
                   .max_tokens_per_rank = 64};
    way.chunk = 64;
    expect_same_bits(alone, compute(*model, way, prompts), fmt::format("{} ranks", num_ranks));
  }
}

TEST(Forward, OverlapChangesNoBit) {
  for (bool deterministic : {false, true}) {
    const auto model = testing::random_model(testing::tiny_config(), WeightFormat::kBf16, 13);
    const auto prompts = random_prompts(29, 5, model->config().vocab_size, 90);
    for (Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      for (int num_ranks : {1, 3}) {
        Way way{.options = {.phase = phase, .num_ranks = num_ranks, .deterministic = deterministic},
                .chunk = 50};
        const Logits plain = compute(*model, way, prompts);
        way.options.overlap_min_tokens = 0;
        expect_same_bits(plain, compute(*model, way, prompts),
                         fmt::format("phase {}, {} ranks", static_cast<int>(phase), num_ranks));
      }
    }
  }
}

// Dispatch carries FP8 with a scale per 128 channels where the experts' weights are FP8, combine carries
// BF16.
TEST(Forward, ExpertStatisticsAndWireBytesAddUp) {
  struct Case {
    WeightFormat format;
    int64_t dispatch_row, combine_row;  // bytes beside a row's header
  };
  const int64_t hidden = testing::tiny_config().hidden_size;
  for (const Case& c :
       {Case{WeightFormat::kF32, 4 * hidden, 4 * hidden}, Case{WeightFormat::kBf16, 2 * hidden, 2 * hidden},
        Case{WeightFormat::kFp8, hidden + (hidden + 127) / 128 * 4, 2 * hidden}}) {
    const auto model = testing::random_model(testing::tiny_config(), c.format, 4);
    KvStorage storage(testing::kv_layout(*model), 4);
    auto group = ForwardGroup::create(*model, storage, {.num_ranks = 4}).value();
    const TestSequence s = test_sequence({1, 2, 3, 4, 5}, 0, 64);
    std::vector<RankBatch> ranks(4);
    ranks[2].chunks = {next_chunk(s, 5, true)};
    MatrixView<const float> logits;
    ASSERT_TRUE(group->step(ranks, &logits).ok());
    const StepStats& stats = group->last_stats();
    EXPECT_EQ(stats.tokens, 5);
    const int64_t routed =
        std::accumulate(stats.expert_tokens.begin(), stats.expert_tokens.end(), int64_t{0});
    const int64_t expected = 5 * model->config().num_experts_per_tok * model->config().num_moe_layers();
    EXPECT_EQ(routed, expected);
    EXPECT_EQ(stats.exchange.dispatch_rows, expected);
    EXPECT_EQ(stats.exchange.dispatch_bytes, expected * (16 + c.dispatch_row))
        << weight_format_name(c.format);
    EXPECT_EQ(stats.exchange.combine_bytes, expected * c.combine_row) << weight_format_name(c.format);
    EXPECT_LT(stats.exchange.remote_dispatch_bytes, stats.exchange.dispatch_bytes);
  }
}

TEST(Forward, AReplacedPlacementChangesNoBit) {
  const auto model = testing::random_model(testing::tiny_config(), WeightFormat::kF32, 4);
  KvStorage storage(testing::kv_layout(*model), 4);
  auto group =
      ForwardGroup::create(*model, storage, {.num_ranks = 3, .redundant_experts = 3, .deterministic = true})
          .value();
  const TestSequence s = test_sequence({7, 8, 9, 10}, 0, 64);
  std::vector<RankBatch> ranks(3);
  ranks[0].chunks = {next_chunk(s, 4, true)};
  MatrixView<const float> logits;
  ASSERT_TRUE(group->step(ranks, &logits).ok());
  const std::vector<float> before(logits.row(0), logits.row(0) + logits.cols);
  ASSERT_TRUE(group->placement().replace_layer(1, {11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 5, 5, 2}).ok());
  ASSERT_TRUE(group->step(ranks, &logits).ok());
  EXPECT_EQ(std::memcmp(before.data(), logits.row(0), before.size() * sizeof(float)), 0);
}

TEST(Forward, LimitsAreErrorsThatNameTheNumbers) {
  const auto model = testing::random_model(testing::tiny_config(), WeightFormat::kF32, 4);
  KvStorage storage(testing::kv_layout(*model), 2);
  EXPECT_EQ(ForwardGroup::create(*model, storage, {.num_ranks = 5}).status().message(),
            "12 experts + 0 redundant experts = 12 slots do not divide by 5 ranks (remainder 2)");
  auto group = ForwardGroup::create(*model, storage, {.max_tokens_per_rank = 4}).value();
  MatrixView<const float> logits;
  const auto message_of = [&](std::vector<int32_t> tokens, int32_t start, int32_t blocks) {
    TestSequence s = test_sequence(std::move(tokens), 0, blocks * 64);
    s.stored = 0;
    RankBatch batch{{next_chunk(s, 100, true)}};
    batch.chunks[0].start = start;
    return group->step({&batch, 1}, &logits).message();
  };
  EXPECT_EQ(message_of({1, 2, 3, 4, 5}, 0, 1), "step: rank 0 has 5 tokens, the limit is 4");
  EXPECT_EQ(message_of({1}, 128, 2), "step: rank 0, chunk 0: 1 tokens after 128; a sequence has 1 to 128");
  EXPECT_EQ(message_of({1}, 64, 1), "step: rank 0, chunk 0: 1 blocks for 65 tokens");
  EXPECT_EQ(message_of({96}, 0, 1), "step: rank 0, chunk 0: token 96 is not in a vocabulary of 96");
  EXPECT_EQ(group->step({}, &logits).message(), "step: 0 batches for 1 ranks");
  EXPECT_EQ(message_of({95}, 0, 1), "");
}

TEST(Forward, ALostRankFailsTheOthersByDeadlineWithoutAHang) {
  const auto model = testing::random_model(testing::tiny_config(), WeightFormat::kF32, 4);
  KvStorage storage(testing::kv_layout(*model), 2);
  auto transport =
      InprocGroup::create({.num_ranks = 2, .timeout = std::chrono::milliseconds(50), .spin_iterations = 0})
          .value();
  const PlacementShape shape{.num_layers = 2, .num_experts = 12, .num_ranks = 2};
  const PlacementSnapshot placement = PlacementTable(shape).snapshot();
  const ForwardOptions options{.num_ranks = 2};
  const std::atomic<bool> stop{false};
  std::atomic<TimePoint> last_progress{};
  const RankSetup setup{.model = *model,
                        .storage = storage,
                        .options = options,
                        .placement_shape = shape,
                        .dispatch_format = ActFormat::kF32,
                        .threads = 1,
                        .max_context = 128,
                        .stop = stop,
                        .last_progress = last_progress};
  FaultyEndpoint reliable(transport->endpoint(0), {});
  FaultyEndpoint silent(transport->endpoint(1), {.lost_peers = {0}});
  RankForward ranks[] = {RankForward(setup, reliable), RankForward(setup, silent)};
  const TestSequence s = test_sequence({1, 2, 3}, 0, 64);
  const RankBatch batch{{next_chunk(s, 3, false)}};
  Status statuses[2];
  std::thread other([&] { statuses[1] = ranks[1].step({}, placement, false, {}); });
  statuses[0] = ranks[0].step(batch, placement, false, {});
  other.join();
  EXPECT_EQ(statuses[0].code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(statuses[0].message().find("rank 0: dispatch 0 misses rank(s) 1"), std::string::npos);
  EXPECT_EQ(statuses[1].code(), StatusCode::kDeadlineExceeded);  // rank 0 never answered
}

// Time that passes by being looked at; tells how often a group's progress had changed by then.
class TickingClock final : public Clock {
 public:
  TimePoint now() const override {
    const TimePoint progress = group == nullptr ? TimePoint() : group->last_progress();
    if (progress != last_seen_) ++num_changes;
    last_seen_ = progress;
    return TimePoint(Duration(++ticks_));
  }
  int64_t unix_seconds() const override { return 0; }

  const ForwardGroup* group = nullptr;
  mutable int num_changes = 0;

 private:
  mutable int64_t ticks_ = 0;
  mutable TimePoint last_seen_{};
};

TEST(Forward, EveryStageOfALayerIsProgress) {
  const auto model = testing::random_model(testing::tiny_config(), WeightFormat::kF32, 4);
  KvStorage storage(testing::kv_layout(*model), 8);
  TickingClock clock;
  auto group = ForwardGroup::create(*model, storage, {.phase = Phase::kPrefill, .clock = &clock}).value();
  EXPECT_EQ(group->last_progress(), TimePoint());
  clock.group = group.get();
  const std::vector<int32_t> tokens(64, 3);
  const TestSequence s = test_sequence(tokens, 0, 64);
  std::vector<RankBatch> ranks(1);
  ranks[0].chunks = {next_chunk(s, 64, true)};
  MatrixView<const float> logits;
  ASSERT_TRUE(group->step(ranks, &logits).ok());
  const int num_layers = static_cast<int>(model->config().num_hidden_layers);
  EXPECT_GE(clock.num_changes, 3 * num_layers) << "seen while the step ran";
  EXPECT_EQ(group->last_progress(), clock.now() - Duration(1)) << "and at its end";
}

TEST(Forward, AStopEndsAStepOnAllRanks) {
  ModelConfig config = testing::tiny_config();
  config.num_hidden_layers = 40;
  const auto model = testing::random_model(config, WeightFormat::kF32, 4);
  const auto prompts = random_prompts(5, 1, config.vocab_size, 400);
  for (auto [num_ranks, overlap] : {std::pair{1, false}, {4, false}, {4, true}}) {
    KvStorage storage(testing::kv_layout(*model), 8);
    ForwardOptions options{.phase = Phase::kPrefill, .num_ranks = num_ranks};
    if (overlap) options.overlap_min_tokens = 0;
    auto group = ForwardGroup::create(*model, storage, options).value();
    std::vector<int32_t> tokens(512, 3);
    const TestSequence s = test_sequence(tokens, 0, 512);
    std::vector<RankBatch> ranks(num_ranks);
    ranks[0].chunks = {next_chunk(s, 512, true)};
    MatrixView<const float> logits;
    std::atomic<bool> done{false};
    std::thread stopper([&] {
      while (!done.load()) group->request_stop(), std::this_thread::yield();
    });
    const Status status = group->step(ranks, &logits);
    done = true;
    stopper.join();
    EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.to_string();
    // One that comes too early is kept for the step, and one that was heard stops no other.
    group->request_stop();
    ranks[0].chunks = {next_chunk(s, 2, true)};
    EXPECT_EQ(group->step(ranks, &logits).code(), StatusCode::kCancelled);
    EXPECT_TRUE(group->step(ranks, &logits).ok());
  }
}

}  // namespace
}  // namespace fathom
