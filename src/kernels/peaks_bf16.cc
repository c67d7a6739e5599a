// The rate of vdpbf16ps.
#include <immintrin.h>

#include "kernels/peaks_loops.h"

namespace fathom {
namespace {

float run_bf16(int64_t iterations) {
  __m512 acc[16];
  for (auto& a : acc) a = _mm512_setzero_ps();
  __m512i x = _mm512_set1_epi32(0x3c003c00), y = _mm512_set1_epi32(0x3c003c00);
  for (int64_t i = 0; i < iterations; ++i) {
    for (auto& a : acc) a = _mm512_dpbf16_ps(a, (__m512bh)x, (__m512bh)y);
    asm volatile("" : "+v"(x), "+v"(y));
  }
  __m512 sum = acc[0];
  for (int i = 1; i < 16; ++i) sum = _mm512_add_ps(sum, acc[i]);
  return _mm512_cvtss_f32(sum);
}

}  // namespace

PeakLoop bf16_loop_bf16() { return {run_bf16, 16 * 32 * 2}; }

}  // namespace fathom
