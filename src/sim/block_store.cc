// Blocks by last use, and a queue per node's link.
#include "sim/block_store.h"

#include <algorithm>

#include "base/check.h"

namespace fathom::sim {

BlockStore::BlockStore(const BlockStoreOptions& options) : options_(options) {
  CHECK(options.blocks_max > 0 && options.num_nodes > 0);
  link_free_ns_.resize(static_cast<size_t>(options.num_nodes));
}

int32_t BlockStore::num_held(std::span<const uint64_t> blocks) const {
  const auto missing =
      std::find_if(blocks.begin(), blocks.end(), [&](uint64_t block) { return !place_.contains(block); });
  return static_cast<int32_t>(missing - blocks.begin());
}

// From the last to the first, so that the first is used last and leaves last.
void BlockStore::touch(std::span<const uint64_t> blocks) {
  for (size_t i = blocks.size(); i-- > 0;) {
    const auto found = place_.find(blocks[i]);
    if (found != place_.end()) {
      by_use_.splice(by_use_.begin(), by_use_, found->second);
    } else {
      by_use_.push_front(blocks[i]);
      place_.emplace(blocks[i], by_use_.begin());
    }
  }
}

void BlockStore::put(std::span<const uint64_t> blocks) {
  touch(blocks);
  while (num_blocks() > options_.blocks_max) {
    place_.erase(by_use_.back());
    by_use_.pop_back();
    ++num_evicted_;
  }
}

int64_t BlockStore::read_end_ns(int node, int64_t now_ns, int32_t num_blocks) const {
  const int64_t begin_ns = std::max(now_ns, link_free_ns_[static_cast<size_t>(node)]);
  return begin_ns + options_.latency_ns + static_cast<int64_t>(options_.ns_per_block * num_blocks);
}

int64_t BlockStore::read(int node, int64_t now_ns, std::span<const uint64_t> blocks) {
  const auto count = static_cast<int32_t>(blocks.size());
  const int64_t end_ns = read_end_ns(node, now_ns, count);
  // The link is free for the next read while this one's latency passes.
  link_free_ns_[static_cast<size_t>(node)] = end_ns - options_.latency_ns;
  num_read_ += count;
  touch(blocks);
  return end_ns;
}

}  // namespace fathom::sim
