// Prefix matching and prefill steps.
#include "engine/prefill_engine.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "balance/prefill_cut.h"
#include "base/check.h"

namespace fathom {

PrefillEngine::PrefillEngine(Executor& executor, KvCache& cache, int32_t first_account,
                             const PrefillCost& cost)
    : executor_(executor),
      cache_(cache),
      cost_(cost),
      choose_rank_(make_prefill_choice(executor.num_ranks(), cost)) {
  for (int32_t rank = 0; rank < executor.num_ranks(); ++rank)
    accounts_.push_back(KvAccount{first_account + rank});
}

// Work and tokens still to be computed for `s`.
RankLoad PrefillEngine::load_of(const Sequence& s) const {
  const int64_t num_new = s.num_tokens() - s.num_stored;
  return {1, num_new, cost_.cost_ns(num_new, s.num_stored)};
}

std::vector<RankLoad> PrefillEngine::loads() const {
  std::vector<RankLoad> loads(accounts_.size());
  for (const Sequence* s : members_) {
    if (s->stage == SequenceStage::kPrefill) loads[static_cast<size_t>(s->rank)] += load_of(*s);
  }
  return loads;
}

int32_t PrefillEngine::num_busy_ranks() const {
  int32_t num_busy = 0;
  for (const RankLoad& load : loads()) num_busy += load.tokens > 0 ? 1 : 0;
  return num_busy;
}

// At least the last token is computed, so that there are logits.
void PrefillEngine::match(Sequence& s) {
  const KvAccount account = accounts_[static_cast<size_t>(s.rank)];
  const int32_t max_blocks = (s.num_tokens() - 1) / kBlockTokens;
  if (cache_.extend_match(s.keys, max_blocks, account, s.blocks) == 0) return;
  s.num_stored = s.num_blocks() * kBlockTokens;
  const int32_t covered = std::min(s.num_stored, s.num_prompt);
  if (covered > s.accounted_tokens) {
    s.hit_tokens += covered - s.accounted_tokens;
    s.accounted_tokens = covered;
  }
}

void PrefillEngine::start(Sequence& s) {
  CHECK(s.stage == SequenceStage::kQueued && s.blocks.empty() && s.num_stored == 0);
  s.rank = choose_rank_(loads(), load_of(s));
  CHECK(s.rank >= 0 && s.rank < num_ranks());
  s.stage = SequenceStage::kPrefill;
  s.pass = ++num_passes_;
  members_.push_back(&s);
  match(s);
}

void PrefillEngine::follow_neighbours(std::span<Sequence* const> sequences) {
  std::unordered_set<BlockKey, BlockKeyHash> being_computed;
  for (Sequence* s : sequences) {
    s->waits = false;
    const bool at_block_end = s->num_stored == s->num_blocks() * kBlockTokens;
    if (!at_block_end) continue;
    match(*s);
    const int32_t next = s->num_stored / kBlockTokens;
    // Only whole blocks are shared; what follows the last one every sequence computes itself.
    if (next >= (s->num_tokens() - 1) / kBlockTokens) continue;
    s->waits = !being_computed.insert(s->keys[next]).second;
  }
}

Status PrefillEngine::run(std::span<StepShare> shares) {
  RETURN_IF_ERROR(run_step(executor_, cache_, accounts_, shares));
  for (const StepShare& share : shares) {
    Sequence& s = *share.sequence;
    s.accounted_tokens = std::max(s.accounted_tokens, std::min(s.num_stored, s.num_prompt));
  }
  return ok_status();
}

void PrefillEngine::release(Sequence& s) {
  CHECK(std::erase(members_, &s) == 1);
  cache_.release(accounts_[static_cast<size_t>(s.rank)], s.blocks);
}

}  // namespace fathom
