// Online softmax before vdpbf16ps. Sixteen lanes are sixteen rows (heads, or query tokens) over one tile of
// scores, [keys][lanes]; their probabilities come out as the BF16 pairs that the product with the values
// reads, [pairs of keys][lanes]. Nothing is reduced across lanes, and a lane meets its keys in their order.
#pragma once

#include "kernels/attention_softmax.h"
#include "kernels/simd_avx512.h"

namespace fathom {
namespace {

// The score of a key that a row does not see, and where maxima begin: below any real score, yet finite, so
// that no difference of two is NaN.
constexpr float kHiddenScore = -1e30f;

// 2^x for x up to hardly above 0, to a relative error of 7.5e-5, where rounding to BF16 costs up to 2e-3:
// 2^floor(x) · p(x - floor(x)). Far below, scalef gives 0.
constexpr float kExp2RoughP[4] = {0.9999251961708069f, 0.6958335638046265f, 0.22606715559959412f,
                                  0.07802452147006989f};
// Several at a time, step by step: one after the other they would fill the queue with what waits.
template <int kCount>
FATHOM_INLINE void exp2_rough(__m512 (&x)[kCount]) {
  __m512 r[kCount], p[kCount];
  FATHOM_UNROLL
  for (int i = 0; i < kCount; ++i)
    r[i] = _mm512_roundscale_ps(x[i], _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  FATHOM_UNROLL
  for (int i = 0; i < kCount; ++i) r[i] = _mm512_sub_ps(x[i], r[i]);
  FATHOM_UNROLL
  for (int i = 0; i < kCount; ++i)
    p[i] = _mm512_fmadd_ps(_mm512_set1_ps(kExp2RoughP[3]), r[i], _mm512_set1_ps(kExp2RoughP[2]));
  FATHOM_UNROLL
  for (int i = 0; i < kCount; ++i) p[i] = _mm512_fmadd_ps(p[i], r[i], _mm512_set1_ps(kExp2RoughP[1]));
  FATHOM_UNROLL
  for (int i = 0; i < kCount; ++i) p[i] = _mm512_fmadd_ps(p[i], r[i], _mm512_set1_ps(kExp2RoughP[0]));
  FATHOM_UNROLL
  for (int i = 0; i < kCount; ++i) x[i] = _mm512_scalef_ps(p[i], x[i]);
}

// Words first, 32 + first, first + 1, …: the order in which _mm512_permutex2var_epi16 makes pairs of two
// rows' 16 words from `first` on.
FATHOM_INLINE __m512i pair_order(int first) {
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7,
                                       38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  return _mm512_add_epi16(low, _mm512_set1_epi16(static_cast<int16_t>(first)));
}

// A tile for 16 lanes.
struct ScoreTile {
  const float* scores;  // [count][stride]
  int64_t stride;
  int64_t count;  // keys
  int64_t own;    // kMasked: lane i sees keys up to own + i
  float factor;   // scores are exponents of 2 after it; > 0
  uint32_t* p;    // [(count + 1) / 2][p_stride]
  int64_t p_stride;
};

// State as in SoftmaxState, of the first lane; maxima are of scores without the factor.
template <bool kMasked>
FATHOM_INLINE void softmax_pairs(const ScoreTile& tile, float* highest, float* sum, float* fade) {
  const __m512 factor = _mm512_set1_ps(tile.factor), hidden = _mm512_set1_ps(kHiddenScore);
  const auto score = [&](int64_t t) {
    const __m512 x = _mm512_load_ps(tile.scores + t * tile.stride);
    if (!kMasked) return x;
    const int64_t before = t - tile.own;  // so many lanes do not see it
    const uint32_t seeing = 0xffffu << (before < 0 ? 0 : smaller(before, 16));
    return _mm512_mask_blend_ps(static_cast<__mmask16>(seeing), hidden, x);
  };
  const int64_t pairs = tile.count / 2;
  const __m512 before = _mm512_loadu_ps(highest);
  __m512 top = before, top_odd = before;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    top = _mm512_max_ps(top, score(2 * pair));
    top_odd = _mm512_max_ps(top_odd, score(2 * pair + 1));
  }
  top = _mm512_max_ps(top, top_odd);
  if (tile.count % 2 == 1) top = _mm512_max_ps(top, score(tile.count - 1));

  const __m512 fall = _mm512_mul_ps(_mm512_sub_ps(before, top), factor);
  const __m512 left = simd_exp<Avx512>(_mm512_mul_ps(fall, _mm512_set1_ps(kLn2)));
  const __m512 offset = _mm512_mul_ps(top, factor);
  const __m512i order =
      _mm512_sub_epi16(pair_order(0), _mm512_set1_epi32(16 << 16));  // one register's halves
  const auto ones = (__m512bh)_mm512_set1_epi16(0x3f80);
  __m512 total = _mm512_mul_ps(_mm512_loadu_ps(sum), left);
  const auto put = [&](int64_t pair, __m512 even, __m512 odd) {
    const __m512i both = _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
    _mm512_store_si512(tile.p + pair * tile.p_stride, both);
    total = _mm512_dpbf16_ps(total, (__m512bh)both, ones);
  };
  const auto exponent = [&](int64_t t) { return _mm512_fmsub_ps(score(t), factor, offset); };
  int64_t t = 0;
  for (; t + 4 <= tile.count; t += 4) {
    __m512 x[4] = {exponent(t), exponent(t + 1), exponent(t + 2), exponent(t + 3)};
    exp2_rough<4>(x);
    put(t / 2, x[0], x[1]);
    put(t / 2 + 1, x[2], x[3]);
  }
  for (; t < tile.count; t += 2) {
    const bool both = t + 1 < tile.count;
    __m512 x[2] = {exponent(t), exponent(both ? t + 1 : t)};
    exp2_rough<2>(x);
    put(t / 2, x[0], both ? x[1] : _mm512_setzero_ps());
  }
  _mm512_storeu_ps(highest, top);
  _mm512_storeu_ps(fade, left);
  _mm512_storeu_ps(sum, total);
}

}  // namespace
}  // namespace fathom
