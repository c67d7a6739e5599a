// Reference counts of KV blocks.
#include "kv/block_pool.h"

#include <numeric>

#include "base/check.h"

namespace fathom {

BlockPool::BlockPool(int32_t num_blocks, int32_t num_accounts)
    : references_(static_cast<size_t>(num_blocks)), account_references_(static_cast<size_t>(num_accounts)) {
  CHECK(num_blocks > 0 && num_accounts > 0);
  free_.reserve(references_.size());
  for (int32_t block = num_blocks - 1; block >= 0; --block) free_.push_back(BlockId{block});
}

BlockId BlockPool::allocate(KvAccount account) {
  CHECK_MSG(!free_.empty(), "no free KV block: the caller did not look at num_free() first");
  const BlockId block = free_.back();
  free_.pop_back();
  CHECK(references_[slot(block)] == 0);
  references_[slot(block)] = 1;
  ++account_references_[slot(account)];
  return block;
}

void BlockPool::add_reference(BlockId block, KvAccount account) {
  CHECK_MSG(references_[slot(block)] > 0, "a reference to a free KV block");
  ++references_[slot(block)];
  ++account_references_[slot(account)];
}

int32_t BlockPool::release(BlockId block, KvAccount account) {
  CHECK_MSG(references_[slot(block)] > 0, "a KV block released twice");
  CHECK_MSG(account_references_[slot(account)] > 0, "a KV block released by an account that holds none");
  --account_references_[slot(account)];
  const int32_t left = --references_[slot(block)];
  if (left == 0) free_.push_back(block);
  return left;
}

Status BlockPool::check() const {
  const auto broken = [](const char* name) { return Status(StatusCode::kInternal, name); };
  std::vector<bool> on_free_list(references_.size());
  for (const BlockId block : free_) {
    if (on_free_list[slot(block)]) return broken("free_blocks_are_distinct");
    on_free_list[slot(block)] = true;
    if (references_[slot(block)] != 0) return broken("free_blocks_have_no_references");
  }
  int64_t block_references = 0;
  for (size_t block = 0; block < references_.size(); ++block) {
    if (on_free_list[block] == (references_[block] > 0)) return broken("free_plus_held_is_total");
    block_references += references_[block];
  }
  const int64_t account_references =
      std::accumulate(account_references_.begin(), account_references_.end(), int64_t{0});
  if (block_references != account_references) return broken("accounts_sum_to_references");
  return ok_status();
}

}  // namespace fathom
