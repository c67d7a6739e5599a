// Asking for memory before it is used, where rows are too far apart for hardware prefetchers.
#pragma once

#include <cstdint>

namespace fathom {

inline constexpr int64_t kPrefetchLineBytes = 64;

inline void prefetch_row(const void* row, int64_t bytes) {
  const auto* const begin = static_cast<const char*>(row);
  for (int64_t at = 0; at < bytes; at += kPrefetchLineBytes) __builtin_prefetch(begin + at);
}

// The same into the second-level cache: for what is read later, or more than the first level holds.
inline void prefetch_to_l2(const void* from, int64_t bytes) {
  const auto* const begin = static_cast<const char*>(from);
  for (int64_t at = 0; at < bytes; at += kPrefetchLineBytes) __builtin_prefetch(begin + at, 0, 2);
}

}  // namespace fathom
