// One step of one engine: from sequences to the executor's batches and back to sequences.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "engine/executor.h"
#include "engine/sequence.h"
#include "kv/cache.h"

namespace fathom {

struct StepShare {
  Sequence* sequence = nullptr;
  int32_t num_tokens = 0;           // from num_stored on
  std::span<const float> logits{};  // after the step, when it reached the sequence's last token
};

// Reserves blocks for the shares, runs the step and, when it succeeds, moves num_stored on and publishes the
// blocks that became whole. On an error nothing but the reservations has changed. `account_of_rank[r]`: the
// books of rank r. CHECKs that the blocks are there: the plan has seen to it.
Status run_step(Executor& executor, KvCache& cache, std::span<const KvAccount> account_of_rank,
                std::span<StepShare> shares);

}  // namespace fathom
