// A tournament tree over a fixed number of ranks: the smallest key and whose it is in O(1), one key changed
// in O(log n), all of them in O(n). Nothing allocates after construction. Ties go to the lowest index,
// counted from an offset so that several balancers over the same ranks do not all start at rank 0.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace fathom {

class MinTree {
 public:
  // Keys are below kKeyMax; kExcluded is "not a candidate".
  static constexpr int kIndexBits = 14;
  static constexpr int64_t kKeyMax = int64_t{1} << (62 - kIndexBits);
  static constexpr int64_t kExcluded = kKeyMax;
  static constexpr int kLeavesMax = 1 << kIndexBits;

  explicit MinTree(int num_leaves, int offset = 0)
      : num_leaves_(num_leaves),
        offset_(offset % num_leaves),
        width_(static_cast<int>(std::bit_ceil(static_cast<unsigned>(num_leaves)))),
        nodes_(2 * width_, pack(kExcluded, 0)) {
    CHECK(num_leaves > 0 && num_leaves <= kLeavesMax);
  }

  int size() const { return num_leaves_; }
  int best() const {
    const int leaf = static_cast<int>(nodes_[1] & (kLeavesMax - 1)) + offset_;
    return leaf >= num_leaves_ ? leaf - num_leaves_ : leaf;
  }
  int64_t best_key() const { return nodes_[1] >> kIndexBits; }
  bool has_best() const { return best_key() < kExcluded; }
  int64_t key(int leaf) const { return nodes_[width_ + place(leaf)] >> kIndexBits; }

  void set(int leaf, int64_t key) {
    int node = width_ + place(leaf);
    nodes_[node] = pack(clamp(key), node - width_);
    for (node /= 2; node >= 1; node /= 2) {
      const int64_t winner = std::min(nodes_[2 * node], nodes_[2 * node + 1]);
      if (nodes_[node] == winner) return;
      nodes_[node] = winner;
    }
  }
  // Leaf keys only; rebuild() must follow before best() is read.
  void set_leaf(int leaf, int64_t key) {
    const int at = place(leaf);
    nodes_[width_ + at] = pack(clamp(key), at);
  }
  void rebuild() {
    for (int node = width_ - 1; node >= 1; --node)
      nodes_[node] = std::min(nodes_[2 * node], nodes_[2 * node + 1]);
  }

 private:
  static int64_t pack(int64_t key, int at) { return (key << kIndexBits) | at; }
  static int64_t clamp(int64_t key) { return std::min(std::max<int64_t>(key, 0), kExcluded); }
  int place(int leaf) const { return leaf >= offset_ ? leaf - offset_ : leaf - offset_ + num_leaves_; }

  int num_leaves_;
  int offset_;
  int width_;
  std::vector<int64_t> nodes_;
};

}  // namespace fathom
