// Sixteen floats with AVX-512 F, BW, DQ and VL.
#pragma once

#include "kernels/simd.h"

namespace fathom {
namespace {

struct Avx512 {
  using F = __m512;
  using I = __m512i;
  static constexpr int64_t kLanes = 16;

  static FATHOM_INLINE F zero() { return _mm512_setzero_ps(); }
  static FATHOM_INLINE F set1(float x) { return _mm512_set1_ps(x); }
  static FATHOM_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  static FATHOM_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static FATHOM_INLINE __mmask16 mask(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
  // The first n lanes; the others are zero.
  static FATHOM_INLINE F load_part(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(mask(n), p); }
  static FATHOM_INLINE void store_part(float* p, int64_t n, F x) { _mm512_mask_storeu_ps(p, mask(n), x); }
  // Lanes from n on become `other`.
  static FATHOM_INLINE F first_lanes(F x, int64_t n, F other) {
    return _mm512_mask_blend_ps(mask(n), other, x);
  }

  static FATHOM_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
  static FATHOM_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static FATHOM_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static FATHOM_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
  static FATHOM_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static FATHOM_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
  static FATHOM_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
  static FATHOM_INLINE F round(F x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static FATHOM_INLINE F zero_where_less(F x, F a, F b) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ), x);
  }
  // x · 2^n for whole n in [-126, 127].
  static FATHOM_INLINE F scale_by_power(F x, F n) { return _mm512_scalef_ps(x, n); }

  static FATHOM_INLINE float first(F x) { return _mm512_cvtss_f32(x); }
  // Sums and maxima over lanes, in a fixed order.
  static FATHOM_INLINE __m256 high_half(F x) { return _mm512_extractf32x8_ps(x, 1); }
  static FATHOM_INLINE float sum(F x) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), high_half(x));
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  static FATHOM_INLINE float highest(F x) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x), high_half(x));
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }
  // The largest magnitude by its bits, so that NaN wins.
  static FATHOM_INLINE F max_magnitude(F a, F b) {
    const I magnitude = _mm512_and_si512(_mm512_castps_si512(b), _mm512_set1_epi32(0x7fffffff));
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), magnitude));
  }
  static FATHOM_INLINE float highest_bits(F x) {
    const I bits = _mm512_castps_si512(x);
    const __m256i eight = _mm256_max_epi32(_mm512_castsi512_si256(bits), _mm512_extracti64x4_epi64(bits, 1));
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(half));
  }

  // Bit i: lane i == value.
  static FATHOM_INLINE uint32_t equals(F x, float value) {
    return _mm512_cmp_ps_mask(x, set1(value), _CMP_EQ_OQ);
  }
  // Bit i: |lane i| == magnitude.
  static FATHOM_INLINE uint32_t magnitude_equals(F x, float magnitude) {
    return _mm512_cmp_ps_mask(_mm512_abs_ps(x), set1(magnitude), _CMP_EQ_OQ);
  }

  // Interleaved pairs (re, im): x · (cos, sin).
  static FATHOM_INLINE F rotate_pairs(F x, F cos_sin) {
    const F swapped = _mm512_permute_ps(x, 0xb1);
    return _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(cos_sin),
                              _mm512_mul_ps(swapped, _mm512_movehdup_ps(cos_sin)));
  }

  static FATHOM_INLINE F load_bf16(const void* p) {
    const I wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  // The elements of even and of odd index among 32 at p.
  static FATHOM_INLINE F load_bf16_even(const void* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
  }
  static FATHOM_INLINE F load_bf16_odd(const void* p) {
    const I high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), high));
  }
  // Nearest even, in the high half of each lane; the low half is anything. NaN stays NaN.
  static FATHOM_INLINE I rounded_halves(F x) {
    const I bits = _mm512_castps_si512(x);
    const I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    I rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
  }
  // The same with the low half zero.
  static FATHOM_INLINE F round_bf16(F x) {
    const I high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return _mm512_castsi512_ps(_mm512_and_si512(rounded_halves(x), high));
  }
  static FATHOM_INLINE void store_bf16(void* p, F x) {
    const I high = _mm512_srli_epi32(rounded_halves(x), 16);
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(high));
  }
  static FATHOM_INLINE F even_halves(I pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  static FATHOM_INLINE F odd_halves(I pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  // 64 e4m3 codes as BF16, exactly: `low` gets the low eight of each 128-bit lane, `high` the others. A code
  // shifted into place needs 120 added to its exponent, but for the eight subnormals (by table) and NaN.
  static FATHOM_INLINE void unpack_fp8(const std::byte* p, I& low, I& high) {
    const I codes = _mm512_load_si512(p);
    const I magnitude = _mm512_and_si512(codes, _mm512_set1_epi8(0x7f));
    const I table_high =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kFp8SubnormalHigh)));
    const I table_low =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kFp8SubnormalLow)));
    const __mmask64 subnormal = _mm512_cmplt_epu8_mask(magnitude, _mm512_set1_epi8(8));
    const __mmask64 nan = _mm512_cmpeq_epi8_mask(magnitude, _mm512_set1_epi8(0x7f));
    const I shifted_high = _mm512_and_si512(_mm512_srli_epi16(magnitude, 4), _mm512_set1_epi8(0x07));
    const I shifted_low =
        _mm512_and_si512(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi8(static_cast<char>(0xf0)));
    I high_bytes = _mm512_add_epi8(shifted_high, _mm512_set1_epi8(0x3c));
    high_bytes = _mm512_mask_shuffle_epi8(high_bytes, subnormal, table_high, magnitude);
    high_bytes = _mm512_mask_mov_epi8(high_bytes, nan, _mm512_set1_epi8(0x7f));
    high_bytes =
        _mm512_or_si512(high_bytes, _mm512_and_si512(codes, _mm512_set1_epi8(static_cast<char>(0x80))));
    I low_bytes = _mm512_mask_shuffle_epi8(shifted_low, subnormal, table_low, magnitude);
    low_bytes = _mm512_mask_mov_epi8(low_bytes, nan, _mm512_set1_epi8(static_cast<char>(0xff)));
    low = _mm512_unpacklo_epi8(low_bytes, high_bytes);
    high = _mm512_unpackhi_epi8(low_bytes, high_bytes);
  }
  // 16 e4m3 codes to F32. NaN codes come only with a NaN scale (quantize_rows) and may be any number here.
  static FATHOM_INLINE void widen_fp8(const std::byte* p, float* out) {
    const __m256i codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x80)), 8);
    const __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x7f)), 7);
    // 256 between F16's exponent bias, 15, and e4m3's, 7.
    store(out, mul(_mm512_cvtph_ps(_mm256_or_si256(sign, magnitude)), set1(256.0f)));
  }
  static FATHOM_INLINE F load_f16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static FATHOM_INLINE void store_f16(void* p, F x) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  // Numbers of magnitude ≤ 127 to int8, nearest even.
  static FATHOM_INLINE void store_int8(void* p, F x) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
  }
  // e4m3, nearest even, saturating; NaN gives 0x7f. See f32_to_fp8_e4m3.
  static FATHOM_INLINE void store_fp8(void* p, F x) {
    const I bits = _mm512_castps_si512(x);
    const I magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const F shifted = _mm512_add_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(0x1p14f));
    const I subnormal = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(0x46800000));
    const I odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, 20), _mm512_set1_epi32(1));
    const I rounded = _mm512_add_epi32(magnitude, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff)));
    I code = _mm512_sub_epi32(_mm512_srli_epi32(rounded, 20), _mm512_set1_epi32(120 << 3));
    const auto at_most = [&](int limit) {
      return _mm512_cmple_epi32_mask(magnitude, _mm512_set1_epi32(limit));
    };
    code = _mm512_mask_mov_epi32(code, at_most(0x3c7fffff), subnormal);
    code = _mm512_mask_mov_epi32(_mm512_set1_epi32(0x7e), at_most(0x43dfffff), code);
    code = _mm512_or_si512(code, _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80)));
    code = _mm512_mask_mov_epi32(_mm512_set1_epi32(0x7f), at_most(0x7f800000), code);
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(code));
  }
};

}  // namespace
}  // namespace fathom
