// Which blocks hold which prefix: a tree of whole blocks, found by key, with the unused ones in the order in
// which they may be evicted. Holds books only; references are the block pool's.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "kv/block_key.h"
#include "kv/storage.h"

namespace fathom {

// Owned by one thread. A node is a block; its parent is the block before it in the sequence.
//
// Who uses a block uses all of its ancestors and lets go of it no later than of them. So no used node has an
// unused ancestor, and in the list of unused nodes, ordered by when they became unused, the oldest is a leaf.
class PrefixTree {
 public:
  explicit PrefixTree(int32_t num_blocks) : nodes_(static_cast<size_t>(num_blocks)) {}

  int32_t num_nodes() const { return static_cast<int32_t>(by_key_.size()); }
  int32_t num_unused() const { return num_unused_; }
  // kNoBlock when no block has this key.
  BlockId find(const BlockKey& key) const;
  bool contains(BlockId block) const { return node(block).in_tree; }

  // Adds `block`, used, under `parent` (kNoBlock: the first block of a sequence). The key must be new, the
  // parent in the tree.
  void insert(const BlockKey& key, BlockId parent, BlockId block);
  // The last user has gone / the first user has come.
  void set_unused(BlockId block);
  void set_used(BlockId block);
  // Removes the least recently used unused node and returns its block; kNoBlock when all are used. `key`,
  // where given, receives the key it had.
  BlockId evict(BlockKey* key = nullptr);

  // Names the first broken invariant. O(nodes).
  Status check() const;

 private:
  struct Node {
    BlockKey key;
    BlockId parent = kNoBlock;
    int32_t num_children = 0;
    BlockId older = kNoBlock;  // neighbours in the list of unused nodes
    BlockId newer = kNoBlock;
    bool in_tree = false;
    bool unused = false;
  };
  Node& node(BlockId block) { return nodes_[static_cast<size_t>(block)]; }
  const Node& node(BlockId block) const { return nodes_[static_cast<size_t>(block)]; }
  void unlink(Node& node);

  std::vector<Node> nodes_;  // by block
  std::unordered_map<BlockKey, BlockId, BlockKeyHash> by_key_;
  BlockId oldest_ = kNoBlock;
  BlockId newest_ = kNoBlock;
  int32_t num_unused_ = 0;
};

}  // namespace fathom
