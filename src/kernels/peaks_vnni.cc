// The rate of vpdpbusd.
#include <immintrin.h>

#include "kernels/peaks_loops.h"

namespace fathom {
namespace {

float run_int8(int64_t iterations) {
  __m512i acc[16];
  for (auto& a : acc) a = _mm512_setzero_si512();
  __m512i x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(5);
  for (int64_t i = 0; i < iterations; ++i) {
    for (auto& a : acc) a = _mm512_dpbusd_epi32(a, x, y);
    asm volatile("" : "+v"(x), "+v"(y));
  }
  __m512i sum = acc[0];
  for (int i = 1; i < 16; ++i) sum = _mm512_add_epi32(sum, acc[i]);
  return static_cast<float>(_mm_cvtsi128_si32(_mm512_castsi512_si128(sum)));
}

}  // namespace

PeakLoop int8_loop_vnni() { return {run_int8, 16 * 64 * 2}; }

}  // namespace fathom
