// Names of cached blocks: a chain of SHA-256 over everything that made the block's contents, so that equal
// keys mean equal KV, in memory, on disk and on other machines. The format is part of what leaves the
// process:
//   key_0 = SHA-256("fathom-kv-1" | u32 n, fingerprint | u32 n, layout | u32 n, tenant)    n: bytes that
//   follow key_i = SHA-256(key_{i-1} | the block's 64 token ids as i32)                       all
//   little-endian
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kv/storage.h"

namespace fathom {

struct BlockKey {
  std::array<uint8_t, 32> bytes{};
  friend bool operator==(const BlockKey&, const BlockKey&) = default;
};

// The keys are uniform already; their first bytes are a hash.
struct BlockKeyHash {
  size_t operator()(const BlockKey& key) const;
};

// key_0. `fingerprint` tells models (weights, weight format, numerics and mode) apart, `layout` is
// KvLayout::to_string(), `tenant` keeps one user's cache invisible to others.
BlockKey root_key(std::string_view fingerprint, std::string_view layout, std::string_view tenant);
// key_i of a block of exactly kBlockTokens tokens that follows `parent`.
BlockKey child_key(const BlockKey& parent, std::span<const int32_t> tokens);

// The keys of one growing sequence, computed once each.
class KeyChain {
 public:
  explicit KeyChain(const BlockKey& root) : root_(root) {}

  // Computes the keys of all whole blocks of `tokens`, the sequence so far. Tokens before the last call's end
  // must not have changed.
  void extend(std::span<const int32_t> tokens);
  int32_t size() const { return static_cast<int32_t>(keys_.size()); }
  // Of the sequence's block `index` (from 0), index < size().
  const BlockKey& operator[](int32_t index) const { return keys_[static_cast<size_t>(index)]; }

 private:
  BlockKey root_;
  std::vector<BlockKey> keys_;
};

}  // namespace fathom
