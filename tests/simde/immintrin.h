// Stands in for the compiler's <immintrin.h> when the kernels are built for a plain x86-64: SIMDe's portable
// intrinsics under their own names, and in plain C++ the few that SIMDe 0.7.4 lacks or does not do bit for
// bit (multiply-adds with two roundings, NaN to F16).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// Unrolled, the emulated intrinsics take four times as long to compile.
#define FATHOM_UNROLL

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

using __mmask8 = uint8_t;
using __mmask16 = uint16_t;
using __mmask32 = uint32_t;
using __mmask64 = uint64_t;

namespace fathom_simde {
namespace {

// The lanes of a vector, by element type.
template <typename T, typename V>
struct Lanes {
  static constexpr int kCount = sizeof(V) / sizeof(T);
  T at[kCount];
  Lanes() = default;
  explicit Lanes(V v) { std::memcpy(at, &v, sizeof(v)); }
  V vector() const {
    V v;
    std::memcpy(&v, at, sizeof(v));
    return v;
  }
};

// to(i, in): lane i of the result.
template <typename ToV, typename To, typename From, typename V, typename F>
ToV map_lanes(V x, F to) {
  const Lanes<From, V> in(x);
  Lanes<To, ToV> out;
  for (int i = 0; i < out.kCount; ++i) out.at[i] = to(i, in.at);
  return out.vector();
}

inline __m512 cvtepi32_ps(__m512i x) {
  return map_lanes<__m512, float, int32_t>(
      x, [](int i, const int32_t* in) { return static_cast<float>(in[i]); });
}
inline __m512i cvtps_epi32(__m512 x) {
  return map_lanes<__m512i, int32_t, float>(x, [](int i, const float* in) {
    const float whole = std::nearbyint(in[i]);
    return whole >= -0x1p31f && whole < 0x1p31f ? static_cast<int32_t>(whole) : INT32_MIN;
  });
}
inline __m128i cvtepi32_epi8(__m512i x) {
  return map_lanes<__m128i, uint8_t, uint32_t>(
      x, [](int i, const uint32_t* in) { return static_cast<uint8_t>(in[i]); });
}
inline __m256i cvtepi32_epi16(__m512i x) {
  return map_lanes<__m256i, uint16_t, uint32_t>(
      x, [](int i, const uint32_t* in) { return static_cast<uint16_t>(in[i]); });
}
inline __m512i cvtepu16_epi32(__m256i x) {
  return map_lanes<__m512i, uint32_t, uint16_t>(x, [](int i, const uint16_t* in) { return in[i]; });
}
// To nearest, ties to even; subnormal numbers are taken as zero, as the instruction does.
inline __m256i cvtneps_pbh(__m512 x) {
  return map_lanes<__m256i, uint16_t, uint32_t>(x, [](int i, const uint32_t* in) {
    const uint32_t bits = in[i], exponent = bits & 0x7f800000u;
    if (exponent == 0) return static_cast<uint16_t>(bits >> 16 & 0x8000u);
    if (exponent == 0x7f800000u)
      return static_cast<uint16_t>(bits >> 16 | ((bits & 0x7fffffu) != 0 ? 0x40u : 0u));
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
  });
}
// The lower lanes come from `low`.
inline simde__m512bh cvtne2ps_pbh(__m512 high, __m512 low) {
  const __m256i parts[2] = {cvtneps_pbh(low), cvtneps_pbh(high)};
  simde__m512bh both;
  std::memcpy(&both, parts, sizeof(both));
  return both;
}
// Of the classes that kernels ask for, subnormal numbers only.
inline __mmask16 is_subnormal(__m512 x) {
  const Lanes<uint32_t, __m512> in(x);
  __mmask16 mask = 0;
  for (int i = 0; i < 16; ++i) {
    if ((in.at[i] & 0x7f800000u) == 0 && (in.at[i] & 0x7fffffu) != 0) mask |= static_cast<__mmask16>(1 << i);
  }
  return mask;
}
inline __m512 negated(__m512 x) {
  return map_lanes<__m512, uint32_t, uint32_t>(x,
                                               [](int i, const uint32_t* in) { return in[i] ^ 0x80000000u; });
}
template <typename ToV, typename V>
ToV f16_to_f32(V x) {
  return map_lanes<ToV, float, _Float16>(x,
                                         [](int i, const _Float16* in) { return static_cast<float>(in[i]); });
}
template <typename ToV, typename V>
ToV f32_to_f16(V x) {
  return map_lanes<ToV, _Float16, float>(x,
                                         [](int i, const float* in) { return static_cast<_Float16>(in[i]); });
}
inline __m512 movehdup(__m512 x) {
  return map_lanes<__m512, float, float>(x, [](int i, const float* in) { return in[i | 1]; });
}
inline __m512 moveldup(__m512 x) {
  return map_lanes<__m512, float, float>(x, [](int i, const float* in) { return in[i & ~1]; });
}
// Within each 128 bits, lane i takes lane (order >> 2i) & 3.
template <typename V>
V permute_words(V x, int order) {
  return map_lanes<V, uint32_t, uint32_t>(
      x, [&](int i, const uint32_t* in) { return in[(i & ~3) | ((order >> (i & 3) * 2) & 3)]; });
}
inline __m256 extract_half(__m512 x, int half) {
  return map_lanes<__m256, float, float>(x, [&](int i, const float* in) { return in[half * 8 + i]; });
}
// a · b + c, rounded once. The product is exact in double; the sum is rounded to odd there, so that rounding
// it again to float is right.
inline float fused(float a, float b, float c) {
  const double product = static_cast<double>(a) * b;
  double sum = product + c;
  const double part = sum - product;
  const double lost = (product - (sum - part)) + (c - part);
  if (lost > 0 || lost < 0) {
    uint64_t bits;
    std::memcpy(&bits, &sum, 8);
    if (bits % 2 == 0) bits = (lost > 0) == (sum > 0) ? bits + 1 : bits - 1;
    std::memcpy(&sum, &bits, 8);
  }
  return static_cast<float>(sum);
}
// c is taken off in even lanes where `alternate`.
template <typename V>
V multiply_add(V a, V b, V c, bool alternate) {
  const Lanes<float, V> y(b), z(c);
  return map_lanes<V, float, float>(a, [&](int i, const float* x) {
    return fused(x[i], y.at[i], alternate && i % 2 == 0 ? -z.at[i] : z.at[i]);
  });
}
inline __m512i madd_epi16(__m512i a, __m512i b) {
  const Lanes<int16_t, __m512i> y(b);
  return map_lanes<__m512i, int32_t, int16_t>(
      a, [&](int i, const int16_t* x) { return x[2 * i] * y.at[2 * i] + x[2 * i + 1] * y.at[2 * i + 1]; });
}
// 128-bit parts: two of a, then two of b.
inline __m512i shuffle_i64x2(__m512i a, __m512i b, int order) {
  const Lanes<int64_t, __m512i> y(b);
  return map_lanes<__m512i, int64_t, int64_t>(a, [&](int i, const int64_t* x) {
    const int part = order >> i / 2 * 2 & 3;
    return (i < 4 ? x : y.at)[2 * part + i % 2];
  });
}
// Lanes of T whose bit is clear are neither read nor written.
template <typename T, typename V>
V load_masked(uint32_t mask, const void* p) {
  Lanes<T, V> out{};
  for (int i = 0; i < out.kCount; ++i) {
    if (mask >> i & 1) std::memcpy(&out.at[i], static_cast<const char*>(p) + i * sizeof(T), sizeof(T));
  }
  return out.vector();
}
template <typename T, typename V>
void store_masked(void* p, uint32_t mask, V x) {
  const Lanes<T, V> in(x);
  for (int i = 0; i < in.kCount; ++i) {
    if (mask >> i & 1) std::memcpy(static_cast<char*>(p) + i * sizeof(T), &in.at[i], sizeof(T));
  }
}

}  // namespace
}  // namespace fathom_simde

#define _mm512_cvtepi32_ps(x) fathom_simde::cvtepi32_ps(x)
#define _mm512_cvtps_epi32(x) fathom_simde::cvtps_epi32(x)
#define _mm512_cvtepi32_epi8(x) fathom_simde::cvtepi32_epi8(x)
#define _mm512_cvtepi32_epi16(x) fathom_simde::cvtepi32_epi16(x)
#define _mm512_cvtepu16_epi32(x) fathom_simde::cvtepu16_epi32(x)
#define _mm512_shuffle_i64x2(a, b, order) fathom_simde::shuffle_i64x2(a, b, order)
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) fathom_simde::madd_epi16(a, b)
#define _mm512_cvtneps_pbh(x) fathom_simde::cvtneps_pbh(x)
#define _mm512_cvtne2ps_pbh(high, low) fathom_simde::cvtne2ps_pbh(high, low)
#define _mm512_fpclass_ps_mask(x, kind) \
  ((void)sizeof(char[(kind) == 0x20 ? 1 : -1]), fathom_simde::is_subnormal(x))
// SIMDe's macro shifts its argument as it stands, which takes an "a | b" apart.
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps(x, rounding) simde_mm512_roundscale_ps(x, (rounding))
#undef _mm256_cvtph_ps
#undef _mm256_cvtps_ph
#define _mm256_cvtph_ps(x) fathom_simde::f16_to_f32<__m256>(x)
#define _mm512_cvtph_ps(x) fathom_simde::f16_to_f32<__m512>(x)
#define _mm256_cvtps_ph(x, rounding) fathom_simde::f32_to_f16<__m128i>(x)
#define _mm512_cvtps_ph(x, rounding) fathom_simde::f32_to_f16<__m256i>(x)
#undef _mm256_fmadd_ps
#undef _mm256_fmaddsub_ps
#undef _mm512_fmadd_ps
#define _mm256_fmadd_ps(a, b, c) fathom_simde::multiply_add<__m256>(a, b, c, false)
#define _mm512_fmadd_ps(a, b, c) fathom_simde::multiply_add<__m512>(a, b, c, false)
#undef _mm512_fmsub_ps
#define _mm512_fmsub_ps(a, b, c) fathom_simde::multiply_add<__m512>(a, b, fathom_simde::negated(c), false)
#define _mm256_fmaddsub_ps(a, b, c) fathom_simde::multiply_add<__m256>(a, b, c, true)
#define _mm512_fmaddsub_ps(a, b, c) fathom_simde::multiply_add<__m512>(a, b, c, true)
#define _mm512_cvtss_f32(x) (fathom_simde::Lanes<float, __m512>(x).at[0])
#define _mm512_movehdup_ps(x) fathom_simde::movehdup(x)
#define _mm512_moveldup_ps(x) fathom_simde::moveldup(x)
#define _mm512_permute_ps(x, order) fathom_simde::permute_words(x, order)
#define _mm512_shuffle_epi32(x, order) fathom_simde::permute_words(x, order)
#define _mm512_extractf32x8_ps(x, half) fathom_simde::extract_half(x, half)
#define _mm512_maskz_loadu_ps(mask, p) fathom_simde::load_masked<float, __m512>(mask, p)
#define _mm512_maskz_loadu_epi16(mask, p) fathom_simde::load_masked<uint16_t, __m512i>(mask, p)
#define _mm512_mask_storeu_ps(p, mask, x) fathom_simde::store_masked<float>(p, mask, x)
#define _mm_mask_storeu_epi32(p, mask, x) fathom_simde::store_masked<int32_t>(p, mask, x)
#define _MM_PERM_CDAB 0xb1
#define _MM_PERM_BADC 0x4e
