// peaks_loops.h for AVX2.
#include <immintrin.h>

#include "kernels/peaks_loops.h"

namespace fathom {
namespace {

float run_fma(int64_t iterations) {
  __m256 acc[12];
  for (auto& a : acc) a = _mm256_set1_ps(1.0f);
  __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
  for (int64_t i = 0; i < iterations; ++i) {
    for (auto& a : acc) a = _mm256_fmadd_ps(a, x, y);
    asm volatile("" : "+x"(x), "+x"(y));
  }
  __m256 sum = acc[0];
  for (int i = 1; i < 12; ++i) sum = _mm256_add_ps(sum, acc[i]);
  return _mm256_cvtss_f32(sum);
}

float run_int8(int64_t iterations) {
  __m256i acc[8];
  for (auto& a : acc) a = _mm256_setzero_si256();
  __m256i x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(5), ones = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < iterations; ++i) {
    for (auto& a : acc) {
      asm volatile("" : "+x"(x), "+x"(y));
      a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), ones));
    }
  }
  __m256i sum = acc[0];
  for (int i = 1; i < 8; ++i) sum = _mm256_add_epi32(sum, acc[i]);
  return static_cast<float>(_mm256_extract_epi32(sum, 0));
}

}  // namespace

PeakLoop fma_loop_avx2() { return {run_fma, 12 * 8 * 2}; }
PeakLoop int8_loop_avx2() { return {run_int8, 8 * 32 * 2}; }

float read_memory_avx2(const std::byte* data, int64_t bytes) {
  __m256i sum[8];
  for (auto& s : sum) s = _mm256_setzero_si256();
  for (int64_t at = 0; at < bytes; at += 256) {
    _mm_prefetch(reinterpret_cast<const char*>(data + at + 4096), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(data + at + 4160), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(data + at + 4224), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(data + at + 4288), _MM_HINT_T0);
    for (int i = 0; i < 8; ++i) {
      sum[i] =
          _mm256_xor_si256(sum[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + at + i * 32)));
    }
  }
  for (int i = 1; i < 8; ++i) sum[0] = _mm256_xor_si256(sum[0], sum[i]);
  return static_cast<float>(_mm256_extract_epi32(sum[0], 0));
}

}  // namespace fathom
