// The batch planner's rules by name on random snapshots, and that every request ends when memory is short.
#include "engine/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/rng.h"
#include "kv/storage.h"

namespace fathom {
namespace {

int32_t blocks_to_store(const PlanSequence& s, int32_t num_new) {
  return std::max(0, blocks_for_tokens(s.num_stored + num_new) - s.num_blocks);
}

PlanSequence random_sequence(Rng& rng, const PlanSnapshot& snapshot) {
  PlanSequence s;
  s.stage = static_cast<SequenceStage>(rng.next_below(4));
  s.num_tokens = 1 + static_cast<int32_t>(rng.next_below(700));
  s.max_growth = 1 + static_cast<int32_t>(rng.next_below(300));
  switch (s.stage) {
    case SequenceStage::kQueued:
      s.num_blocks = static_cast<int32_t>(rng.next_below(2));
      break;
    case SequenceStage::kPrefill:
      s.rank = static_cast<int32_t>(rng.next_below(snapshot.num_prefill_ranks));
      s.num_stored =
          static_cast<int32_t>(rng.next_below((s.num_tokens - 1) / kBlockTokens + 1)) * kBlockTokens;
      s.num_blocks = s.num_stored / kBlockTokens;
      s.waits = rng.next_below(6) == 0;
      break;
    case SequenceStage::kHandover:
    case SequenceStage::kDecode:
      s.num_stored = s.num_tokens - 1;
      s.num_blocks = blocks_for_tokens(s.num_stored);
      break;
  }
  return s;
}

PlanSnapshot random_snapshot(Rng& rng) {
  PlanSnapshot snapshot;
  snapshot.num_prefill_ranks = 1 + static_cast<int32_t>(rng.next_below(3));
  snapshot.rank_chunk_tokens = kBlockTokens * (1 + static_cast<int32_t>(rng.next_below(8)));
  snapshot.max_running = 1 + static_cast<int32_t>(rng.next_below(12));
  snapshot.growth_fraction = rng.next_double();
  snapshot.blocks_available = static_cast<int32_t>(rng.next_below(rng.next_below(2) == 0 ? 6 : 60));
  const uint64_t num_sequences = rng.next_below(12);
  for (uint64_t i = 0; i < num_sequences; ++i) {
    snapshot.sequences.push_back(random_sequence(rng, snapshot));
    if (snapshot.sequences.back().waits && i == 0) snapshot.sequences.back().waits = false;
  }
  return snapshot;
}

int32_t oldest_running(const PlanSnapshot& snapshot) {
  for (size_t i = 0; i < snapshot.sequences.size(); ++i) {
    if (snapshot.sequences[i].stage != SequenceStage::kQueued) return static_cast<int32_t>(i);
  }
  return kNoSequence;
}

void check_victim(const PlanSnapshot& snapshot, int32_t victim) {
  const int32_t oldest = oldest_running(snapshot);
  EXPECT_NE(victim, oldest) << "the_oldest_is_never_retracted";
  const auto holds = [&](size_t i) {
    return snapshot.sequences[i].stage != SequenceStage::kQueued && snapshot.sequences[i].num_blocks > 0;
  };
  EXPECT_TRUE(holds(victim));
  for (size_t i = victim + 1; i < snapshot.sequences.size(); ++i) {
    EXPECT_FALSE(holds(i)) << "the youngest holder first";
  }
}

void check_prefill(const PlanSnapshot& snapshot) {
  const PrefillPlan plan = plan_prefill(snapshot);
  const int32_t oldest = oldest_running(snapshot);
  const bool oldest_prefills = oldest != kNoSequence &&
                               snapshot.sequences[oldest].stage == SequenceStage::kPrefill &&
                               !snapshot.sequences[oldest].waits;
  if (plan.retract != kNoSequence) {
    EXPECT_TRUE(plan.chunks.empty());
    check_victim(snapshot, plan.retract);
    ASSERT_TRUE(oldest_prefills) << "retract_only_when_blocks_are_short";
    const PlanSequence& s = snapshot.sequences[oldest];
    const int32_t least = std::min(kBlockTokens, s.num_tokens - s.num_stored);
    EXPECT_GT(blocks_to_store(s, least), snapshot.blocks_available) << "retract_only_when_blocks_are_short";
    return;
  }
  std::vector<int32_t> rank_tokens(snapshot.num_prefill_ranks);
  std::map<int32_t, int32_t> chunk_of;
  int32_t needed = 0;
  for (const PlannedChunk& chunk : plan.chunks) {
    const PlanSequence& s = snapshot.sequences[chunk.sequence];
    EXPECT_EQ(s.stage, SequenceStage::kPrefill);
    EXPECT_FALSE(s.waits);
    EXPECT_TRUE(chunk_of.emplace(chunk.sequence, chunk.num_tokens).second);
    const int32_t end = s.num_stored + chunk.num_tokens;
    EXPECT_TRUE(chunk.num_tokens > 0 &&
                (end == s.num_tokens || (end < s.num_tokens && end % kBlockTokens == 0)))
        << "chunks_are_blocks_or_the_rest";
    rank_tokens[s.rank] += chunk.num_tokens;
    needed += blocks_to_store(s, chunk.num_tokens);
  }
  EXPECT_LE(needed, snapshot.blocks_available) << "a_step_fits_the_blocks";
  for (const int32_t tokens : rank_tokens) {
    EXPECT_LE(tokens, snapshot.rank_chunk_tokens) << "a_step_fits_the_rank";
  }
  if (oldest_prefills) {
    const bool alone = std::none_of(
        snapshot.sequences.begin() + oldest + 1, snapshot.sequences.end(),
        [](const PlanSequence& s) { return s.stage != SequenceStage::kQueued && s.num_blocks > 0; });
    if (!alone) {
      EXPECT_TRUE(chunk_of.contains(oldest)) << "the_oldest_always_gets_its_step";
    }
  }
  if (snapshot.blocks_available < 55) return;  // memory may decide below
  for (int32_t rank = 0; rank < snapshot.num_prefill_ranks; ++rank) {
    for (size_t i = 0; i < snapshot.sequences.size(); ++i) {
      const PlanSequence& s = snapshot.sequences[i];
      if (s.stage != SequenceStage::kPrefill || s.rank != rank || s.waits) continue;
      const int32_t half = std::min(s.num_tokens - s.num_stored, snapshot.rank_chunk_tokens / 2);
      EXPECT_GE(chunk_of[i], half) << "every_rank_serves_its_oldest";
      break;
    }
  }
}

void check_decode(const PlanSnapshot& snapshot) {
  const DecodePlan plan = plan_decode(snapshot);
  std::vector<int32_t> decoding;
  int32_t needed = 0;
  for (size_t i = 0; i < snapshot.sequences.size(); ++i) {
    if (snapshot.sequences[i].stage != SequenceStage::kDecode) continue;
    decoding.push_back(static_cast<int32_t>(i));
    needed += blocks_to_store(snapshot.sequences[i], 1);
  }
  if (needed <= snapshot.blocks_available) {
    EXPECT_EQ(plan.retract, kNoSequence) << "retract_only_when_blocks_are_short";
    EXPECT_EQ(plan.sequences, decoding) << "the_oldest_always_gets_its_step";
  } else {
    EXPECT_TRUE(plan.sequences.empty()) << "a_step_fits_the_blocks";
    if (plan.retract != kNoSequence) check_victim(snapshot, plan.retract);
  }
}

void check_admission(const PlanSnapshot& snapshot) {
  const std::vector<int32_t> admitted = plan_admission(snapshot);
  std::vector<int32_t> queued;
  int32_t num_running = 0;
  double available = snapshot.blocks_available;
  const auto expect = [&](const PlanSequence& s) {
    const double tokens = s.num_tokens + std::ceil(snapshot.growth_fraction * s.max_growth);
    return std::max(0.0, std::ceil(tokens / kBlockTokens) - s.num_blocks);
  };
  for (size_t i = 0; i < snapshot.sequences.size(); ++i) {
    if (snapshot.sequences[i].stage == SequenceStage::kQueued) {
      queued.push_back(static_cast<int32_t>(i));
    } else {
      ++num_running;
      available -= expect(snapshot.sequences[i]);
    }
  }
  ASSERT_LE(admitted.size(), queued.size());
  EXPECT_TRUE(std::equal(admitted.begin(), admitted.end(), queued.begin())) << "admission_is_in_order";
  EXPECT_LE(num_running + static_cast<int32_t>(admitted.size()), std::max(num_running, snapshot.max_running));
  if (num_running == 0 && !queued.empty()) {
    EXPECT_FALSE(admitted.empty()) << "an_empty_engine_admits";
  }
  for (size_t k = 0; k < admitted.size(); ++k) {
    available -= expect(snapshot.sequences[admitted[k]]);
    if (num_running + k > 0) {
      EXPECT_GE(available, 0) << "admission_expects_growth";
    }
  }
}

TEST(Plan, random_snapshots_keep_every_rule) {
  for (uint64_t seed = 1; seed <= 20000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const PlanSnapshot snapshot = random_snapshot(rng);
    check_prefill(snapshot);
    check_decode(snapshot);
    check_admission(snapshot);
    if (HasFailure()) return;
  }
}

TEST(Plan, a_short_prompt_does_not_wait_for_a_long_one) {
  PlanSnapshot snapshot{.blocks_available = 1000, .max_running = 8, .rank_chunk_tokens = 512};
  snapshot.sequences = {{.stage = SequenceStage::kPrefill, .num_tokens = 10000},
                        {.stage = SequenceStage::kPrefill, .num_tokens = 5000},
                        {.stage = SequenceStage::kPrefill, .num_tokens = 40}};
  const std::vector<PlannedChunk> want = {{0, 256}, {1, 192}, {2, 40}};
  EXPECT_EQ(plan_prefill(snapshot).chunks, want);
}

// A toy engine: no sharing, tokens appear as the plans say. Whatever the memory, every request ends, and the
// oldest request running is never pushed back.
class ToyEngine {
 public:
  ToyEngine(uint64_t seed, int32_t num_blocks) : rng_(seed), total_(num_blocks) {
    snapshot_.num_prefill_ranks = 2;
    snapshot_.max_running = 6;
    snapshot_.rank_chunk_tokens = 128;
  }
  void run(int num_requests) {
    for (int i = 0; i < num_requests; ++i) {
      const auto tokens = 1 + static_cast<int32_t>(rng_.next_below(total_ * kBlockTokens / 2));
      const auto growth = 1 + static_cast<int32_t>(rng_.next_below(total_ * kBlockTokens / 2));
      snapshot_.sequences.push_back({.num_tokens = tokens, .max_growth = growth});
    }
    for (int round = 0; !snapshot_.sequences.empty(); ++round) {
      ASSERT_LT(round, 100000) << "no end";
      admit();
      prefill();
      decode();
      if (testing::Test::HasFailure()) return;
    }
  }
  int num_retractions = 0;

 private:
  void refresh() {
    snapshot_.blocks_available = total_;
    snapshot_.growth_fraction = growth_.fraction();
    for (const PlanSequence& s : snapshot_.sequences) snapshot_.blocks_available -= s.num_blocks;
    ASSERT_GE(snapshot_.blocks_available, 0);
  }
  void admit() {
    refresh();
    for (const int32_t i : plan_admission(snapshot_)) {
      snapshot_.sequences[i].stage = SequenceStage::kPrefill;
      snapshot_.sequences[i].rank = static_cast<int32_t>(rng_.next_below(2));
    }
  }
  void retract(int32_t i) {
    PlanSequence& s = snapshot_.sequences[i];
    s.stage = SequenceStage::kQueued;
    s.num_stored = s.num_blocks = 0;
    ++num_retractions;
    growth_.on_retraction();
  }
  void store(PlanSequence& s, int32_t num_new) {
    s.num_stored += num_new;
    s.num_blocks = blocks_for_tokens(s.num_stored);
  }
  bool grow(PlanSequence& s) {  // one token is sampled; false at the end
    ++s.num_tokens;
    return --s.max_growth > 0;
  }
  void prefill() {
    for (;;) {
      refresh();
      const PrefillPlan plan = plan_prefill(snapshot_);
      if (plan.retract != kNoSequence) {
        retract(plan.retract);
        continue;
      }
      std::vector<int32_t> ended;
      for (const auto& [i, num_tokens] : plan.chunks) {
        PlanSequence& s = snapshot_.sequences[i];
        store(s, num_tokens);
        if (s.num_stored < s.num_tokens) continue;
        s.stage = SequenceStage::kDecode;
        if (!grow(s)) ended.push_back(i);
      }
      std::sort(ended.rbegin(), ended.rend());
      for (const int32_t i : ended) snapshot_.sequences.erase(snapshot_.sequences.begin() + i);
      return;
    }
  }
  void decode() {
    for (;;) {
      refresh();
      const DecodePlan plan = plan_decode(snapshot_);
      if (plan.retract != kNoSequence) {
        retract(plan.retract);
        continue;
      }
      growth_.on_decode_step();
      for (auto it = plan.sequences.rbegin(); it != plan.sequences.rend(); ++it) {
        store(snapshot_.sequences[*it], 1);
        if (!grow(snapshot_.sequences[*it])) snapshot_.sequences.erase(snapshot_.sequences.begin() + *it);
      }
      return;
    }
  }

  Rng rng_;
  const int32_t total_;
  PlanSnapshot snapshot_;
  GrowthEstimate growth_;
};

TEST(Plan, every_request_ends_under_memory_pressure) {
  int num_retractions = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ToyEngine engine(seed, 4 + static_cast<int32_t>(seed % 13));
    engine.run(20);
    num_retractions += engine.num_retractions;
    if (HasFailure()) return;
  }
  EXPECT_GT(num_retractions, 100);
}

}  // namespace
}  // namespace fathom
