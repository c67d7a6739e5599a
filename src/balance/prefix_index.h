// Which ranks hold which cached prefixes, for a router: one table from a block's chained 64-bit hash to the
// ranks that hold it. Fed by the ranks' own insert and evict events (several routers fed alike agree), and by
// a router's own dispatches. Best effort: a wrong entry costs a recompute, never a wrong answer, because a
// rank matches the real keys again.
//
// Invariants, by name:
// * exact_holders: the holders of a block are those whose last event about it was an insert, however many
// * forgotten_with_the_rank: a cleared rank holds nothing
// * bounded: never more than entries_max blocks; what is dropped is counted, and is the deepest of its prompt
// * fixed_order: the same events give the same holders in the same order
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"

namespace fathom {

struct PrefixIndexOptions {
  int num_ranks = 1;  // up to kRanksMax
  size_t entries_max =
      size_t{1} << 22;  // blocks remembered (16 B each at most 3/4 full); beyond, inserts are dropped
};

class PrefixIndex {
 public:
  static constexpr int kRanksMax = 0xfff0;

  explicit PrefixIndex(const PrefixIndexOptions& options);

  // A block hash covers its whole prefix: a rank that holds block i of a prompt holds blocks 0..i-1.
  void insert(int rank, std::span<const uint64_t> blocks);
  void evict(int rank, std::span<const uint64_t> blocks);
  // The rank is gone, or restarted empty.
  void clear_rank(int rank);

  bool holds(int rank, uint64_t block) const;
  bool any_holds(uint64_t block) const { return find(block) >= 0; }
  // Calls visit(rank) for every holder, in a fixed order.
  template <typename Visit>
  void for_each_holder(uint64_t block, Visit&& visit) const;

  // How many leading blocks some rank holds; by bisection, so O(log n) look-ups.
  int depth(std::span<const uint64_t> blocks) const;
  // How many leading blocks this rank holds, known to be at least `at_least`.
  int depth_of(int rank, std::span<const uint64_t> blocks, int at_least) const;

  size_t num_entries() const { return num_entries_; }
  uint64_t num_dropped() const { return num_dropped_; }

 private:
  // Up to four holders inline; more move to a bitmap of the pool.
  static constexpr int kInline = 4;
  static constexpr uint16_t kNone = 0xffff;
  static constexpr uint16_t kPooled = 0xfffe;
  struct Entry {
    uint64_t key = 0;  // 0: free
    uint16_t holders[kInline] = {kNone, kNone, kNone, kNone};

    bool pooled() const { return holders[0] == kPooled; }
    uint32_t pool_idx() const { return holders[1] | (uint32_t{holders[2]} << 16); }
  };

  static uint64_t key_of(uint64_t block) { return block == 0 ? 1 : block; }
  size_t home(uint64_t key) const { return (key * 0x9e3779b97f4a7c15ULL) >> shift_; }
  ptrdiff_t find(uint64_t block) const;
  void add_holder(Entry& entry, int rank);
  // False when nobody is left.
  bool remove_holder(Entry& entry, int rank);
  void erase(size_t at);
  void grow();
  uint64_t* bitmap(uint32_t idx) { return &pool_[static_cast<size_t>(idx) * words_]; }
  const uint64_t* bitmap(uint32_t idx) const { return &pool_[static_cast<size_t>(idx) * words_]; }

  const PrefixIndexOptions options_;
  const int words_;  // per bitmap
  int shift_ = 0;
  std::vector<Entry> table_;
  std::vector<uint64_t> pool_;
  std::vector<uint32_t> free_bitmaps_;
  size_t num_entries_ = 0;
  uint64_t num_dropped_ = 0;
};

template <typename Visit>
void PrefixIndex::for_each_holder(uint64_t block, Visit&& visit) const {
  const ptrdiff_t at = find(block);
  if (at < 0) return;
  const Entry& entry = table_[at];
  if (!entry.pooled()) {
    for (uint16_t rank : entry.holders) {
      if (rank != kNone) visit(static_cast<int>(rank));
    }
    return;
  }
  const uint64_t* bits = bitmap(entry.pool_idx());
  for (int w = 0; w < words_; ++w) {
    for (uint64_t word = bits[w]; word != 0; word &= word - 1) visit(w * 64 + __builtin_ctzll(word));
  }
}

}  // namespace fathom
