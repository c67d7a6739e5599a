// Nodes by block, a map from key to block, and a doubly linked list of the unused.
#include "kv/prefix_tree.h"

#include "base/check.h"

namespace fathom {

BlockId PrefixTree::find(const BlockKey& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? kNoBlock : found->second;
}

void PrefixTree::insert(const BlockKey& key, BlockId parent, BlockId block) {
  Node& added = node(block);
  CHECK(!added.in_tree);
  if (parent != kNoBlock) {
    CHECK_MSG(node(parent).in_tree && !node(parent).unused,
              "a block cached under a parent that is not in use");
    ++node(parent).num_children;
  }
  CHECK_MSG(by_key_.emplace(key, block).second, "two blocks cached under one key");
  added = Node{.key = key, .parent = parent, .in_tree = true};
}

void PrefixTree::set_unused(BlockId block) {
  Node& leaving = node(block);
  CHECK(leaving.in_tree && !leaving.unused);
  leaving.unused = true;
  leaving.older = newest_;
  leaving.newer = kNoBlock;
  if (newest_ != kNoBlock) node(newest_).newer = block;
  newest_ = block;
  if (oldest_ == kNoBlock) oldest_ = block;
  ++num_unused_;
}

void PrefixTree::unlink(Node& leaving) {
  (leaving.older == kNoBlock ? oldest_ : node(leaving.older).newer) = leaving.newer;
  (leaving.newer == kNoBlock ? newest_ : node(leaving.newer).older) = leaving.older;
  leaving.older = leaving.newer = kNoBlock;
  leaving.unused = false;
  --num_unused_;
}

void PrefixTree::set_used(BlockId block) {
  CHECK(node(block).in_tree && node(block).unused);
  unlink(node(block));
}

BlockId PrefixTree::evict(BlockKey* key) {
  const BlockId block = oldest_;
  if (block == kNoBlock) return kNoBlock;
  Node& leaving = node(block);
  CHECK_MSG(leaving.num_children == 0, "the oldest unused block has children");
  unlink(leaving);
  if (leaving.parent != kNoBlock) --node(leaving.parent).num_children;
  CHECK(by_key_.erase(leaving.key) == 1);
  if (key != nullptr) *key = leaving.key;
  leaving = Node{};
  return block;
}

Status PrefixTree::check() const {
  const auto broken = [](const char* name) { return Status(StatusCode::kInternal, name); };
  std::vector<int32_t> children(nodes_.size());
  int32_t num_in_tree = 0;
  int32_t num_unused = 0;
  for (const Node& n : nodes_) {
    if (!n.in_tree) continue;
    ++num_in_tree;
    num_unused += n.unused ? 1 : 0;
    if (n.parent == kNoBlock) continue;
    if (!node(n.parent).in_tree) return broken("parents_are_in_the_tree");
    if (!n.unused && node(n.parent).unused) return broken("used_nodes_have_used_parents");
    ++children[static_cast<size_t>(n.parent)];
  }
  if (num_in_tree != num_nodes()) return broken("every_node_is_found_by_its_key");
  for (size_t block = 0; block < nodes_.size(); ++block) {
    if (!nodes_[block].in_tree) continue;
    if (children[block] != nodes_[block].num_children) return broken("children_are_counted");
    if (find(nodes_[block].key) != BlockId{static_cast<int32_t>(block)}) {
      return broken("every_node_is_found_by_its_key");
    }
  }
  int32_t num_listed = 0;
  std::vector<bool> passed(nodes_.size());
  for (BlockId block = oldest_; block != kNoBlock && num_listed <= num_unused; block = node(block).newer) {
    ++num_listed;
    passed[static_cast<size_t>(block)] = true;
    const BlockId parent = node(block).parent;
    if (parent != kNoBlock && passed[static_cast<size_t>(parent)])
      return broken("children_are_evicted_first");
  }
  if (num_listed != num_unused || num_unused != num_unused_) return broken("the_unused_are_listed_once");
  return ok_status();
}

}  // namespace fathom
