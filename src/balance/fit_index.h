// Ranks by load in equal buckets: the fullest rank at or below a level, and the emptiest one, in O(1) to
// within a bucket's width; one rank moved in O(1). Nothing allocates after construction.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace fathom {

class FitIndex {
 public:
  explicit FitIndex(int num_ranks) : at_(num_ranks) {
    CHECK(num_ranks > 0 && num_ranks <= kRanksMax);
    reset(1);
  }

  // Empties the index; loads from 0 to kBuckets * width are told apart, larger ones share the last bucket.
  void reset(int64_t width) {
    CHECK(width > 0);
    width_ = width;
    head_.fill(-1);
    words_.fill(0);
    for (Place& place : at_) place.bucket = -1;
  }

  void set(int rank, int64_t load) {
    erase(rank);
    const int bucket = bucket_of(load);
    const int16_t here = static_cast<int16_t>(rank);
    at_[rank] = {load, static_cast<int16_t>(bucket), -1, head_[bucket]};
    if (head_[bucket] >= 0) at_[head_[bucket]].previous = here;
    head_[bucket] = here;
    words_[bucket / 64] |= uint64_t{1} << (bucket % 64);
  }
  void erase(int rank) {
    const Place place = at_[rank];
    if (place.bucket < 0) return;
    if (place.next >= 0) at_[place.next].previous = place.previous;
    if (place.previous >= 0) {
      at_[place.previous].next = place.next;
    } else {
      head_[place.bucket] = place.next;
      if (place.next < 0) words_[place.bucket / 64] &= ~(uint64_t{1} << (place.bucket % 64));
    }
    at_[rank].bucket = -1;
  }

  // A rank with load <= level and no rank of a lower bucket than the fullest such; -1 if there is none.
  int largest_at_most(int64_t level) const {
    if (level < 0) return -1;
    const int bucket = bucket_of(level);
    for (int rank = head_[bucket]; rank >= 0; rank = at_[rank].next) {
      if (at_[rank].load <= level) return rank;
    }
    int word = bucket / 64;
    uint64_t bits = words_[word] & ((uint64_t{1} << (bucket % 64)) - 1);
    while (bits == 0 && word > 0) bits = words_[--word];
    return bits == 0 ? -1 : head_[word * 64 + 63 - std::countl_zero(bits)];
  }
  // A rank of the lowest bucket in use; -1 if the index is empty.
  int smallest() const {
    for (int word = 0; word < kWords; ++word) {
      if (words_[word] != 0) return head_[word * 64 + std::countr_zero(words_[word])];
    }
    return -1;
  }

  static constexpr int kBuckets = 512;
  static constexpr int kRanksMax = 1 << 14;

 private:
  static constexpr int kWords = kBuckets / 64;
  struct Place {
    int64_t load = 0;
    int16_t bucket = -1;  // -1: not in the index
    int16_t previous = -1;
    int16_t next = -1;
  };

  int bucket_of(int64_t load) const {
    return static_cast<int>(std::min<int64_t>(load / width_, kBuckets - 1));
  }

  int64_t width_ = 1;
  std::array<int16_t, kBuckets> head_;
  std::array<uint64_t, kWords> words_;
  std::vector<Place> at_;
};

}  // namespace fathom
