// Admission, prefill chunks, decode sets and retractions, as pure functions.
#include "engine/plan.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kv/storage.h"

namespace fathom {
namespace {

int32_t new_blocks(const PlanSequence& s, int32_t num_new_tokens) {
  return std::max(0, blocks_for_tokens(int64_t{s.num_stored} + num_new_tokens) - s.num_blocks);
}

// Blocks the sequence is expected to take beyond those it holds.
int64_t expected_blocks(const PlanSequence& s, double growth_fraction) {
  const auto growth = static_cast<int64_t>(std::ceil(growth_fraction * s.max_growth));
  return std::max<int64_t>(0, blocks_for_tokens(s.num_tokens + growth) - s.num_blocks);
}

int32_t oldest_running(const PlanSnapshot& snapshot) {
  for (size_t i = 0; i < snapshot.sequences.size(); ++i) {
    if (snapshot.sequences[i].stage != SequenceStage::kQueued) return static_cast<int32_t>(i);
  }
  return kNoSequence;
}

// The youngest sequence that holds anything, but never the oldest that runs.
int32_t choose_victim(const PlanSnapshot& snapshot) {
  const int32_t oldest = oldest_running(snapshot);
  for (auto i = static_cast<int32_t>(snapshot.sequences.size()) - 1; i > oldest; --i) {
    const PlanSequence& s = snapshot.sequences[static_cast<size_t>(i)];
    if (s.stage != SequenceStage::kQueued && s.num_blocks > 0) return i;
  }
  return kNoSequence;
}

// The largest chunk of `s` within `limit` tokens that ends at a block's or the sequence's end.
int32_t chunk_within(const PlanSequence& s, int32_t limit) {
  const int32_t left = s.num_tokens - s.num_stored;
  if (left <= limit) return left;
  return std::max(0, (s.num_stored + limit) / kBlockTokens * kBlockTokens - s.num_stored);
}

// Shares one rank's budget among its prefilling sequences (`members`, oldest first): tokens of each.
std::vector<int32_t> share_budget(const PlanSnapshot& snapshot, const std::vector<int32_t>& members) {
  std::vector<PrefillQueued> prompts;
  for (const int32_t m : members) {
    const PlanSequence& s = snapshot.sequences[static_cast<size_t>(m)];
    prompts.push_back({s.num_stored, s.num_tokens - s.num_stored});
  }
  PrefillBudget budget;
  budget.tokens_max = snapshot.rank_chunk_tokens;
  budget.align_tokens = kBlockTokens;
  // Where every token costs the same, the tokens bind, and no half of the cost.
  constexpr PrefillCost kTokens{1, 0, 0};
  budget.cost_ns = snapshot.prefill_cost ? snapshot.rank_cost_ns : 2 * budget.tokens_max;
  std::vector<PrefillChunk> chunks;
  cut_forward(prompts, snapshot.prefill_cost.value_or(kTokens), budget, chunks);
  std::vector<int32_t> tokens(members.size());
  for (const PrefillChunk& chunk : chunks)
    tokens[static_cast<size_t>(chunk.prompt)] = static_cast<int32_t>(chunk.tokens);
  return tokens;
}

}  // namespace

std::vector<int32_t> plan_admission(const PlanSnapshot& snapshot) {
  int64_t available = snapshot.blocks_available;
  int32_t num_running = 0;
  for (const PlanSequence& s : snapshot.sequences) {
    if (s.stage == SequenceStage::kQueued) continue;
    ++num_running;
    available -= expected_blocks(s, snapshot.growth_fraction);
  }
  std::vector<int32_t> admitted;
  for (size_t i = 0; i < snapshot.sequences.size() && num_running < snapshot.max_running; ++i) {
    const PlanSequence& s = snapshot.sequences[i];
    if (s.stage != SequenceStage::kQueued) continue;
    const int64_t expected = expected_blocks(s, snapshot.growth_fraction);
    if (num_running > 0 && expected > available) break;
    available -= expected;
    ++num_running;
    admitted.push_back(static_cast<int32_t>(i));
  }
  return admitted;
}

PrefillPlan plan_prefill(const PlanSnapshot& snapshot) {
  CHECK(snapshot.rank_chunk_tokens >= kBlockTokens && snapshot.rank_chunk_tokens % kBlockTokens == 0);
  const int32_t oldest = oldest_running(snapshot);
  int32_t num_decoding = 0;
  std::vector<std::vector<int32_t>> members(static_cast<size_t>(snapshot.num_prefill_ranks));
  for (size_t i = 0; i < snapshot.sequences.size(); ++i) {
    const PlanSequence& s = snapshot.sequences[i];
    if (s.stage == SequenceStage::kDecode) ++num_decoding;
    if (s.stage == SequenceStage::kPrefill && !s.waits) {
      CHECK(s.rank >= 0 && s.rank < snapshot.num_prefill_ranks && s.num_stored < s.num_tokens);
      members[static_cast<size_t>(s.rank)].push_back(static_cast<int32_t>(i));
    }
  }

  PrefillPlan plan;
  // The oldest request is served first and may take the last block; the others leave one for each sequence
  // that decodes, so that the next decode step need not retract what was only just computed.
  int32_t available = snapshot.blocks_available;
  int32_t oldest_chunk = 0;
  std::vector<std::vector<int32_t>> shares;
  for (const std::vector<int32_t>& rank : members) {
    shares.push_back(share_budget(snapshot, rank));
    if (rank.empty() || rank[0] != oldest) continue;
    const PlanSequence& s = snapshot.sequences[static_cast<size_t>(oldest)];
    oldest_chunk = shares.back()[0];
    while (oldest_chunk > 0 && new_blocks(s, oldest_chunk) > available) {
      oldest_chunk = chunk_within(s, oldest_chunk - 1);
    }
    if (oldest_chunk == 0) {
      plan.retract = choose_victim(snapshot);
      return plan;
    }
    available -= new_blocks(s, oldest_chunk);
  }
  available -= num_decoding;

  for (size_t rank = 0; rank < members.size(); ++rank) {
    for (size_t m = 0; m < members[rank].size(); ++m) {
      const int32_t i = members[rank][m];
      if (i == oldest) {
        plan.chunks.push_back({i, oldest_chunk});
        continue;
      }
      const PlanSequence& s = snapshot.sequences[static_cast<size_t>(i)];
      int32_t chunk = shares[rank][m];
      while (chunk > 0 && new_blocks(s, chunk) > available) chunk = chunk_within(s, chunk - 1);
      if (chunk == 0) continue;
      available -= new_blocks(s, chunk);
      plan.chunks.push_back({i, chunk});
    }
  }
  return plan;
}

DecodePlan plan_decode(const PlanSnapshot& snapshot) {
  DecodePlan plan;
  int32_t needed = 0;
  for (size_t i = 0; i < snapshot.sequences.size(); ++i) {
    const PlanSequence& s = snapshot.sequences[i];
    if (s.stage != SequenceStage::kDecode) continue;
    CHECK(s.num_stored + 1 == s.num_tokens);
    needed += new_blocks(s, 1);
    plan.sequences.push_back(static_cast<int32_t>(i));
  }
  if (needed <= snapshot.blocks_available) return plan;
  plan.sequences.clear();
  plan.retract = choose_victim(snapshot);
  return plan;
}

void GrowthEstimate::on_retraction() { fraction_ = std::min(1.0, fraction_ + kPerRetraction); }

void GrowthEstimate::on_decode_step() { fraction_ = std::max(kFloor, fraction_ * kDecayPerStep); }

}  // namespace fathom
