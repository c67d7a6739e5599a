// The prefill engine: finds the cached prefix of a prompt and computes the rest in chunks, on N ranks.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/executor.h"
#include "engine/rank_choice.h"
#include "engine/sequence.h"
#include "engine/step.h"

namespace fathom {

// Owned by the engine's thread. A sequence is here from start() to release().
class PrefillEngine {
 public:
  // Rank r keeps its books in account `first_account` + r.
  PrefillEngine(Executor& executor, KvCache& cache, int32_t first_account, const PrefillCost& cost);

  int32_t num_ranks() const { return static_cast<int32_t>(accounts_.size()); }
  int32_t num_busy_ranks() const;

  // Takes a queued sequence: chooses its rank and its cached prefix.
  void start(Sequence& sequence);
  // Takes more of the prefix from the cache where a neighbour has computed it meanwhile, and marks the
  // sequences whose next block an older one is about to compute. `sequences`: those in kPrefill, oldest
  // first.
  void follow_neighbours(std::span<Sequence* const> sequences);
  Status run(std::span<StepShare> shares);
  // The sequence leaves; its blocks go back.
  void release(Sequence& sequence);

 private:
  void match(Sequence& sequence);
  RankLoad load_of(const Sequence& sequence) const;
  std::vector<RankLoad> loads() const;

  Executor& executor_;
  KvCache& cache_;
  std::vector<KvAccount> accounts_;
  std::vector<const Sequence*> members_;
  uint64_t num_passes_ = 0;
  const PrefillCost cost_;
  const ChooseRank choose_rank_;
};

}  // namespace fathom
