// For tests of the engine: a scripted language model whose KV is the sequence itself, and listeners that
// record.
//
// Every KV row holds its token, its position and a hash of all tokens up to it. The executor checks the whole
// chain of every sequence it is given, so a block shared wrongly, freed early or written twice is found at
// the next step; and the logits are a function of that hash, so a test can say what must come out.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "engine/executor.h"
#include "engine/request.h"

namespace fathom {

inline constexpr int32_t kScriptedVocab = 50;
inline constexpr KvLayout kScriptedLayout{
    .num_layers = 1, .latent_dim = 4, .rope_dim = 2, .dtype = DType::kF32};

struct ScriptedRow {
  uint64_t hash = 0;
  int32_t token = 0;
  int32_t position = 0;
};

inline uint64_t scripted_hash(uint64_t before, int32_t token) {
  return hash_u64(before, static_cast<uint64_t>(token), 17);
}

inline void scripted_logits(uint64_t hash, std::span<float> logits) {
  for (size_t id = 0; id < logits.size(); ++id) {
    logits[id] = static_cast<float>(4 * unit_double(hash_u64(hash, id)));
  }
}

struct ScriptedOptions {
  int num_ranks = 1;
  ManualClock* clock = nullptr;  // advanced by what a step costs
  double step_seconds = 0;
  double token_seconds = 0;
  // Called in every step, after the rows are written; its status is the step's.
  std::function<Status(std::span<const RankBatch>)> on_step;
  std::set<uint64_t> nan_hashes;                     // sequences whose logits are NaN
  const std::atomic<TimePoint>* progress = nullptr;  // what last_progress() says
};

class ScriptedExecutor final : public Executor {
 public:
  ScriptedExecutor(KvStorage& storage, ScriptedOptions options)
      : storage_(storage), options_(std::move(options)) {}

  int num_ranks() const override { return options_.num_ranks; }
  void request_stop() override { stop_.store(true); }
  bool stop_requested() const { return stop_.load(); }
  TimePoint last_progress() const override {
    return options_.progress != nullptr ? options_.progress->load() : TimePoint();
  }

  Status step(std::span<const RankBatch> ranks, MatrixView<const float>* logits) override {
    EXPECT_EQ(ranks.size(), static_cast<size_t>(options_.num_ranks));
    logits_.clear();
    written_.clear();
    int64_t num_tokens = 0;
    for (const RankBatch& rank : ranks) {
      for (const SequenceChunk& chunk : rank.chunks) {
        run_chunk(chunk);
        num_tokens += static_cast<int64_t>(chunk.tokens.size());
      }
    }
    if (options_.clock != nullptr) {
      const double seconds = options_.step_seconds + options_.token_seconds * static_cast<double>(num_tokens);
      options_.clock->advance(from_seconds(seconds));
    }
    *logits = {logits_.data(), static_cast<int64_t>(logits_.size()) / kScriptedVocab, kScriptedVocab};
    const Status status = options_.on_step ? options_.on_step(ranks) : ok_status();
    stop_.store(false);
    return status;
  }

 private:
  ScriptedRow read(const SequenceChunk& chunk, int32_t position) const {
    ScriptedRow row;
    const BlockId block = chunk.blocks[static_cast<size_t>(position / kBlockTokens)];
    std::memcpy(&row, storage_.row(block, 0, position % kBlockTokens), sizeof row);
    return row;
  }

  void run_chunk(const SequenceChunk& chunk) {
    EXPECT_FALSE(chunk.tokens.empty());
    const auto end = chunk.start + static_cast<int32_t>(chunk.tokens.size());
    ASSERT_GE(static_cast<int64_t>(chunk.blocks.size()), blocks_for_tokens(end));
    uint64_t hash = 1;
    for (int32_t position = 0; position < chunk.start; ++position) {
      const ScriptedRow row = read(chunk, position);
      hash = scripted_hash(hash, row.token);
      ASSERT_TRUE(row.position == position && row.hash == hash)
          << "the KV of position " << position << " is not its own";
    }
    for (int32_t position = chunk.start; position < end; ++position) {
      const int32_t token = chunk.tokens[static_cast<size_t>(position - chunk.start)];
      hash = scripted_hash(hash, token);
      const BlockId block = chunk.blocks[static_cast<size_t>(position / kBlockTokens)];
      std::byte* place = storage_.row(block, 0, position % kBlockTokens);
      ASSERT_TRUE(written_.insert(place).second) << "two writers of one KV row in one step";
      const ScriptedRow row{.hash = hash, .token = token, .position = position};
      std::memcpy(place, &row, sizeof row);
    }
    if (!chunk.want_logits) return;
    logits_.resize(logits_.size() + kScriptedVocab);
    const std::span<float> logits = std::span(logits_).last(kScriptedVocab);
    scripted_logits(hash, logits);
    if (options_.nan_hashes.contains(hash)) logits[3] = std::numeric_limits<float>::quiet_NaN();
  }

  KvStorage& storage_;
  const ScriptedOptions options_;
  std::atomic<bool> stop_{false};
  std::vector<float> logits_;
  std::set<const std::byte*> written_;
};

inline EngineParts scripted_parts(int32_t num_blocks, ScriptedOptions prefill = {},
                                  ScriptedOptions decode = {}) {
  EngineParts parts;
  parts.storage = std::make_unique<KvStorage>(kScriptedLayout, num_blocks);
  parts.prefill = std::make_unique<ScriptedExecutor>(*parts.storage, std::move(prefill));
  parts.decode = std::make_unique<ScriptedExecutor>(*parts.storage, std::move(decode));
  parts.fingerprint = "scripted";
  parts.vocab_size = kScriptedVocab;
  return parts;
}

// What the engine must answer, straight from the definition.
inline std::vector<int32_t> scripted_answer(const GenerationRequest& request, std::span<const int32_t> eos) {
  Sampler sampler(request.sampling, request.choice, request.prompt);
  SamplerWorkspace work;
  std::vector<float> logits(kScriptedVocab);
  std::vector<int32_t> answer;
  uint64_t hash = 1;
  for (const int32_t token : request.prompt) hash = scripted_hash(hash, token);
  const auto stops = [&](int32_t token) {
    const auto& ids = request.stop_token_ids;
    return std::find(ids.begin(), ids.end(), token) != ids.end() ||
           (!request.ignore_eos && std::find(eos.begin(), eos.end(), token) != eos.end());
  };
  while (static_cast<int32_t>(answer.size()) < request.max_new_tokens) {
    scripted_logits(hash, logits);
    const auto position = static_cast<int32_t>(request.prompt.size() + answer.size());
    answer.push_back(sampler.sample(logits, position, work).value().token);
    sampler.record(answer.back());
    hash = scripted_hash(hash, answer.back());
    if (stops(answer.back())) break;
  }
  return answer;
}

// Keeps what it hears, and checks the order of the calls.
class RecordingListener final : public GenerationListener {
 public:
  void on_prefill(int32_t hit_tokens) override {
    EXPECT_FALSE(finished.load());
    EXPECT_EQ(first_hit_tokens, -1) << "on_prefill twice";
    first_hit_tokens = hit_tokens;
  }
  void on_tokens(std::span<const TokenEvent> events) override {
    EXPECT_FALSE(finished.load());
    EXPECT_GE(first_hit_tokens, 0);
    EXPECT_FALSE(events.empty());
    for (const TokenEvent& event : events) tokens.push_back(event.token);
    if (clock != nullptr) times.push_back(clock->now());
  }
  void on_finished(const FinishInfo& i) override {
    EXPECT_FALSE(finished.load()) << "on_finished twice";
    info = i;
    EXPECT_EQ(info.completion_tokens, static_cast<int32_t>(tokens.size()));
    finished.store(true);
  }
  void wait() const {
    while (!finished.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  const Clock* clock = nullptr;
  int32_t first_hit_tokens = -1;
  std::vector<int32_t> tokens;
  std::vector<TimePoint> times;
  FinishInfo info;
  std::atomic<bool> finished{false};
};

inline std::vector<int32_t> random_tokens(Rng& rng, int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.next_below(kScriptedVocab));
  return tokens;
}

}  // namespace fathom
