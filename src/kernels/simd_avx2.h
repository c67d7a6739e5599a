// Eight floats with AVX2, FMA and F16C.
#pragma once

#include "kernels/simd.h"

namespace fathom {
namespace {

struct Avx2 {
  using F = __m256;
  using I = __m256i;
  static constexpr int64_t kLanes = 8;

  static FATHOM_INLINE F zero() { return _mm256_setzero_ps(); }
  static FATHOM_INLINE F set1(float x) { return _mm256_set1_ps(x); }
  static FATHOM_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
  static FATHOM_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static FATHOM_INLINE I mask(int64_t n) {
    const I lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lanes);
  }
  // The first n lanes; the others are zero.
  static FATHOM_INLINE F load_part(const float* p, int64_t n) { return _mm256_maskload_ps(p, mask(n)); }
  static FATHOM_INLINE void store_part(float* p, int64_t n, F x) { _mm256_maskstore_ps(p, mask(n), x); }
  // Lanes from n on become `other`.
  static FATHOM_INLINE F first_lanes(F x, int64_t n, F other) {
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(mask(n)));
  }

  static FATHOM_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
  static FATHOM_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static FATHOM_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static FATHOM_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
  static FATHOM_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static FATHOM_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
  static FATHOM_INLINE F min(F a, F b) { return _mm256_min_ps(a, b); }
  static FATHOM_INLINE F round(F x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static FATHOM_INLINE F zero_where_less(F x, F a, F b) {
    return _mm256_andnot_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ), x);
  }
  // x · 2^n for whole n in [-126, 127].
  static FATHOM_INLINE F scale_by_power(F x, F n) {
    const I exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
  }

  static FATHOM_INLINE float first(F x) { return _mm256_cvtss_f32(x); }
  // Sums and maxima over lanes, in a fixed order.
  static FATHOM_INLINE float sum(F x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  static FATHOM_INLINE float highest(F x) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }
  // The largest magnitude by its bits, so that NaN wins.
  static FATHOM_INLINE F max_magnitude(F a, F b) {
    const I magnitude = _mm256_and_si256(_mm256_castps_si256(b), _mm256_set1_epi32(0x7fffffff));
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), magnitude));
  }
  static FATHOM_INLINE float highest_bits(F x) {
    const I bits = _mm256_castps_si256(x);
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(half));
  }

  // Bit i: lane i == value.
  static FATHOM_INLINE uint32_t equals(F x, float value) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, set1(value), _CMP_EQ_OQ)));
  }
  // Bit i: |lane i| == magnitude.
  static FATHOM_INLINE uint32_t magnitude_equals(F x, float magnitude) {
    const F positive = _mm256_andnot_ps(set1(-0.0f), x);
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(positive, set1(magnitude), _CMP_EQ_OQ)));
  }

  // Interleaved pairs (re, im): x · (cos, sin).
  static FATHOM_INLINE F rotate_pairs(F x, F cos_sin) {
    const F swapped = _mm256_permute_ps(x, 0xb1);
    return _mm256_fmaddsub_ps(x, _mm256_moveldup_ps(cos_sin),
                              _mm256_mul_ps(swapped, _mm256_movehdup_ps(cos_sin)));
  }

  static FATHOM_INLINE F load_bf16(const void* p) {
    const I wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  // The elements of even and of odd index among 16 at p.
  static FATHOM_INLINE F load_bf16_even(const void* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(static_cast<const I*>(p)), 16));
  }
  static FATHOM_INLINE F load_bf16_odd(const void* p) {
    const I pairs = _mm256_loadu_si256(static_cast<const I*>(p));
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  // Nearest even, in the high half of each lane, the low half zero; NaN stays NaN.
  static FATHOM_INLINE F round_bf16(F x) {
    const I bits = _mm256_castps_si256(x);
    const I odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const I rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const I quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const F is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    const F result = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), is_nan);
    return _mm256_and_ps(result, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static FATHOM_INLINE void store_bf16(void* p, F x) {
    const I high = _mm256_srli_epi32(_mm256_castps_si256(round_bf16(x)), 16);
    const I packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static FATHOM_INLINE F even_halves(I pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
  static FATHOM_INLINE F odd_halves(I pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  // 32 e4m3 codes as BF16, exactly: `low` gets the low eight of each 128-bit lane, `high` the others. A code
  // shifted into place needs 120 added to its exponent, but for the eight subnormals (by table) and NaN.
  static FATHOM_INLINE void unpack_fp8(const std::byte* p, I& low, I& high) {
    const I codes = _mm256_load_si256(reinterpret_cast<const I*>(p));
    const I magnitude = _mm256_and_si256(codes, _mm256_set1_epi8(0x7f));
    const I table_high =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kFp8SubnormalHigh)));
    const I table_low =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kFp8SubnormalLow)));
    const I subnormal = _mm256_cmpgt_epi8(_mm256_set1_epi8(8), magnitude);
    const I nan = _mm256_cmpeq_epi8(magnitude, _mm256_set1_epi8(0x7f));
    const I shifted_high = _mm256_and_si256(_mm256_srli_epi16(magnitude, 4), _mm256_set1_epi8(0x07));
    const I shifted_low =
        _mm256_and_si256(_mm256_slli_epi16(magnitude, 4), _mm256_set1_epi8(static_cast<char>(0xf0)));
    I high_bytes = _mm256_add_epi8(shifted_high, _mm256_set1_epi8(0x3c));
    high_bytes = _mm256_blendv_epi8(high_bytes, _mm256_shuffle_epi8(table_high, magnitude), subnormal);
    high_bytes =
        _mm256_or_si256(high_bytes, _mm256_and_si256(codes, _mm256_set1_epi8(static_cast<char>(0x80))));
    high_bytes = _mm256_or_si256(high_bytes, _mm256_and_si256(nan, _mm256_set1_epi8(0x7f)));
    I low_bytes = _mm256_blendv_epi8(shifted_low, _mm256_shuffle_epi8(table_low, magnitude), subnormal);
    low_bytes = _mm256_or_si256(low_bytes, nan);
    low = _mm256_unpacklo_epi8(low_bytes, high_bytes);
    high = _mm256_unpackhi_epi8(low_bytes, high_bytes);
  }
  // 16 e4m3 codes to F32. NaN codes come only with a NaN scale (quantize_rows) and may be any number here.
  static FATHOM_INLINE void widen_fp8(const std::byte* p, float* out) {
    const I codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const I sign = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x80)), 8);
    const I half =
        _mm256_or_si256(sign, _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x7f)), 7));
    const F factor = set1(256.0f);  // between F16's exponent bias, 15, and e4m3's, 7
    store(out, mul(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), factor));
    store(out + 8, mul(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), factor));
  }
  static FATHOM_INLINE F load_f16(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static FATHOM_INLINE void store_f16(void* p, F x) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  // Numbers of magnitude ≤ 127 to int8, nearest even.
  static FATHOM_INLINE void store_int8(void* p, F x) {
    const I words = _mm256_packs_epi32(_mm256_cvtps_epi32(x), _mm256_setzero_si256());
    const __m128i joined =
        _mm_unpacklo_epi64(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storel_epi64(static_cast<__m128i*>(p), _mm_packs_epi16(joined, joined));
  }
  // e4m3, nearest even, saturating; NaN gives 0x7f. See f32_to_fp8_e4m3.
  static FATHOM_INLINE void store_fp8(void* p, F x) {
    const I bits = _mm256_castps_si256(x);
    const I magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const F shifted = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(0x1p14f));
    const I subnormal = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x46800000));
    const I odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, 20), _mm256_set1_epi32(1));
    const I rounded = _mm256_add_epi32(magnitude, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff)));
    const I normal = _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
    I code =
        _mm256_blendv_epi8(normal, subnormal, _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), magnitude));
    const I large = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x43dfffff));
    code = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7e), large);
    code = _mm256_or_si256(code, _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80)));
    const I nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    code = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), nan);
    const I words = _mm256_packus_epi32(code, _mm256_setzero_si256());
    const __m128i joined =
        _mm_unpacklo_epi64(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storel_epi64(static_cast<__m128i*>(p), _mm_packus_epi16(joined, joined));
  }
};

}  // namespace
}  // namespace fathom
