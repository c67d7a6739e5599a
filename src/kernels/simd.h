// What the instruction-set files share. Code in the simd_*.h and *_simd.h headers is in unnamed namespaces:
// each file compiles its own copy for its own instruction set, and the linker must never merge them with
// another's.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#if defined(__clang__)
#define FATHOM_NO_UNROLL _Pragma("nounroll")
#else
#define FATHOM_NO_UNROLL _Pragma("GCC unroll 1")
#endif
#if defined(FATHOM_UNROLL)  // the SIMDe build (tests/simde) unrolls nothing
#elif defined(__clang__)
#define FATHOM_UNROLL _Pragma("unroll")
#else
#define FATHOM_UNROLL _Pragma("GCC unroll 32")
#endif
#define FATHOM_INLINE inline __attribute__((always_inline))

namespace fathom {
namespace {

FATHOM_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// BF16 bytes of the e4m3 codes 0-7: m · 2^-9.
constexpr uint8_t kFp8SubnormalHigh[16] = {0x00, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c};
constexpr uint8_t kFp8SubnormalLow[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60};

// exp(x) = 2^n · exp(r), n = round(x / ln 2), |r| ≤ ln 2 / 2. exp(r) = 1 + r + r² · q(r) with q interpolating
// (exp(r) - 1 - r) / r² at Chebyshev's nodes: relative error 7.4e-8, measured over all of the range.
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2High = 0.693359375f;  // few bits, so that n · kLn2High is exact
constexpr float kLn2Low = -2.12194440e-4f;
constexpr float kExpQ[5] = {0.5f, 0.16666576266288757f, 0.041666556149721146f, 0.008363178931176662f,
                            0.0013926184037700295f};

// Below kExpLow the result is 0; above kExpHigh it stays at the largest finite power.
constexpr float kExpLow = -87.3f;
constexpr float kExpHigh = 88.3f;

template <class V>
FATHOM_INLINE typename V::F simd_exp(typename V::F x) {
  using F = typename V::F;
  // NaN goes through: max and min give their second argument when one is NaN.
  const F clamped = V::min(V::set1(kExpHigh), V::max(V::set1(kExpLow), x));
  const F n = V::round(V::mul(clamped, V::set1(kLog2E)));
  F r = V::fma(n, V::set1(-kLn2High), clamped);
  r = V::fma(n, V::set1(-kLn2Low), r);
  F q = V::set1(kExpQ[4]);
  q = V::fma(q, r, V::set1(kExpQ[3]));
  q = V::fma(q, r, V::set1(kExpQ[2]));
  q = V::fma(q, r, V::set1(kExpQ[1]));
  q = V::fma(q, r, V::set1(kExpQ[0]));
  const F y = V::add(V::fma(q, V::mul(r, r), r), V::set1(1.0f));
  return V::zero_where_less(V::scale_by_power(y, n), x, V::set1(kExpLow));
}

// 2^x for x ≤ 0, to a relative error of 2.7e-6: for what is rounded to BF16 next. 2^n · p(x - n), n =
// round(x).
constexpr float kExp2Low = -126.0f;  // below it the result is 0
constexpr float kExp2P[5] = {0.9999992847442627f, 0.6931217908859253f, 0.240247443318367f,
                             0.05591785907745361f, 0.009570096619427204f};

template <class V>
FATHOM_INLINE typename V::F simd_exp2_short(typename V::F x) {
  using F = typename V::F;
  const F clamped = V::max(V::set1(kExp2Low), x);
  const F n = V::round(clamped);
  const F r = V::sub(clamped, n);
  F p = V::set1(kExp2P[4]);
  p = V::fma(p, r, V::set1(kExp2P[3]));
  p = V::fma(p, r, V::set1(kExp2P[2]));
  p = V::fma(p, r, V::set1(kExp2P[1]));
  p = V::fma(p, r, V::set1(kExp2P[0]));
  return V::zero_where_less(V::scale_by_power(p, n), x, V::set1(kExp2Low));
}

}  // namespace
}  // namespace fathom
