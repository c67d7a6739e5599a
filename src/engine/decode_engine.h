// The decode engine: one token per step for every sequence it holds, on M ranks.
#pragma once

#include <span>
#include <vector>

#include "engine/executor.h"
#include "engine/rank_choice.h"
#include "engine/sequence.h"
#include "engine/step.h"

namespace fathom {

// Owned by the engine's thread. A sequence is here from reserve() to release().
class DecodeEngine {
 public:
  // Rank r keeps its books in account `first_account` + r. `choose_rank` knows how many sequences a rank
  // takes.
  DecodeEngine(Executor& executor, KvCache& cache, int32_t first_account, ChooseRank choose_rank);

  // The rank for one more sequence; kNoRank when all are full.
  int32_t choose_rank(const Sequence& next) const;

  // The hand-over's sides of a slot: takes it, and its own references to the sequence's blocks.
  void reserve(Sequence& sequence, int32_t rank);
  // From now on the sequence's blocks and rank are this engine's. The prefill side has let go of its own.
  void start(Sequence& sequence);
  // Gives slot and blocks back, started or not.
  void release(Sequence& sequence);

  // One token each; `shares` name all of them.
  Status run(std::span<StepShare> shares);

 private:
  Executor& executor_;
  KvCache& cache_;
  std::vector<KvAccount> accounts_;
  std::vector<const Sequence*> members_;
  const ChooseRank choose_rank_;
};

}  // namespace fathom
