// Batches by rank, and logits back to the sequences they belong to.
#include "engine/step.h"

#include "base/check.h"

namespace fathom {
namespace {

void reserve_blocks(KvCache& cache, KvAccount account, const StepShare& share) {
  Sequence& s = *share.sequence;
  const int32_t missing = blocks_for_tokens(s.num_stored + share.num_tokens) - s.num_blocks();
  if (missing <= 0) return;
  CHECK_MSG(cache.reserve(missing, account, s.blocks), "a planned step finds too few KV blocks");
}

void advance(KvCache& cache, KvAccount account, const StepShare& share) {
  Sequence& s = *share.sequence;
  const int32_t first = s.num_stored / kBlockTokens;
  s.num_stored += share.num_tokens;
  s.keys.extend(s.tokens);
  for (int32_t index = first; index < s.num_stored / kBlockTokens; ++index) {
    cache.publish(s.keys, index, account, s.blocks);
  }
}

}  // namespace

Status run_step(Executor& executor, KvCache& cache, std::span<const KvAccount> account_of_rank,
                std::span<StepShare> shares) {
  CHECK(account_of_rank.size() == static_cast<size_t>(executor.num_ranks()));
  std::vector<RankBatch> batches(account_of_rank.size());
  std::vector<std::vector<StepShare*>> wanting(account_of_rank.size());
  for (StepShare& share : shares) {
    Sequence& s = *share.sequence;
    const auto rank = static_cast<size_t>(s.rank);
    CHECK(rank < batches.size() && share.num_tokens > 0);
    reserve_blocks(cache, account_of_rank[rank], share);
    const std::span<const int32_t> tokens(s.tokens);
    const bool reaches_end = s.num_stored + share.num_tokens == s.num_tokens();
    batches[rank].chunks.push_back(
        {.tokens = tokens.subspan(static_cast<size_t>(s.num_stored), static_cast<size_t>(share.num_tokens)),
         .start = s.num_stored,
         .blocks = s.blocks,
         .want_logits = reaches_end,
         .pass = s.pass});
    if (reaches_end) wanting[rank].push_back(&share);
  }

  MatrixView<const float> logits;
  RETURN_IF_ERROR(executor.step(batches, &logits));
  int64_t row = 0;
  for (const std::vector<StepShare*>& rank : wanting) {
    for (StepShare* share : rank) share->logits = logits.row_span(row++);
  }
  CHECK(row == 0 || row == logits.rows);
  for (const StepShare& share : shares) {
    advance(cache, account_of_rank[static_cast<size_t>(share.sequence->rank)], share);
  }
  return ok_status();
}

}  // namespace fathom
