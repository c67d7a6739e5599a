// peaks_loops.h for AVX-512.
#include <immintrin.h>

#include "kernels/peaks_loops.h"

namespace fathom {
namespace {

float run_fma(int64_t iterations) {
  __m512 acc[16];
  for (auto& a : acc) a = _mm512_set1_ps(1.0f);
  __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
  for (int64_t i = 0; i < iterations; ++i) {
    for (auto& a : acc) a = _mm512_fmadd_ps(a, x, y);
    asm volatile("" : "+v"(x), "+v"(y));
  }
  __m512 sum = acc[0];
  for (int i = 1; i < 16; ++i) sum = _mm512_add_ps(sum, acc[i]);
  return _mm512_cvtss_f32(sum);
}

}  // namespace

PeakLoop fma_loop_avx512() { return {run_fma, 16 * 16 * 2}; }

}  // namespace fathom
