// Decode slots and steps.
#include "engine/decode_engine.h"

#include <utility>

#include "base/check.h"

namespace fathom {

DecodeEngine::DecodeEngine(Executor& executor, KvCache& cache, int32_t first_account, ChooseRank choose_rank)
    : executor_(executor), cache_(cache), choose_rank_(std::move(choose_rank)) {
  for (int32_t rank = 0; rank < executor.num_ranks(); ++rank)
    accounts_.push_back(KvAccount{first_account + rank});
}

int32_t DecodeEngine::choose_rank(const Sequence& next) const {
  const auto load_of = [](const Sequence& s) {
    return RankLoad{1, s.num_tokens(), s.max_new_tokens - s.num_generated()};
  };
  std::vector<RankLoad> loads(accounts_.size());
  for (const Sequence* s : members_) loads[static_cast<size_t>(s->decode_rank)] += load_of(*s);
  const int32_t rank = choose_rank_(loads, load_of(next));
  CHECK(rank == kNoRank || (rank >= 0 && static_cast<size_t>(rank) < loads.size()));
  return rank;
}

void DecodeEngine::reserve(Sequence& s, int32_t rank) {
  s.decode_rank = rank;
  s.decode_blocks = s.blocks;
  cache_.share(s.decode_blocks, accounts_[static_cast<size_t>(rank)]);
  members_.push_back(&s);
}

void DecodeEngine::start(Sequence& s) {
  CHECK_MSG(s.blocks.empty(), "decode starts on a sequence that prefill still holds");
  s.blocks = std::move(s.decode_blocks);
  s.decode_blocks.clear();
  s.rank = s.decode_rank;
  s.stage = SequenceStage::kDecode;
}

void DecodeEngine::release(Sequence& s) {
  CHECK(std::erase(members_, &s) == 1);
  cache_.release(accounts_[static_cast<size_t>(s.decode_rank)],
                 s.stage == SequenceStage::kDecode ? s.blocks : s.decode_blocks);
}

Status DecodeEngine::run(std::span<StepShare> shares) {
  return run_step(executor_, cache_, accounts_, shares);
}

}  // namespace fathom
