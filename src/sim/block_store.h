// The external KV store of a simulated fleet: which whole blocks its disks hold, and when a read of some of
// them ends. The disk is the model; what is stored, found and evicted is counted block by block.
//
// Reads of a node share its link to the store, one after another; each waits a latency first. Writes are
// taken to be behind the answers and cost nothing. Least recently used blocks leave first, a prompt's last
// ones before its first.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

namespace fathom::sim {

struct BlockStoreOptions {
  int64_t blocks_max = 0;
  int num_nodes = 1;        // that read
  double ns_per_block = 0;  // of a node's link
  int64_t latency_ns = 0;
};

class BlockStore {
 public:
  explicit BlockStore(const BlockStoreOptions& options);

  // Leading blocks of a prompt that are here. Hashes are chained: a block's stands for all before it too.
  int32_t num_held(std::span<const uint64_t> blocks) const;
  // A prompt's whole blocks, from its first.
  void put(std::span<const uint64_t> blocks);

  // When a node's read of so many blocks would end.
  int64_t read_end_ns(int node, int64_t now_ns, int32_t num_blocks) const;
  // And the read itself, of the blocks given, which are in use from now on.
  int64_t read(int node, int64_t now_ns, std::span<const uint64_t> blocks);

  int64_t num_blocks() const { return static_cast<int64_t>(place_.size()); }
  int64_t num_evicted() const { return num_evicted_; }
  int64_t num_read() const { return num_read_; }

 private:
  void touch(std::span<const uint64_t> blocks);

  const BlockStoreOptions options_;
  std::list<uint64_t> by_use_;  // most recent first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> place_;
  std::vector<int64_t> link_free_ns_;  // per node
  int64_t num_evicted_ = 0, num_read_ = 0;
};

}  // namespace fathom::sim
