// The BF16 micro-kernel: rows of BF16 against a panel of BF16 pairs with vdpbf16ps, sums in F32. Used by
// linear layers and by attention, whose scores and weighted sums are small products of the same form.
#pragma once

#include "kernels/fetch_ahead.h"
#include "kernels/panel_driver.h"
#include "kernels/simd_avx512.h"

namespace fathom {
namespace {

FATHOM_INLINE __m512bh broadcast_pair(const std::byte* a) {
  int32_t pair;
  __builtin_memcpy(&pair, a, 4);
  return (__m512bh)_mm512_set1_epi32(pair);
}

// One pair of K: acc[r][v] += w[v] · (the pair of row r). Rows are reached through few registers, as
// base[r / 3] + {0, 1, 2} · stride.
template <int kRows, int kVectors>
FATHOM_INLINE void multiply_step(const std::byte* const* base, int64_t stride, const __m512bh (&w)[kVectors],
                                 __m512 (&acc)[kRows][kVectors]) {
  FATHOM_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const __m512bh a = broadcast_pair(base[r / 3] + r % 3 * stride);
    FATHOM_UNROLL
    for (int v = 0; v < kVectors; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], w[v], a);
  }
}

// acc += a block of rows · a panel of kVectors · 16 columns, in steps of kVectors · 64 bytes. kLevel: of the
// cache that what is ahead is fetched into; 0: nothing is.
template <int kRows, int kVectors, int kLevel>
FATHOM_INLINE void add_products(const MicroArgs& args, __m512 (&acc)[kRows][kVectors]) {
  constexpr int kBases = (kRows + 2) / 3;
  const std::byte* base[kBases];
  for (int i = 0; i < kBases; ++i) base[i] = args.a + i * 3 * args.a_stride;
  const std::byte* at = args.w;
  const std::byte* ahead = at + bytes_ahead(args);
  for (int64_t pairs = (args.k_count + 1) / 2; pairs > 0; --pairs) {
    __m512bh w[kVectors];
    FATHOM_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      fetch<kLevel>(ahead + v * 64);
      w[v] = (__m512bh)_mm512_load_si512(at + v * 64);
    }
    multiply_step<kRows, kVectors>(base, args.a_stride, w, acc);
    for (int i = 0; i < kBases; ++i) base[i] += 4;
    at += kVectors * 64;
    ahead += kVectors * 64;
  }
}

template <int kRows, int kVectors>
FATHOM_INLINE void store_sums(const MicroArgs& args, const __m512 (&acc)[kRows][kVectors]) {
  FATHOM_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FATHOM_UNROLL
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(args.c + r * args.c_stride + v * 16, acc[r][v]);
  }
}

// c (+)= a block of rows · a panel.
template <int kRows, int kVectors, int kLevel>
FATHOM_INLINE void run_bf16(const MicroArgs& args) {
  __m512 acc[kRows][kVectors];
  FATHOM_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FATHOM_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] = args.first ? _mm512_setzero_ps() : _mm512_loadu_ps(args.c + r * args.c_stride + v * 16);
    }
  }
  add_products<kRows, kVectors, kLevel>(args, acc);
  store_sums<kRows, kVectors>(args, acc);
}

}  // namespace
}  // namespace fathom
