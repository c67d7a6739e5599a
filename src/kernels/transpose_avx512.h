// Turning rows into lanes: 16 × 16 elements of 32 bits in registers.
#pragma once

#include "kernels/simd.h"

namespace fathom {
namespace {

// 16 rows of 16 lanes, transposed.
FATHOM_INLINE void transpose(__m512i (&x)[16]) {
  __m512i y[16];
  FATHOM_UNROLL
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  FATHOM_UNROLL
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
  // Now x[4g + c] holds, per 128-bit lane L, column 4L + c of rows 4g … 4g + 3.
  FATHOM_UNROLL
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(x[c], x[4 + c], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(x[c], x[4 + c], 0xdd);
    const __m512i low23 = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0x88);
    const __m512i high23 = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0xdd);
    y[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    y[8 + c] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    y[4 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    y[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
  FATHOM_UNROLL
  for (int i = 0; i < 16; ++i) x[i] = y[i];
}

}  // namespace
}  // namespace fathom
