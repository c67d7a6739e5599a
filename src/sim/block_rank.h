// One rank of a block-exact simulated unit: the servers' KV cache and step plans (kv/, engine/plan), with the
// forward pass left out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "balance/load_ledger.h"
#include "balance/prefill_cut.h"
#include "engine/handover.h"
#include "engine/plan.h"
#include "kv/cache.h"
#include "sim/block_fleet.h"

namespace fathom::sim {

struct BlockSequence {
  int request = 0;
  uint32_t epoch = 0;
  uint64_t age = 0;
  SequenceStage stage = SequenceStage::kQueued;
  int32_t prompt_tokens = 0;  // at the start of this epoch: what prefill computes
  int32_t num_tokens = 0;     // prompt and generated
  int32_t num_stored = 0;
  int32_t num_cached = 0;  // of these, found in the cache or the store
  int32_t num_read = 0;    // and of those, in the store
  // Its first so many blocks are being read from the external store, or were.
  int32_t store_blocks = 0;
  bool loading = false;
  int32_t left_tokens = 0;  // still to generate
  int32_t published = 0;    // whole blocks others may share
  std::vector<BlockId> blocks;
  std::shared_ptr<const KeyChain> keys;
  PrefillLeg prefill_leg;
  DecodeLeg decode_leg;
  int peer_unit = -1;  // of the hand-over
  int peer_rank = -1;
  uint64_t dispatch = 0;  // the decode balancer's number of it; 0: none yet
  bool write_fenced = false;
};

class BlockRank {
 public:
  // A forward takes up to chunk_tokens, and no more than budget_ns of work per layer.
  BlockRank(int32_t num_blocks, int32_t chunk_tokens, int64_t budget_ns);

  // Sequences live here until erase(). One that is loading takes part from loaded() on.
  BlockSequence& add(std::unique_ptr<BlockSequence> sequence);
  void loaded(int request, uint32_t epoch);
  BlockSequence* find(int request, uint32_t epoch);
  void erase(int request, uint32_t epoch);
  size_t num_sequences() const { return sequences_.size() + loading_.size(); }
  const std::vector<std::unique_ptr<BlockSequence>>& sequences() const { return sequences_; }
  void clear();  // the machine is gone

  // Prefill: starts what fits, plans the chunks and reserves their blocks. Returns their load.
  struct Chunk {
    int request;
    uint32_t epoch;
    int32_t tokens;
  };
  RankLoad plan_prefill_step(const PrefillCost& cost, std::vector<Chunk>& chunks);
  // The chunk is computed; true when the sequence's tokens are all stored.
  bool finish_chunk(const Chunk& chunk);
  RankLoad prefill_load(const PrefillCost& cost) const;

  // Decode: sequences that get a token now; whom to retract first comes back in `retract`.
  void plan_decode_step(std::vector<BlockSequence*>& run, std::vector<BlockSequence*>& retract);
  // Room for one more token of a sequence; false when none can be had.
  bool grow(BlockSequence& sequence);
  RankLoad decode_load(int64_t growth_tokens) const;
  bool can_reserve(int32_t num_tokens) const;
  void reserve_all(BlockSequence& sequence);  // blocks for num_tokens, to be written by the hand-over
  void release_blocks(BlockSequence& sequence);

  // For routers that expect hits here: what went since the last call (remembered once asked for), and how
  // many leading blocks are cached.
  void remember_evicted() { cache_.remember_evicted(); }
  std::vector<BlockKey> take_evicted() { return cache_.take_evicted(); }
  int32_t num_held(const KeyChain& keys) const { return cache_.peek(keys, keys.size()); }

  int64_t kv_tokens() const;
  int32_t num_blocks_used() const { return cache_.num_total() - cache_.num_available(); }
  int64_t references() const { return cache_.references_of(kAccount); }
  Status check() const { return cache_.check(); }
  // Empty, or what is wrong: a block with two writers.
  const std::string& violation() const { return violation_; }
  // Does the deliberate error; false when there is nothing to do it to yet.
  bool sabotage(BlockSabotage kind, int request);

 private:
  static constexpr KvAccount kAccount{1};
  PlanSnapshot snapshot() const;
  void start(BlockSequence& sequence);
  void publish_up_to(BlockSequence& sequence, int32_t num_blocks);
  bool reserve(BlockSequence& sequence, int32_t count);
  void set_writer(BlockId block, int request);

  KvCache cache_;
  const int32_t chunk_tokens_;
  const int64_t budget_ns_;
  std::vector<std::unique_ptr<BlockSequence>> sequences_;  // oldest first
  std::vector<std::unique_ptr<BlockSequence>> loading_;    // holding no blocks
  std::vector<int> writer_;                                // by block, -1: nobody
  GrowthEstimate growth_;
  std::string violation_;
};

}  // namespace fathom::sim
