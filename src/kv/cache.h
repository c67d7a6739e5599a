// The KV cache a sequence deals with: the block pool and the prefix tree kept in step. Sharing copies
// nothing: a hit is one more reference to the same block.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/block_key.h"
#include "kv/block_pool.h"
#include "kv/prefix_tree.h"

namespace fathom {

// Owned by one thread. A sequence keeps its blocks in order in a vector; its first whole blocks, as soon as
// they are published, are a path of the tree. Cached blocks nobody uses are evicted, least recently used and
// leaves first, when blocks are needed.
class KvCache {
 public:
  // `num_accounts` counts kCacheAccount. `fingerprint` and `layout`: see root_key().
  KvCache(int32_t num_blocks, int32_t num_accounts, std::string fingerprint, std::string layout);

  // The key chain of a new sequence of `tenant`.
  KeyChain key_chain(std::string_view tenant) const {
    return KeyChain(root_key(fingerprint_, layout_, tenant));
  }

  int32_t num_total() const { return pool_.num_total(); }
  int32_t num_free() const { return pool_.num_free(); }
  int32_t num_cached_unused() const { return tree_.num_unused(); }
  // What reserve() can give.
  int32_t num_available() const { return num_free() + num_cached_unused(); }
  int64_t num_evicted() const { return num_evicted_; }
  int64_t references_of(KvAccount account) const { return pool_.references_of(account); }

  // Blocks of the longest cached prefix, at most `max_blocks`; changes nothing.
  int32_t peek(const KeyChain& keys, int32_t max_blocks) const;
  // Blocks of that prefix which are in use now: sharing them takes nothing from num_available().
  int32_t peek_used(const KeyChain& keys, int32_t max_blocks) const;
  // Appends cached blocks to `blocks`, which holds the sequence's first whole blocks so far (all published),
  // while there are any, up to `max_blocks` in all. Returns how many were added.
  int32_t extend_match(const KeyChain& keys, int32_t max_blocks, KvAccount account,
                       std::vector<BlockId>& blocks);

  // Appends `count` blocks with undefined contents, evicting if need be; all or nothing.
  bool reserve(int32_t count, KvAccount account, std::vector<BlockId>& blocks);

  // The KV of all tokens of blocks[index] is stored: others may share it from now on. Blocks must be
  // published in order. When the same prefix is cached already, the sequence's own copy is given back and
  // blocks[index] becomes the cached block.
  void publish(const KeyChain& keys, int32_t index, KvAccount account, std::vector<BlockId>& blocks);

  // Gives a sequence's blocks back; what was published stays cached until evicted. Clears `blocks`.
  void release(KvAccount account, std::vector<BlockId>& blocks);

  // A second holder of the same blocks, in its own books.
  void share(std::span<const BlockId> blocks, KvAccount account);

  // Evicts everything nobody uses; returns the number of blocks.
  int32_t flush();

  // From now on the keys of evicted blocks are remembered for take_evicted(), which somebody must then call.
  void remember_evicted() { remembers_evicted_ = true; }
  // Those since the last call, in the order in which they went: for routers that expect hits here.
  std::vector<BlockKey> take_evicted() { return std::exchange(evicted_, {}); }

  // Names the first broken invariant of pool, tree, or the two together. O(blocks).
  Status check() const;

 private:
  void evict_one();

  std::string fingerprint_;
  std::string layout_;
  BlockPool pool_;
  PrefixTree tree_;
  int64_t num_evicted_ = 0;
  bool remembers_evicted_ = false;
  std::vector<BlockKey> evicted_;
};

}  // namespace fathom
