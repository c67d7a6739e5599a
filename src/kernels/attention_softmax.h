// Online softmax over one tile of 64 keys, for a vector type V, in the two arrangements the kernels use:
// lanes are heads (absorbed) or keys (per head). kBf16: probabilities are rounded to BF16 before they are
// summed and used; scores and their maxima are then held in units of ln 2, so that a probability is a power
// of two.
#pragma once

#include "kernels/attention.h"
#include "kernels/formats.h"
#include "kernels/simd.h"

namespace fathom {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kLn2 = 0.69314718f;

// Running state of a set of rows (heads or query tokens).
struct SoftmaxState {
  float* highest;  // largest scaled score so far
  float* sum;      // Σ exp(score - highest)
  float* fade;     // what earlier sums are to be multiplied with after this tile
};

template <class V, bool kBf16>
FATHOM_INLINE typename V::F probability(typename V::F score, typename V::F highest) {
  const auto below = V::sub(score, highest);
  return kBf16 ? V::round_bf16(simd_exp2_short<V>(below)) : simd_exp<V>(below);
}

// What a maximum that rose from `before` to `after` leaves of earlier sums.
template <class V, bool kBf16>
FATHOM_INLINE typename V::F fading(typename V::F before, typename V::F after) {
  const auto below = V::sub(before, after);
  return simd_exp<V>(kBf16 ? V::mul(below, V::set1(kLn2)) : below);
}

// Lanes are heads: scores [count][stride] of `heads` heads (rounded up to whole vectors) become
// probabilities.
template <class V, bool kBf16>
void softmax_heads(float* scores, int64_t stride, int64_t count, int64_t heads, float scale,
                   const SoftmaxState& state) {
  using F = typename V::F;
  const F factor = V::set1(kBf16 ? scale * kLog2E : scale);
  for (int64_t h = 0; h < heads; h += V::kLanes) {
    const F before = V::load(state.highest + h);
    F top = before;
    for (int64_t t = 0; t < count; ++t) {
      const F score = V::mul(V::load(scores + t * stride + h), factor);
      V::store(scores + t * stride + h, score);
      top = V::max(top, score);
    }
    const F fade = fading<V, kBf16>(before, top);
    F sum = V::mul(V::load(state.sum + h), fade);
    for (int64_t t = 0; t < count; ++t) {
      const F p = probability<V, kBf16>(V::load(scores + t * stride + h), top);
      V::store(scores + t * stride + h, p);
      sum = V::add(sum, p);
    }
    V::store(state.highest + h, top);
    V::store(state.fade + h, fade);
    V::store(state.sum + h, sum);
  }
}

// Lanes are keys: one row of 64 scores, the first `count` of them visible (≥ 1). store(v, p) takes vector v
// of the probabilities; those of keys that are not visible are 0.
template <class V, bool kBf16, class Store>
FATHOM_INLINE void softmax_keys(const float* scores, int64_t count, float scale, int64_t row,
                                const SoftmaxState& state, Store store) {
  using F = typename V::F;
  constexpr int kVectors = static_cast<int>(kAttentionTile / V::kLanes);
  const F factor = V::set1(kBf16 ? scale * kLog2E : scale), lowest = V::set1(kMinusInfinity);
  F score[kVectors];
  F top = lowest;
  FATHOM_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const int64_t n = count - v * V::kLanes;
    score[v] = V::mul(V::load(scores + v * V::kLanes), factor);
    if (n < V::kLanes) score[v] = V::first_lanes(score[v], n > 0 ? n : 0, lowest);
    top = V::max(top, score[v]);
  }
  const float before = state.highest[row];
  const float tile_highest = V::highest(top);
  const float highest = tile_highest > before ? tile_highest : before;
  state.fade[row] = highest == before ? 1.0f : V::first(fading<V, kBf16>(V::set1(before), V::set1(highest)));
  F sum = V::zero();
  FATHOM_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const F p = probability<V, kBf16>(score[v], V::set1(highest));
    store(v, p);
    sum = V::add(sum, p);
  }
  state.highest[row] = highest;
  state.sum[row] = state.sum[row] * state.fade[row] + V::sum(sum);
}

// row *= factor.
template <class V>
FATHOM_INLINE void scale_row(float* row, int64_t n, float factor) {
  if (factor == 1.0f) return;
  const auto f = V::set1(factor);
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store(row + i, V::mul(V::load(row + i), f));
  if (i < n) V::store_part(row + i, n - i, V::mul(V::load_part(row + i, n - i), f));
}

// Hands out pieces of scratch memory, each aligned to 64 bytes.
struct ScratchMemory {
  std::byte* next;
  template <class T>
  FATHOM_INLINE T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(next);
    next += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return piece;
  }
  FATHOM_INLINE SoftmaxState take_state(int64_t rows) {
    SoftmaxState state{take<float>(rows), take<float>(rows), take<float>(rows)};
    for (int64_t i = 0; i < rows; ++i) {
      state.highest[i] = kMinusInfinity;
      state.sum[i] = 0;
    }
    return state;
  }
};

// Row t of the sequence's stored tokens.
FATHOM_INLINE const std::byte* latent_row(const LatentBlocks& kv, int64_t token) {
  const int64_t element_bytes = kv.dtype == DType::kF32 ? 4 : 2;
  return static_cast<const std::byte*>(kv.block[token / kAttentionTile]) +
         token % kAttentionTile * kv.row_stride * element_bytes;
}

}  // namespace
}  // namespace fathom
