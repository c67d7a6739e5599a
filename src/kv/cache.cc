// Pool and tree in step: the tree holds one reference to each of its blocks, in the cache's own books, so a
// block is unused when that is its only one.
#include "kv/cache.h"

#include <utility>

#include "base/check.h"

namespace fathom {

KvCache::KvCache(int32_t num_blocks, int32_t num_accounts, std::string fingerprint, std::string layout)
    : fingerprint_(std::move(fingerprint)),
      layout_(std::move(layout)),
      pool_(num_blocks, num_accounts),
      tree_(num_blocks) {}

int32_t KvCache::peek(const KeyChain& keys, int32_t max_blocks) const {
  int32_t num_blocks = 0;
  while (num_blocks < max_blocks && num_blocks < keys.size() && tree_.find(keys[num_blocks]) != kNoBlock) {
    ++num_blocks;
  }
  return num_blocks;
}

int32_t KvCache::peek_used(const KeyChain& keys, int32_t max_blocks) const {
  int32_t num_blocks = 0;
  for (; num_blocks < max_blocks && num_blocks < keys.size(); ++num_blocks) {
    const BlockId block = tree_.find(keys[num_blocks]);
    if (block == kNoBlock || pool_.references(block) == 1) break;
  }
  return num_blocks;
}

int32_t KvCache::extend_match(const KeyChain& keys, int32_t max_blocks, KvAccount account,
                              std::vector<BlockId>& blocks) {
  int32_t num_added = 0;
  for (auto index = static_cast<int32_t>(blocks.size()); index < max_blocks && index < keys.size(); ++index) {
    const BlockId block = tree_.find(keys[index]);
    if (block == kNoBlock) break;
    if (pool_.references(block) == 1) tree_.set_used(block);
    pool_.add_reference(block, account);
    blocks.push_back(block);
    ++num_added;
  }
  return num_added;
}

void KvCache::evict_one() {
  BlockKey key;
  const BlockId block = tree_.evict(&key);
  CHECK(block != kNoBlock);
  if (remembers_evicted_) evicted_.push_back(key);
  CHECK_MSG(pool_.release(block, kCacheAccount) == 0, "a block in use was evicted");
  ++num_evicted_;
}

bool KvCache::reserve(int32_t count, KvAccount account, std::vector<BlockId>& blocks) {
  if (count > num_available()) return false;
  for (int32_t i = 0; i < count; ++i) {
    if (pool_.num_free() == 0) evict_one();
    blocks.push_back(pool_.allocate(account));
  }
  return true;
}

void KvCache::publish(const KeyChain& keys, int32_t index, KvAccount account, std::vector<BlockId>& blocks) {
  CHECK(index < keys.size() && index < static_cast<int32_t>(blocks.size()));
  BlockId& block = blocks[static_cast<size_t>(index)];
  const BlockId cached = tree_.find(keys[index]);
  if (cached == block) return;
  if (cached == kNoBlock) {
    const BlockId parent = index == 0 ? kNoBlock : blocks[static_cast<size_t>(index - 1)];
    tree_.insert(keys[index], parent, block);
    pool_.add_reference(block, kCacheAccount);
    return;
  }
  if (pool_.references(cached) == 1) tree_.set_used(cached);
  pool_.add_reference(cached, account);
  pool_.release(block, account);
  block = cached;
}

void KvCache::release(KvAccount account, std::vector<BlockId>& blocks) {
  for (; !blocks.empty(); blocks.pop_back()) {
    const BlockId block = blocks.back();
    if (pool_.release(block, account) == 1 && tree_.contains(block)) tree_.set_unused(block);
  }
}

void KvCache::share(std::span<const BlockId> blocks, KvAccount account) {
  for (const BlockId block : blocks) pool_.add_reference(block, account);
}

int32_t KvCache::flush() {
  const int32_t num_unused = tree_.num_unused();
  for (int32_t i = 0; i < num_unused; ++i) evict_one();
  return num_unused;
}

Status KvCache::check() const {
  RETURN_IF_ERROR(pool_.check());
  RETURN_IF_ERROR(tree_.check());
  const auto broken = [](const char* name) { return Status(StatusCode::kInternal, name); };
  if (pool_.references_of(kCacheAccount) != tree_.num_nodes()) return broken("the_tree_holds_each_node_once");
  int32_t num_only_cached = 0;
  for (int32_t i = 0; i < pool_.num_total(); ++i) {
    const BlockId block{i};
    if (!tree_.contains(block)) continue;
    if (pool_.references(block) == 0) return broken("cached_blocks_are_not_free");
    num_only_cached += pool_.references(block) == 1 ? 1 : 0;
  }
  if (num_only_cached != tree_.num_unused()) return broken("unused_means_only_the_tree_holds_it");
  return ok_status();
}

}  // namespace fathom
