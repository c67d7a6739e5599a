// The books of the KV blocks: who holds how many references to which block. No memory is touched here, so the
// simulator links the same code.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/storage.h"

namespace fathom {

// Whose books a reference is in: the prefix tree's, or those of one rank of one engine.
enum class KvAccount : int32_t {};
inline constexpr KvAccount kCacheAccount{0};

// Owned by one thread. What a caller can get wrong here is a bug and stops the process.
//
// Invariants, by the names check() reports:
//   free_plus_held_is_total   every block is either on the free list or has a reference
//   free_blocks_are_distinct  no block is on the free list twice
//   free_blocks_have_no_references
//   accounts_sum_to_references  the accounts' references add up to the blocks' references
class BlockPool {
 public:
  // `num_accounts` counts kCacheAccount.
  BlockPool(int32_t num_blocks, int32_t num_accounts);

  int32_t num_total() const { return static_cast<int32_t>(references_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t references(BlockId block) const { return references_[slot(block)]; }
  int64_t references_of(KvAccount account) const { return account_references_[slot(account)]; }
  int32_t num_accounts() const { return static_cast<int32_t>(account_references_.size()); }

  // A free block with one reference of `account`. CHECKs that one is free.
  BlockId allocate(KvAccount account);
  // `block` must be referenced already: a free block cannot be revived.
  void add_reference(BlockId block, KvAccount account);
  // Returns the references left; at 0 the block is free.
  int32_t release(BlockId block, KvAccount account);

  // Names the first broken invariant. O(blocks); for tests and the end of a drain.
  Status check() const;

 private:
  size_t slot(BlockId block) const {
    CHECK(index_of(block) >= 0 && index_of(block) < num_total());
    return static_cast<size_t>(block);
  }
  size_t slot(KvAccount account) const {
    CHECK(static_cast<int32_t>(account) >= 0 && static_cast<int32_t>(account) < num_accounts());
    return static_cast<size_t>(account);
  }

  std::vector<int32_t> references_;          // by block
  std::vector<int64_t> account_references_;  // by account
  std::vector<BlockId> free_;                // last in, first out: warm blocks first
};

}  // namespace fathom
