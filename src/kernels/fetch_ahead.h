// How weights are asked for before they are needed. Included by instruction-set files only.
//
// With few rows a panel is a stream: lines go to L1, 8 KiB ahead. From about six rows on (fewer where weights
// must be decoded) products take longer than memory, and lines fetched into L1 would wait there and hold up
// the few requests L1 can have under way; fetched into L2, memory works beside the products: 8 rows of BF16
// read 26 GB/s instead of 20 (one core of a Zen 4).
#pragma once

#include <immintrin.h>

#include "kernels/panel_driver.h"
#include "kernels/simd.h"

namespace fathom {
namespace {

constexpr int64_t kPrefetchBytes = 8192;

// Into the cache of this level; 0: of none.
template <int kLevel>
FATHOM_INLINE void fetch([[maybe_unused]] const std::byte* p) {
  if constexpr (kLevel == 1) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
  } else if constexpr (kLevel == 2) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
  }
}

// From the panel's place to what is to be fetched meanwhile.
FATHOM_INLINE int64_t bytes_ahead(const MicroArgs& args) {
  return args.ahead != nullptr ? args.ahead - args.w : kPrefetchBytes;
}

}  // namespace
}  // namespace fathom
