// Open addressing with linear probing and backward-shift deletion: no tombstones, so look-ups stay short for
// ever.
#include "balance/prefix_index.h"

#include <algorithm>
#include <bit>

namespace fathom {
namespace {
constexpr size_t kEntriesStart = 1024;
constexpr size_t kPrefetchAhead = 8;
}  // namespace

PrefixIndex::PrefixIndex(const PrefixIndexOptions& options)
    : options_(options), words_((options.num_ranks + 63) / 64), table_(kEntriesStart) {
  CHECK(options.num_ranks > 0 && options.num_ranks <= kRanksMax);
  shift_ = 64 - std::countr_zero(table_.size());
}

ptrdiff_t PrefixIndex::find(uint64_t block) const {
  const uint64_t key = key_of(block);
  for (size_t at = home(key);; at = (at + 1) & (table_.size() - 1)) {
    if (table_[at].key == key) return static_cast<ptrdiff_t>(at);
    if (table_[at].key == 0) return -1;
  }
}

void PrefixIndex::add_holder(Entry& entry, int rank) {
  if (entry.pooled()) {
    bitmap(entry.pool_idx())[rank / 64] |= uint64_t{1} << (rank % 64);
    return;
  }
  for (uint16_t& holder : entry.holders) {
    if (holder == rank) return;
    if (holder == kNone) {
      holder = static_cast<uint16_t>(rank);
      return;
    }
  }
  uint32_t idx;
  if (free_bitmaps_.empty()) {
    idx = static_cast<uint32_t>(pool_.size() / words_);
    pool_.resize(pool_.size() + words_);
  } else {
    idx = free_bitmaps_.back();
    free_bitmaps_.pop_back();
  }
  uint64_t* bits = bitmap(idx);
  std::fill(bits, bits + words_, 0);
  for (uint16_t holder : entry.holders) bits[holder / 64] |= uint64_t{1} << (holder % 64);
  bits[rank / 64] |= uint64_t{1} << (rank % 64);
  entry.holders[0] = kPooled;
  entry.holders[1] = static_cast<uint16_t>(idx & 0xffff);
  entry.holders[2] = static_cast<uint16_t>(idx >> 16);
}

bool PrefixIndex::remove_holder(Entry& entry, int rank) {
  if (!entry.pooled()) {
    // Holders stay packed at the front.
    int last = kInline - 1;
    while (last >= 0 && entry.holders[last] == kNone) --last;
    for (int i = 0; i <= last; ++i) {
      if (entry.holders[i] != rank) continue;
      entry.holders[i] = entry.holders[last];
      entry.holders[last] = kNone;
      return last > 0;
    }
    return true;
  }
  uint64_t* bits = bitmap(entry.pool_idx());
  bits[rank / 64] &= ~(uint64_t{1} << (rank % 64));
  if (std::any_of(bits, bits + words_, [](uint64_t word) { return word != 0; })) return true;
  free_bitmaps_.push_back(entry.pool_idx());
  return false;
}

void PrefixIndex::erase(size_t at) {
  const size_t mask = table_.size() - 1;
  size_t hole = at;
  for (size_t next = (hole + 1) & mask; table_[next].key != 0; next = (next + 1) & mask) {
    // An entry may move back into the hole unless that would put it before its home.
    const size_t distance_home = (next - home(table_[next].key)) & mask;
    if (distance_home >= ((next - hole) & mask)) {
      table_[hole] = table_[next];
      hole = next;
    }
  }
  table_[hole] = Entry{};
  --num_entries_;
}

void PrefixIndex::grow() {
  std::vector<Entry> old(table_.size() * 2);
  old.swap(table_);
  shift_ = 64 - std::countr_zero(table_.size());
  for (const Entry& entry : old) {
    if (entry.key == 0) continue;
    size_t at = home(entry.key);
    while (table_[at].key != 0) at = (at + 1) & (table_.size() - 1);
    table_[at] = entry;
  }
}

void PrefixIndex::insert(int rank, std::span<const uint64_t> blocks) {
  CHECK(rank >= 0 && rank < options_.num_ranks);
  for (size_t i = 0; i < blocks.size(); ++i) {
    // Every block is a cache miss of its own: ask for those to come while this one is worked on.
    if (i + kPrefetchAhead < blocks.size())
      __builtin_prefetch(&table_[home(key_of(blocks[i + kPrefetchAhead]))], 1);
    const uint64_t key = key_of(blocks[i]);
    size_t at = home(key);
    while (table_[at].key != 0 && table_[at].key != key) at = (at + 1) & (table_.size() - 1);
    if (table_[at].key == 0) {
      if (num_entries_ >= options_.entries_max) {
        ++num_dropped_;
        return;  // the rest of the prompt lies deeper and would be unreachable
      }
      if ((num_entries_ + 1) * 4 > table_.size() * 3) {
        grow();
        at = home(key);
        while (table_[at].key != 0) at = (at + 1) & (table_.size() - 1);
      }
      table_[at].key = key;
      ++num_entries_;
    }
    add_holder(table_[at], rank);
  }
}

void PrefixIndex::evict(int rank, std::span<const uint64_t> blocks) {
  for (uint64_t block : blocks) {
    const ptrdiff_t at = find(block);
    if (at >= 0 && !remove_holder(table_[at], rank)) erase(static_cast<size_t>(at));
  }
}

void PrefixIndex::clear_rank(int rank) {
  for (size_t at = 0; at < table_.size();) {
    // An erase may pull a later entry into this place: look at it again.
    if (table_[at].key != 0 && !remove_holder(table_[at], rank)) {
      erase(at);
    } else {
      ++at;
    }
  }
}

bool PrefixIndex::holds(int rank, uint64_t block) const {
  const ptrdiff_t at = find(block);
  if (at < 0) return false;
  const Entry& entry = table_[at];
  if (entry.pooled()) return (bitmap(entry.pool_idx())[rank / 64] >> (rank % 64) & 1) != 0;
  return std::find(std::begin(entry.holders), std::end(entry.holders), rank) != std::end(entry.holders);
}

int PrefixIndex::depth(std::span<const uint64_t> blocks) const {
  int held = 0,
      missing = static_cast<int>(blocks.size()) + 1;  // blocks [0, held) are held, block missing-1 is not
  while (missing - held > 1) {
    const int middle = (held + missing) / 2;
    (any_holds(blocks[middle - 1]) ? held : missing) = middle;
  }
  return held;
}

int PrefixIndex::depth_of(int rank, std::span<const uint64_t> blocks, int at_least) const {
  int held = at_least, missing = static_cast<int>(blocks.size()) + 1;
  while (missing - held > 1) {
    const int middle = (held + missing) / 2;
    (holds(rank, blocks[middle - 1]) ? held : missing) = middle;
  }
  return held;
}

}  // namespace fathom
