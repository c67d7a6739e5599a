// Attention with F32 multiply-adds for a vector type V: F32 storage everywhere, and BF16 storage (widened a
// tile at a time, rounded as the contract says) where the processor has no BF16 products.
#pragma once

#include "kernels/attention_softmax.h"
#include "kernels/linear_fma.h"

namespace fathom {
namespace {

// Scores: rows of keys or queries against [dim][32] panels; one pair of vectors of the panel at a time.
template <class V>
struct ScoreKernel {
  using Args = MicroArgs;
  static constexpr int kMaxRows = V::kLanes == 16 ? 12 : 6;
  template <int kRows>
  static void run(const MicroArgs& args) {
    fma_groups<V, F32Decoder<V>, kRows, 1>(args, 0);
  }
};

// c[rows, columns] += A · W over `count` steps: A's element (r, t) stands at a + r · a_row + t · a_step
// (elements), W's row t at w + t · w_step, its columns adjacent.
struct WeighArgs {
  const float* a;
  int64_t a_row, a_step;
  const float* w;
  int64_t w_step;
  int64_t count;
  float* c;
  int64_t c_stride;
  int64_t columns;  // ≤ 2 vectors
};

template <class V>
struct WeighKernel {
  using Args = WeighArgs;
  static constexpr int kMaxRows = V::kLanes == 16 ? 12 : 6;

  template <int kRows>
  static void run(const WeighArgs& args) {
    using F = typename V::F;
    F acc[kRows][2];
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      acc[r][0] = V::load(args.c + r * args.c_stride);
      acc[r][1] = V::load(args.c + r * args.c_stride + V::kLanes);
    }
    const float* a = args.a;
    const float* w = args.w;
    for (int64_t t = 0; t < args.count; ++t) {
      const F w0 = V::load(w), w1 = V::load(w + V::kLanes);
      FATHOM_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const F p = V::set1(a[r * args.a_row]);
        acc[r][0] = V::fma(p, w0, acc[r][0]);
        acc[r][1] = V::fma(p, w1, acc[r][1]);
      }
      a += args.a_step;
      w += args.w_step;
    }
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      V::store(args.c + r * args.c_stride, acc[r][0]);
      V::store(args.c + r * args.c_stride + V::kLanes, acc[r][1]);
    }
  }
};

// c and w have whole pairs of vectors in every row (padded).
template <class V>
FATHOM_INLINE void weigh(WeighArgs args, int64_t rows) {
  const int64_t columns = args.columns;
  const float* w = args.w;
  float* c = args.c;
  const float* a = args.a;
  for (int64_t first = 0; first < columns; first += 2 * V::kLanes) {
    for_row_blocks<WeighKernel<V>>(rows, [&](int64_t done, int64_t count) {
      args.a = a + done * args.a_row;
      args.w = w + first;
      args.c = c + done * args.c_stride + first;
      kMicroKernels<WeighKernel<V>>[count - 1](args);
    });
  }
}

// F32 rows `stride` elements apart.
template <class T>
struct FloatRowsAt {
  T* data;
  int64_t stride;
};

// scores[rows, 32 · panels] = A · panels, for the first `columns` columns.
template <class V>
FATHOM_INLINE void score(FloatRowsAt<const float> a, int64_t rows, const float* panels, int64_t dim,
                         int64_t columns, FloatRowsAt<float> scores) {
  for (int64_t first = 0; first < columns; first += 2 * V::kLanes) {
    MicroArgs args{};
    args.a_stride = a.stride * 4;
    args.w = reinterpret_cast<const std::byte*>(panels + first / kLinearTileN * dim * kLinearTileN +
                                                first % kLinearTileN);
    args.k_count = dim;
    args.c_stride = scores.stride;
    args.first = true;
    for_row_blocks<ScoreKernel<V>>(rows, [&](int64_t done, int64_t count) {
      args.a = reinterpret_cast<const std::byte*>(a.data + done * a.stride);
      args.c = scores.data + done * scores.stride + first;
      kMicroKernels<ScoreKernel<V>>[count - 1](args);
    });
  }
}

// n elements of F32 or BF16 to F32 at `out`.
template <class V>
FATHOM_INLINE void widen(DType dtype, const void* in, int64_t n, float* out) {
  if (dtype == DType::kF32) {
    __builtin_memcpy(out, in, static_cast<size_t>(n) * 4);
    return;
  }
  const auto* halves = static_cast<const uint16_t*>(in);
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store(out + i, V::load_bf16(halves + i));
  for (; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(halves[i]) << 16;
    __builtin_memcpy(out + i, &bits, 4);
  }
}

template <class V>
FATHOM_INLINE float rounded(DType dtype, float x) {
  return dtype == DType::kF32 ? x : V::first(V::round_bf16(V::set1(x)));
}

template <class V>
void absorbed_simd(const LatentBlocks& kv, const AbsorbedQuery& query, std::byte* memory) {
  const int64_t dim = kv.latent_dim + kv.rope_dim;
  const int64_t heads = round_up(query.num_heads, kLinearTileN),
                latent = round_up(kv.latent_dim, 2 * V::kLanes);
  const int64_t row_floats = round_up(dim, 2 * V::kLanes);
  const bool bf16 = kv.dtype == DType::kBf16;
  ScratchMemory scratch{memory};
  float* panels = scratch.take<float>(heads * dim);
  float* scores = scratch.take<float>(kAttentionTile * heads);
  float* tile = scratch.take<float>(kAttentionTile * row_floats);
  float* sums = scratch.take<float>(query.num_heads * latent);
  const SoftmaxState state = scratch.take_state(heads);
  for (int64_t h = 0; h < heads; ++h) {
    float* lane = panels + h / kLinearTileN * dim * kLinearTileN + h % kLinearTileN;
    for (int64_t i = 0; i < dim; ++i) {
      const float* q = i < kv.latent_dim ? query.latent + h * query.latent_stride + i
                                         : query.rope + h * query.rope_stride + i - kv.latent_dim;
      lane[i * kLinearTileN] = h < query.num_heads ? rounded<V>(kv.dtype, *q) : 0;
    }
  }
  __builtin_memset(sums, 0, static_cast<size_t>(query.num_heads * latent) * 4);
  __builtin_memset(tile, 0, static_cast<size_t>(kAttentionTile * row_floats) * 4);
  for (int64_t begin = 0; begin < query.visible; begin += kAttentionTile) {
    const int64_t count = smaller(kAttentionTile, query.visible - begin);
    for (int64_t t = 0; t < count; ++t)
      widen<V>(kv.dtype, latent_row(kv, begin + t), dim, tile + t * row_floats);
    score<V>({tile, row_floats}, count, panels, dim, query.num_heads, {scores, heads});
    if (bf16) {
      softmax_heads<V, true>(scores, heads, count, query.num_heads, query.scale, state);
    } else {
      softmax_heads<V, false>(scores, heads, count, query.num_heads, query.scale, state);
    }
    for (int64_t h = 0; h < query.num_heads; ++h) scale_row<V>(sums + h * latent, latent, state.fade[h]);
    weigh<V>({scores, 1, heads, tile, row_floats, count, sums, latent, kv.latent_dim}, query.num_heads);
  }
  for (int64_t h = 0; h < query.num_heads; ++h) {
    scale_row<V>(sums + h * latent, latent, 1.0f / state.sum[h]);
    __builtin_memcpy(query.out + h * query.out_stride, sums + h * latent,
                     static_cast<size_t>(kv.latent_dim) * 4);
  }
}

// Keys [begin, begin + count) of one head as [dim][32] panels, and their values as rows, both F32.
template <class V>
struct KeyTile {
  float* panels;
  float* values;
  int64_t dim, value_floats;

  FATHOM_INLINE void load(const LatentBlocks& kv, const PerHeadKeys& keys, int64_t begin, int64_t count,
                          float* row) {
    const int64_t bytes = kv.dtype == DType::kF32 ? 4 : 2;
    for (int64_t t = 0; t < count; ++t) {
      const int64_t token = begin + t;
      widen<V>(kv.dtype, static_cast<const std::byte*>(keys.nope) + token * keys.nope_stride * bytes,
               keys.nope_dim, row);
      widen<V>(kv.dtype, latent_row(kv, token) + kv.latent_dim * bytes, kv.rope_dim, row + keys.nope_dim);
      float* lane = panels + t / kLinearTileN * dim * kLinearTileN + t % kLinearTileN;
      for (int64_t i = 0; i < dim; ++i) lane[i * kLinearTileN] = row[i];
      widen<V>(kv.dtype, static_cast<const std::byte*>(keys.v) + token * keys.v_stride * bytes, keys.v_dim,
               values + t * value_floats);
    }
  }
};

// Up to kRowsMax query rows against all the keys they see.
template <class V>
void per_head_group(const LatentBlocks& kv, const PerHeadKeys& keys, const PerHeadQuery& query,
                    ScratchMemory scratch) {
  const int64_t dim = keys.nope_dim + kv.rope_dim;
  const int64_t value_floats = round_up(keys.v_dim, 2 * V::kLanes);
  const bool bf16 = kv.dtype == DType::kBf16;
  float* q = scratch.take<float>(query.rows * dim);
  float* scores = scratch.take<float>(kPerHeadBlockRows * kAttentionTile);
  float* sums = scratch.take<float>(query.rows * value_floats);
  float* row = scratch.take<float>(dim);
  KeyTile<V> tile{scratch.take<float>(kAttentionTile * dim),
                  scratch.take<float>(kAttentionTile * value_floats), dim, value_floats};
  const SoftmaxState state = scratch.take_state(query.rows);
  for (int64_t r = 0; r < query.rows; ++r) {
    for (int64_t i = 0; i < dim; ++i) q[r * dim + i] = rounded<V>(kv.dtype, query.q[r * query.q_stride + i]);
  }
  __builtin_memset(sums, 0, static_cast<size_t>(query.rows * value_floats) * 4);
  __builtin_memset(tile.panels, 0, static_cast<size_t>(kAttentionTile * dim) * 4);
  __builtin_memset(tile.values, 0, static_cast<size_t>(kAttentionTile * value_floats) * 4);
  const int64_t context = query.start + query.rows;
  for (int64_t begin = 0; begin < context; begin += kAttentionTile) {
    const int64_t count = smaller(kAttentionTile, context - begin);
    tile.load(kv, keys, begin, count, row);
    // Rows before the first that sees this tile are done.
    const int64_t first = begin > query.start ? begin - query.start : 0;
    for (int64_t block = first; block < query.rows; block += kPerHeadBlockRows) {
      const int64_t rows = smaller(kPerHeadBlockRows, query.rows - block);
      score<V>({q + block * dim, dim}, rows, tile.panels, dim, count, {scores, kAttentionTile});
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t visible = smaller(count, query.start + block + r + 1 - begin);
        float* line = scores + r * kAttentionTile;
        const auto store = [&](int v, typename V::F p) { V::store(line + v * V::kLanes, p); };
        if (bf16) {
          softmax_keys<V, true>(line, visible, query.scale, block + r, state, store);
        } else {
          softmax_keys<V, false>(line, visible, query.scale, block + r, state, store);
        }
        scale_row<V>(sums + (block + r) * value_floats, value_floats, state.fade[block + r]);
      }
      weigh<V>({scores, kAttentionTile, 1, tile.values, value_floats, count, sums + block * value_floats,
                value_floats, keys.v_dim},
               rows);
    }
  }
  for (int64_t r = 0; r < query.rows; ++r) {
    scale_row<V>(sums + r * value_floats, value_floats, 1.0f / state.sum[r]);
    __builtin_memcpy(query.out + r * query.out_stride, sums + r * value_floats,
                     static_cast<size_t>(keys.v_dim) * 4);
  }
}

template <class V>
void per_head_simd(const LatentBlocks& kv, const PerHeadKeys& keys, const PerHeadQuery& query,
                   std::byte* memory) {
  for (int64_t done = 0; done < query.rows; done += kPerHeadGroupRows) {
    PerHeadQuery part = query;
    part.rows = smaller(kPerHeadGroupRows, query.rows - done);
    part.start = query.start + done;
    part.q = query.q + done * query.q_stride;
    part.out = query.out + done * query.out_stride;
    per_head_group<V>(kv, keys, part, ScratchMemory{memory});
  }
}

}  // namespace
}  // namespace fathom
