// Sequences of one rank over the servers' KV cache and step plans, and who writes into which block.
#include "sim/block_rank.h"

#include <algorithm>

namespace fathom::sim {
namespace {

constexpr int32_t kSequencesMax = 4096;

int32_t blocks_for(int32_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

auto find_in(std::vector<std::unique_ptr<BlockSequence>>& list, int request, uint32_t epoch) {
  return std::find_if(list.begin(), list.end(), [&](const auto& sequence) {
    return sequence->request == request && sequence->epoch == epoch;
  });
}

}  // namespace

BlockRank::BlockRank(int32_t num_blocks, int32_t chunk_tokens, int64_t budget_ns)
    : cache_(num_blocks, 2, "simulated", "simulated"),
      chunk_tokens_(chunk_tokens),
      budget_ns_(budget_ns),
      writer_(num_blocks, -1) {}

BlockSequence& BlockRank::add(std::unique_ptr<BlockSequence> sequence) {
  if (sequence->loading) return *loading_.emplace_back(std::move(sequence));
  const auto at = std::upper_bound(sequences_.begin(), sequences_.end(), sequence->age,
                                   [](uint64_t age, const auto& other) { return age < other->age; });
  return **sequences_.insert(at, std::move(sequence));
}

void BlockRank::loaded(int request, uint32_t epoch) {
  const auto found = find_in(loading_, request, epoch);
  if (found == loading_.end()) return;  // aborted meanwhile
  std::unique_ptr<BlockSequence> sequence = std::move(*found);
  loading_.erase(found);
  sequence->loading = false;
  add(std::move(sequence));
}

BlockSequence* BlockRank::find(int request, uint32_t epoch) {
  for (auto* const list : {&sequences_, &loading_}) {
    const auto found = find_in(*list, request, epoch);
    if (found != list->end()) return found->get();
  }
  return nullptr;
}

void BlockRank::erase(int request, uint32_t epoch) {
  const auto loading = find_in(loading_, request, epoch);
  if (loading != loading_.end()) {
    loading_.erase(loading);
    return;
  }
  const auto found = find_in(sequences_, request, epoch);
  CHECK(found != sequences_.end());
  release_blocks(**found);
  sequences_.erase(found);
}

void BlockRank::clear() {
  for (const auto& sequence : sequences_) release_blocks(*sequence);
  sequences_.clear();
  loading_.clear();
  cache_.flush();
}

PlanSnapshot BlockRank::snapshot() const {
  PlanSnapshot s;
  s.blocks_available = cache_.num_available();
  s.max_running = kSequencesMax;
  s.rank_chunk_tokens = chunk_tokens_;
  s.growth_fraction = growth_.fraction();
  for (const auto& sequence : sequences_) {
    PlanSequence p;
    p.stage = sequence->stage;
    // In decode the newest token is known and its KV not yet stored.
    p.num_tokens = sequence->num_tokens + (sequence->stage == SequenceStage::kDecode);
    p.num_stored = sequence->num_stored;
    p.num_blocks = static_cast<int32_t>(sequence->blocks.size());
    // A prefill rank hands its sequences over; only a decode rank sees them grow.
    p.max_growth = sequence->stage == SequenceStage::kDecode ? sequence->left_tokens : 0;
    s.sequences.push_back(p);
  }
  return s;
}

void BlockRank::set_writer(BlockId block, int request) {
  int& writer = writer_[static_cast<size_t>(block)];
  if (request >= 0 && writer >= 0 && writer != request) {
    violation_ =
        fmt::format("block {} has two writers: requests {} and {}", static_cast<int>(block), writer, request);
  }
  writer = request;
}

bool BlockRank::reserve(BlockSequence& sequence, int32_t count) {
  const size_t before = sequence.blocks.size();
  if (count > 0 && !cache_.reserve(count, kAccount, sequence.blocks)) return false;
  for (size_t i = before; i < sequence.blocks.size(); ++i) set_writer(sequence.blocks[i], sequence.request);
  return true;
}

void BlockRank::release_blocks(BlockSequence& sequence) {
  for (size_t i = static_cast<size_t>(sequence.published); i < sequence.blocks.size(); ++i) {
    set_writer(sequence.blocks[i], -1);
  }
  if (!sequence.blocks.empty()) cache_.release(kAccount, sequence.blocks);
  sequence.published = 0;
  sequence.num_stored = 0;
}

void BlockRank::start(BlockSequence& sequence) {
  sequence.stage = SequenceStage::kPrefill;
  // At least the last token is computed: it gives the first answer token.
  const int32_t blocks_max = std::min(sequence.keys->size(), (sequence.num_tokens - 1) / kBlockTokens);
  sequence.published = cache_.extend_match(*sequence.keys, blocks_max, kAccount, sequence.blocks);
  // What the store was asked for and the memory has not got meanwhile. Without room for it, it is computed.
  const int32_t read = std::min(sequence.store_blocks, blocks_max) - sequence.published;
  if (read > 0 && reserve(sequence, read)) {
    publish_up_to(sequence, sequence.published + read);
    sequence.num_read = read * kBlockTokens;
  }
  sequence.num_stored = sequence.num_cached = sequence.published * kBlockTokens;
}

void BlockRank::publish_up_to(BlockSequence& sequence, int32_t num_blocks) {
  while (sequence.published < num_blocks) {
    set_writer(sequence.blocks[static_cast<size_t>(sequence.published)], -1);
    cache_.publish(*sequence.keys, sequence.published, kAccount, sequence.blocks);
    ++sequence.published;
  }
}

RankLoad BlockRank::plan_prefill_step(const PrefillCost& cost, std::vector<Chunk>& chunks) {
  chunks.clear();
  for (const int32_t i : plan_admission(snapshot())) start(*sequences_[static_cast<size_t>(i)]);
  const auto planned = [&] {
    PlanSnapshot now = snapshot();
    now.prefill_cost = cost;
    now.rank_cost_ns = budget_ns_;
    return plan_prefill(now);
  };
  PrefillPlan plan = planned();
  while (plan.retract != kNoSequence) {
    BlockSequence& victim = *sequences_[static_cast<size_t>(plan.retract)];
    // Blocks of a hand-over are being read: wait for it, it ends by itself.
    if (victim.stage == SequenceStage::kHandover) return {};
    release_blocks(victim);
    victim.stage = SequenceStage::kQueued;
    plan = planned();
  }
  RankLoad load;
  for (const PlannedChunk& chunk : plan.chunks) {
    BlockSequence& sequence = *sequences_[static_cast<size_t>(chunk.sequence)];
    const int32_t need =
        blocks_for(sequence.num_stored + chunk.num_tokens) - static_cast<int32_t>(sequence.blocks.size());
    CHECK(reserve(sequence, need));
    load += {1, chunk.num_tokens, cost.cost_ns(chunk.num_tokens, sequence.num_stored)};
    chunks.push_back({sequence.request, sequence.epoch, chunk.num_tokens});
  }
  return load;
}

bool BlockRank::finish_chunk(const Chunk& chunk) {
  BlockSequence* sequence = find(chunk.request, chunk.epoch);
  if (sequence == nullptr || sequence->stage != SequenceStage::kPrefill) return false;  // aborted meanwhile
  sequence->num_stored += chunk.tokens;
  publish_up_to(*sequence, std::min(sequence->num_stored / kBlockTokens, sequence->keys->size()));
  return sequence->num_stored == sequence->num_tokens;
}

RankLoad BlockRank::prefill_load(const PrefillCost& cost) const {
  RankLoad load;
  for (const auto& sequence : sequences_) {
    if (sequence->stage != SequenceStage::kQueued && sequence->stage != SequenceStage::kPrefill) continue;
    const int64_t left = sequence->num_tokens - sequence->num_stored;
    load += {1, left, cost.cost_ns(left, sequence->num_stored)};
  }
  for (const auto& sequence : loading_) {
    const int64_t read = int64_t{sequence->store_blocks} * kBlockTokens;
    const int64_t left = std::max<int64_t>(1, sequence->num_tokens - read);
    load += {1, left, cost.cost_ns(left, read)};
  }
  return load;
}

void BlockRank::plan_decode_step(std::vector<BlockSequence*>& run, std::vector<BlockSequence*>& retract) {
  run.clear();
  DecodePlan plan = plan_decode(snapshot());
  while (plan.retract != kNoSequence) {
    BlockSequence& victim = *sequences_[static_cast<size_t>(plan.retract)];
    // Reserved blocks are being written to: wait for the hand-over, it ends by itself.
    if (victim.stage == SequenceStage::kHandover) return;
    release_blocks(victim);
    victim.stage = SequenceStage::kQueued;  // out of the next plan; its owner aborts it
    retract.push_back(&victim);
    growth_.on_retraction();
    plan = plan_decode(snapshot());
  }
  growth_.on_decode_step();
  for (const int32_t i : plan.sequences) run.push_back(sequences_[static_cast<size_t>(i)].get());
}

bool BlockRank::grow(BlockSequence& sequence) {
  const int32_t need = blocks_for(sequence.num_tokens + 1) - static_cast<int32_t>(sequence.blocks.size());
  if (need > 0 && !reserve(sequence, need)) return false;
  ++sequence.num_tokens;
  ++sequence.num_stored;
  return true;
}

RankLoad BlockRank::decode_load(int64_t growth_tokens) const {
  RankLoad load;
  for (const auto& sequence : sequences_) load += {1, sequence->num_tokens, growth_tokens};
  return load;
}

bool BlockRank::can_reserve(int32_t num_tokens) const {
  return cache_.num_available() > blocks_for(num_tokens);
}

void BlockRank::reserve_all(BlockSequence& sequence) {
  CHECK(reserve(sequence, blocks_for(sequence.num_tokens)));
}

int64_t BlockRank::kv_tokens() const {
  int64_t tokens = 0;
  for (const auto& sequence : sequences_) {
    if (!sequence->blocks.empty()) tokens += sequence->num_stored;
  }
  return tokens;
}

bool BlockRank::sabotage(BlockSabotage kind, int request) {
  for (const auto& other : sequences_) {
    if (other->request == request || other->blocks.empty()) continue;
    const BlockId block = other->blocks.back();
    std::vector<BlockId> nobodys;
    if (kind == BlockSabotage::kSecondWriter) set_writer(block, request);
    if (kind == BlockSabotage::kSkewBooks) cache_.share(std::span(&block, 1), kCacheAccount);
    if (kind == BlockSabotage::kLeakBlock && !cache_.reserve(1, kAccount, nobodys)) continue;
    return true;
  }
  return false;
}

}  // namespace fathom::sim
