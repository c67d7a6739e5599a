// The published day counts; trace and fault runs hold every block. The same small work through both forms:
// decode_unit and prefill_unit beside engine/plan with the block pool (block_rank), step by step.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "sim/block_rank.h"
#include "sim/decode_unit.h"
#include "sim/prefill_unit.h"

namespace fathom::sim {
namespace {

std::shared_ptr<const KeyChain> keys_of(int request, int32_t tokens) {
  KeyChain keys(root_key("simulated", "simulated", ""));
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = request * 1000 + static_cast<int32_t>(i % 997);
  keys.extend(ids);
  return std::make_shared<const KeyChain>(std::move(keys));
}

// A decode request in both forms. In blocks a step brings `per_step` tokens.
struct Work {
  int32_t kv_tokens = 0, steps = 0;
};

// One decode rank, both forms in step; requests join and, if retracted, come back with what they had.
class BothDecodes {
 public:
  BothDecodes(int32_t num_blocks, int64_t room_tokens, int32_t per_step)
      : per_step_(per_step),
        counted_(1, per_step * static_cast<int32_t>(kMilli), room_tokens * kMilli),
        blocks_(num_blocks, 4096, 1) {}

  void join(int request, const Work& work) {
    DecodeJob job;
    job.joined_ticks = static_cast<uint32_t>(request) + 1;  // age: the newest is retracted first
    job.kv_milli = work.kv_tokens * static_cast<int32_t>(kMilli);
    job.steps = work.steps;
    job.output_tokens = request;
    counted_.add(0, job);
    auto sequence = std::make_unique<BlockSequence>();
    sequence->request = request;
    sequence->age = static_cast<uint64_t>(request);
    sequence->stage = SequenceStage::kHandover;
    sequence->prompt_tokens = sequence->num_tokens = work.kv_tokens;
    sequence->left_tokens = work.steps * per_step_;
    sequence->keys = keys_of(request, 0);
    BlockSequence& added = blocks_.add(std::move(sequence));
    ASSERT_TRUE(blocks_.can_reserve(work.kv_tokens));
    blocks_.reserve_all(added);
    added.stage = SequenceStage::kDecode;
    added.num_stored = added.num_tokens;
  }

  struct Step {
    std::vector<std::pair<int, Work>> counted_retracted, block_retracted;  // newest first
    std::set<int> counted_finished, block_finished;
    int64_t counted_requests = 0, block_requests = 0;
    int64_t counted_kv = 0, block_kv = 0, block_tokens_held = 0;  // while the step runs
  };

  Step step() {
    Step out;
    ++now_ns_;
    std::vector<DecodeJob> retracted;
    const StepLoad load = counted_.begin_step(now_ns_ * kTickNs, retracted);
    for (const DecodeJob& job : retracted)
      out.counted_retracted.push_back(
          {job.output_tokens, {job.kv_milli / static_cast<int32_t>(kMilli), job.steps}});
    out.counted_requests = load.requests;
    out.counted_kv = load.kv_milli / kMilli;

    std::vector<BlockSequence*> run, victims;
    blocks_.plan_decode_step(run, victims);
    for (const BlockSequence* victim : victims)
      out.block_retracted.push_back({victim->request, {victim->num_tokens, victim->left_tokens / per_step_}});
    for (const auto& [request, work] : out.block_retracted) blocks_.erase(request, 0);
    out.block_requests = static_cast<int64_t>(run.size());
    out.block_kv = blocks_.kv_tokens();
    out.block_tokens_held = int64_t{blocks_.num_blocks_used()} * kBlockTokens;

    std::vector<FinishedJob> finished;
    counted_.end_step(finished);
    for (const FinishedJob& job : finished) out.counted_finished.insert(job.output_tokens);
    for (BlockSequence* sequence : run) {
      for (int32_t i = 0; i < per_step_; ++i) EXPECT_TRUE(blocks_.grow(*sequence)) << sequence->request;
      sequence->left_tokens -= per_step_;
      if (sequence->left_tokens == 0) out.block_finished.insert(sequence->request);
    }
    for (const int request : out.block_finished) blocks_.erase(request, 0);
    EXPECT_TRUE(blocks_.check().ok()) << blocks_.check().message();
    return out;
  }

  bool has_room(int32_t tokens) const { return blocks_.can_reserve(tokens); }
  bool idle() const { return counted_.idle() && blocks_.num_sequences() == 0; }

 private:
  const int32_t per_step_;
  DecodeUnit counted_;
  BlockRank blocks_;
  int64_t now_ns_ = 0;
};

Work random_work(Rng& rng, int32_t align) {
  return {static_cast<int32_t>(1 + rng.next_below(24)) * 64 - static_cast<int32_t>(rng.next_below(align)),
          static_cast<int32_t>(1 + rng.next_below(40))};
}

// Where every step fills whole blocks nothing is rounded: requests, tokens, blocks, retractions with their
// order and finishes are equal in every step, under memory that is short.
TEST(CountOnly, DecodeEqualsTheBlockFormUnderMemoryPressure) {
  int64_t retractions = 0, finishes = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    constexpr int32_t kBlocks = 80;
    BothDecodes both(kBlocks, kBlocks * 64, 64);
    std::map<int, Work> away;  // retracted, by age
    int next = 0;
    for (int step = 0; step < 400 && (next < 40 || !away.empty() || !both.idle()); ++step) {
      if (!away.empty() && both.has_room(away.begin()->second.kv_tokens + 64)) {
        both.join(away.begin()->first, away.begin()->second);
        away.erase(away.begin());
      } else if (away.empty() && next < 40) {
        const Work work = random_work(rng, 1);
        if (work.kv_tokens + work.steps * 64 < kBlocks * 64 && both.has_room(work.kv_tokens)) {
          both.join(next++, work);
        }
      }
      const BothDecodes::Step at = both.step();
      ASSERT_EQ(at.counted_requests, at.block_requests) << "seed " << seed << " step " << step;
      ASSERT_EQ(at.counted_kv, at.block_kv) << "seed " << seed << " step " << step;
      ASSERT_EQ(at.counted_kv, at.block_tokens_held) << "seed " << seed << " step " << step;
      ASSERT_EQ(at.counted_finished, at.block_finished) << "seed " << seed << " step " << step;
      ASSERT_EQ(at.counted_retracted.size(), at.block_retracted.size())
          << "seed " << seed << " step " << step;
      for (size_t i = 0; i < at.counted_retracted.size(); ++i) {
        const auto& [request, work] = at.counted_retracted[i];
        ASSERT_EQ(request, at.block_retracted[i].first) << "seed " << seed << " step " << step;
        ASSERT_EQ(work.kv_tokens, at.block_retracted[i].second.kv_tokens);
        ASSERT_EQ(work.steps, at.block_retracted[i].second.steps);
        away[request] = work;
      }
      retractions += static_cast<int64_t>(at.counted_retracted.size());
      finishes += static_cast<int64_t>(at.counted_finished.size());
    }
    EXPECT_TRUE(both.idle()) << "seed " << seed;
  }
  EXPECT_GT(retractions, 20);
  EXPECT_EQ(finishes, 20 * 40);
}

// Token by token, with room for all: sequences, tokens and finishes are equal in every step; the blocks held
// are the tokens rounded up, less than one block more for each request.
TEST(CountOnly, DecodeEqualsTheBlockFormTokenByToken) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Rng rng(seed);
    BothDecodes both(4000, 4000 * 64, 1);
    int next = 0;
    for (int step = 0; step < 200; ++step) {
      for (uint64_t i = rng.next_below(3); i > 0 && next < 60; --i) both.join(next++, random_work(rng, 64));
      const BothDecodes::Step at = both.step();
      ASSERT_TRUE(at.counted_retracted.empty() && at.block_retracted.empty());
      ASSERT_EQ(at.counted_requests, at.block_requests) << "seed " << seed << " step " << step;
      ASSERT_EQ(at.counted_kv, at.block_kv) << "seed " << seed << " step " << step;
      ASSERT_EQ(at.counted_finished, at.block_finished) << "seed " << seed << " step " << step;
      ASSERT_GE(at.block_tokens_held, at.block_kv);
      ASSERT_LE(at.block_tokens_held, at.block_kv + 63 * at.block_requests);
    }
    EXPECT_TRUE(both.idle()) << "seed " << seed;
  }
}

// Token by token and short of memory, rounding tells the forms apart: N blocks are full no later than N * 64
// tokens and no earlier than 63 tokens less for each of n requests. So the block form retracts at the latest
// when the count-only form with a room of 64 N does, and not before the one with 64 N - 63 n: at most 63
// steps earlier, as every step brings n tokens. The first to go is the same.
TEST(CountOnly, RoundingMovesARetractionByLessThanABlockOfSteps) {
  int earlier_max = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Rng rng(seed);
    constexpr int32_t kBlocks = 120;
    const int num = 3 + static_cast<int>(rng.next_below(4));
    std::vector<Work> work;
    for (int i = 0; i < num; ++i) work.push_back({random_work(rng, 64).kv_tokens % 1200 + 1, 3000});
    int first_counted = -1, first_block = -1, who_counted = -1, who_block = -1;
    const auto run = [&](int64_t room_tokens, int& first, int& who, bool blocks) {
      BothDecodes both(blocks ? kBlocks : 4000, room_tokens, 1);
      for (int i = 0; i < num; ++i) both.join(i, work[static_cast<size_t>(i)]);
      for (int step = 0; first < 0 && step < 3000; ++step) {
        const BothDecodes::Step at = both.step();
        const auto& retracted = blocks ? at.block_retracted : at.counted_retracted;
        if (!retracted.empty()) first = step, who = retracted.front().first;
      }
    };
    run(kBlocks * 64, first_counted, who_counted, false);
    run(4000 * 64, first_block, who_block, true);
    ASSERT_GE(first_block, 0) << "seed " << seed;
    EXPECT_LE(first_block, first_counted) << "seed " << seed;
    EXPECT_GE(first_block, first_counted - 63) << "seed " << seed;
    EXPECT_EQ(who_block, who_counted) << "seed " << seed;
    int first_low = -1, who_low = -1;
    run(kBlocks * 64 - 63 * num, first_low, who_low, false);
    EXPECT_LE(first_low, first_block) << "seed " << seed;
    earlier_max = std::max(earlier_max, first_counted - first_block);
  }
  std::printf("block rounding retracts at most %d steps earlier\n", earlier_max);
  EXPECT_GT(earlier_max, 0);
}

const PrefillCost kCost{1750, 0.17, 0};
constexpr int32_t kChunkMax = 1 << 15;

// One prefill rank in both forms. `cached`: whole blocks that an earlier prompt left there.
class BothPrefills {
 public:
  BothPrefills(int64_t budget_ns, const PrefillCost& cost)
      : cost_(cost), counted_(1, cost, budget_of(budget_ns)), blocks_(20'000, kChunkMax, budget_ns) {}

  void add(int request, int32_t tokens, int32_t cached) {
    counted_.add(0, {0, tokens, cached, request, cached});
    add_blocks(request, request, tokens);
  }
  // Leaves the first `tokens` of a prompt in the block form's cache, as an earlier turn did.
  void warm(int request, int32_t tokens) {
    add_blocks(1000 + request, request, tokens + 1);
    for (std::vector<BlockRank::Chunk> chunks; blocks_.num_sequences() > 0;) {
      blocks_.plan_prefill_step(cost_, chunks);
      for (const BlockRank::Chunk& chunk : chunks) {
        if (blocks_.finish_chunk(chunk)) blocks_.erase(chunk.request, 0);
      }
    }
  }

  struct Forward {
    int64_t counted_tokens = 0, block_tokens = 0;
    std::vector<int> counted_finished, block_finished;
  };
  Forward forward() {
    Forward out;
    out.counted_tokens = counted_.begin_forward().tokens_sum;
    std::vector<PrefillJob> finished;
    counted_.end_forward(finished);
    for (const PrefillJob& job : finished) out.counted_finished.push_back(job.output_tokens);
    std::vector<BlockRank::Chunk> chunks;
    out.block_tokens = blocks_.plan_prefill_step(cost_, chunks).tokens;
    for (const BlockRank::Chunk& chunk : chunks) {
      if (!blocks_.finish_chunk(chunk)) continue;
      out.block_finished.push_back(chunk.request);
      blocks_.erase(chunk.request, 0);
    }
    return out;
  }
  bool idle() const { return counted_.empty() && blocks_.num_sequences() == 0; }

 private:
  static PrefillBudget budget_of(int64_t budget_ns) {
    PrefillBudget budget;
    budget.cost_ns = budget_ns;
    budget.tokens_max = kChunkMax;
    return budget;
  }
  void add_blocks(int request, int prompt, int32_t tokens) {
    auto sequence = std::make_unique<BlockSequence>();
    sequence->request = request;
    sequence->age = next_age_++;
    sequence->prompt_tokens = sequence->num_tokens = tokens;
    sequence->left_tokens = 1;
    sequence->keys = keys_of(prompt, tokens);
    blocks_.add(std::move(sequence));
  }

  const PrefillCost cost_;
  PrefillUnit counted_;
  BlockRank blocks_;
  uint64_t next_age_ = 0;
};

// With hits, alone on a rank or several at once: the same tokens of the same prompts in every forward, each
// prompt done in the same one.
TEST(CountOnly, PrefillCutsEqualTheBlockForm) {
  int cuts = 0, together = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Rng rng(seed);
    const auto budget_ns = static_cast<int64_t>(2'000'000 + rng.next_below(8'000'000));
    BothPrefills both(budget_ns, kCost);
    int request = 0;
    for (int wave = 0; wave < 4; ++wave) {
      std::vector<std::pair<int32_t, int32_t>> prompts(1 + rng.next_below(4));
      for (size_t i = 0; i < prompts.size(); ++i) {
        const auto tokens = static_cast<int32_t>(65 + rng.next_below(rng.next_below(2) == 0 ? 20'000 : 1000));
        const int32_t cached = static_cast<int32_t>(rng.next_below(static_cast<uint64_t>(tokens))) / 64 * 64;
        prompts[i] = {tokens, cached};
        if (cached > 0) both.warm(request + static_cast<int>(i), cached);
      }
      for (const auto& [tokens, cached] : prompts) both.add(request++, tokens, cached);
      for (int forward = 0; !both.idle(); ++forward) {
        const BothPrefills::Forward at = both.forward();
        cuts += at.counted_finished.empty();
        together += at.counted_finished.size() > 1;
        ASSERT_EQ(at.counted_tokens, at.block_tokens) << "seed " << seed << " forward " << forward;
        ASSERT_EQ(at.counted_finished, at.block_finished) << "seed " << seed << " forward " << forward;
      }
    }
  }
  EXPECT_GT(cuts, 50);
  EXPECT_GT(together, 20);
}

// Short prompts do not wait behind long ones, and long ones go on: whatever is queued, no prompt ends later
// than twice the forwards of what lay before it, and one.
TEST(CountOnly, NoPromptWaitsForMoreThanTwiceWhatLayBeforeIt) {
  constexpr int32_t kPerForward = 4096;
  const PrefillCost flat{1000, 1e-9, 0};
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    BothPrefills both(kPerForward * 1000 + 500, flat);
    std::vector<int64_t> before;  // tokens up to and with this prompt
    int64_t total = 0, computed = 0;
    for (int request = 0; request < 12; ++request) {
      const auto tokens = static_cast<int32_t>(65 + rng.next_below(6000));
      both.add(request, tokens, 0);
      before.push_back(total += tokens);
    }
    for (int forward = 1; !both.idle(); ++forward) {
      const BothPrefills::Forward at = both.forward();
      ASSERT_EQ(at.counted_tokens, at.block_tokens) << "seed " << seed << " forward " << forward;
      computed += at.counted_tokens;
      for (const int request : at.counted_finished)
        EXPECT_LE(forward, 2 * (before[static_cast<size_t>(request)] / (kPerForward - 64) + 1) + 1) << seed;
    }
    EXPECT_EQ(computed, total);
  }
}

}  // namespace
}  // namespace fathom::sim
