// INT8 and INT4 linear layers without dot-product instructions, for a vector type V of bytes. vpmaddubsw
// multiplies unsigned by signed bytes and adds pairs in 16 bits:
//   INT8  |w| · sign(x, w), at most 2 · 127 · 127 = 32258 a pair: never saturates.
//   INT4  code + 8 (0 … 15) · x, at most 2 · 15 · 127 = 3810 a pair: the eight pairs of a group of 32 add up
//   to
//         30480 in 16 bits, so one widening per group is exact.
#pragma once

#include "kernels/dispatch_tables.h"
#include "kernels/panel_driver.h"

namespace fathom {
namespace {

// V has: F and kLanes (floats), B (as many quads of bytes), Int32 and Int16 (accumulators of the lanes' own
// type: through B, whose lanes are 64 bits, g++ 12 copies and spills them), and the operations used below.

FATHOM_INLINE void prefetch(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p) + 2048, _MM_HINT_T0);
}

template <class V>
FATHOM_INLINE typename V::B broadcast_quad(const std::byte* a) {
  int32_t quad;
  __builtin_memcpy(&quad, a, 4);
  return V::set1_quad(quad);
}

// The sums of row r and a vector of outputs from `column` on: to = c + sum · scale.
template <class V>
FATHOM_INLINE void add_scaled(const MicroArgs& args, int64_t block, int r, int64_t column, typename V::F sum,
                              typename V::F scale) {
  const SumsPlace place = sums_place(args, block);
  const bool fresh = args.first && block == 0;
  const typename V::F before = fresh ? V::zero() : V::load(args.c + r * kLinearTileN + column);
  V::store(place.to + r * place.stride + column, V::fma(sum, scale, before));
}

// Vectors [first, first + kVectors) of the panel's, V::kLanes outputs each.
template <class V, int kRows, int kVectors>
void run_int8(const MicroArgs& args, int first) {
  constexpr int kBytes = V::kLanes * 4;
  const std::byte* w = args.w + first * kBytes;
  for (int64_t block = 0; block * kScaleBlock < args.k_count; ++block) {
    const std::byte* a = args.a + block * kScaleBlock;
    const std::byte* scales = w;
    w += 128;
    typename V::Int32 dot[kRows][kVectors];
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v) dot[r][v] = typename V::Int32{};
    }
    const int64_t count = smaller(kScaleBlock, args.k_count - block * kScaleBlock);
    for (int64_t k = 0; k < count; k += 4, w += 128) {
      prefetch(w);
      prefetch(w + 64);
      typename V::Signed weight[kVectors];
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v)
        weight[v] = V::split_sign(V::flip_tops(V::load_bytes(w + v * kBytes)));
      FATHOM_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const typename V::B quad = broadcast_quad<V>(a + r * args.a_stride + k);
        FATHOM_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          dot[r][v] +=
              (typename V::Int32)V::add_pairs(V::maddubs(weight[v].magnitude, V::with_sign(quad, weight[v])));
        }
      }
    }
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const typename V::F x_scale = V::set1(args.x_scales[r * args.x_scale_stride + block]);
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const typename V::F w_scale = V::load(reinterpret_cast<const float*>(scales) + v * V::kLanes);
        add_scaled<V>(args, block, r, (first + v) * V::kLanes, V::to_float((typename V::B)dot[r][v]),
                      V::mul(x_scale, w_scale));
      }
    }
  }
}

// Calls run(first) for as many vectors of the panel's 32 outputs at a time as the registers hold.
template <class V, int kVectors, class Run>
FATHOM_INLINE void for_panel_vectors(Run run) {
  for (int first = 0; first * V::kLanes < kLinearTileN; first += kVectors) run(first);
}

// The weights' scales stand before their block for all 32 outputs, the codes of a vector every 128 bytes.
template <class V>
struct Int8Kernel {
  using Args = MicroArgs;
  static constexpr WeightFormat kFormat = WeightFormat::kInt8;
  static constexpr int kMaxRows = V::kInt8Rows;
  static constexpr int64_t kKBlock = 1024;
  static constexpr int64_t kGroupRows = 64 / kMaxRows * kMaxRows;
  struct Scratch {};
  static int64_t max_k(int64_t) { return INT64_MAX; }
  static void prepare(const RowGroup& group, Scratch&, MicroArgs& args) {
    args.a = group.data(1);
    args.a_stride = group.x.row_stride_bytes;
  }
  template <int kRows>
  static void run(const MicroArgs& args) {
    constexpr int kVectors = kRows == 1 ? kLinearTileN / V::kLanes : 2;
    for_panel_vectors<V, kVectors>([&](int first) { run_int8<V, kRows, kVectors>(args, first); });
  }
};

// One group of 32 for kVectors vectors of outputs: sums[r][v] += dot · scale.
template <class V, int kRows, int kVectors>
FATHOM_INLINE void add_int4_group(const MicroArgs& args, const std::byte* w, int first, const std::byte* a,
                                  const int32_t* x_sums, typename V::F (&sums)[kRows][kVectors]) {
  constexpr int kBytes = V::kLanes * 4;
  typename V::Int16 pairs[kRows][kVectors];
  FATHOM_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FATHOM_UNROLL
    for (int v = 0; v < kVectors; ++v) pairs[r][v] = typename V::Int16{};
  }
  const std::byte* codes = w + 64 + first * kBytes;
  FATHOM_NO_UNROLL
  for (int64_t s = 0; s < 4; ++s) {
    prefetch(codes + s * 128);
    prefetch(codes + s * 128 + 64);
    FATHOM_UNROLL
    for (int half = 0; half < 2; ++half) {
      typename V::B weight[kVectors];
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v)
        weight[v] = V::nibbles(V::load_bytes(codes + s * 128 + v * kBytes), half);
      FATHOM_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const typename V::B quad = broadcast_quad<V>(a + r * args.a_stride + s * 8 + half * 4);
        FATHOM_UNROLL
        for (int v = 0; v < kVectors; ++v) pairs[r][v] += (typename V::Int16)V::maddubs(weight[v], quad);
      }
    }
  }
  FATHOM_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const typename V::F scale = V::load_f16(w + (first + v) * V::kLanes * 2);
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto dot = (typename V::Int32)V::add_pairs((typename V::B)pairs[r][v]) +
                       (typename V::Int32)V::set1_quad(x_sums[r * args.x_sum_stride]);
      sums[r][v] = V::fma(V::to_float((typename V::B)dot), scale, sums[r][v]);
    }
  }
}

template <class V, int kRows, int kVectors>
void run_int4(const MicroArgs& args, int first) {
  const std::byte* w = args.w;
  for (int64_t block = 0; block * kScaleBlock < args.k_count; ++block) {
    typename V::F sums[kRows][kVectors];
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[r][v] = V::zero();
    }
    const int64_t begin = block * kScaleBlock, end = smaller(begin + kScaleBlock, args.k_count);
    for (int64_t k = begin; k < end; k += kInt4Group, w += kInt4GroupBytes) {
      add_int4_group<V, kRows, kVectors>(args, w, first, args.a + k, args.x_sums + k / kInt4Group, sums);
    }
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const typename V::F x_scale = V::set1(args.x_scales[r * args.x_scale_stride + block]);
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        add_scaled<V>(args, block, r, (first + v) * V::kLanes, sums[r][v], x_scale);
      }
    }
  }
}

template <class V>
struct Int4Kernel {
  using Args = MicroArgs;
  static constexpr WeightFormat kFormat = WeightFormat::kInt4;
  static constexpr int kMaxRows = V::kInt4Rows;
  static constexpr int64_t kKBlock = 1024;
  static constexpr int64_t kGroupRows = 64 / kMaxRows * kMaxRows;
  using Scratch = Int4Sums<kGroupRows, kKBlock>;
  static int64_t max_k(int64_t rows) { return Scratch::max_k(rows); }

  // x_sums: -8 · Σ x of each group of 32.
  static void prepare(const RowGroup& group, Scratch& scratch, MicroArgs& args) {
    args.a = group.data(1);
    args.a_stride = group.x.row_stride_bytes;
    args.x_sum_stride = ceil_div(group.k_count, kInt4Group);
    args.x_sums = scratch.sums;
    int32_t* sums = scratch.sums;
    for (int64_t r = 0; r < group.rows; ++r) {
      for (int64_t i = 0; i < group.k_count; i += kInt4Group) {
        const auto* codes = reinterpret_cast<const __m256i*>(args.a + r * args.a_stride + i);
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), _mm256_loadu_si256(codes));
        const __m256i quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        __m128i four = _mm_add_epi32(_mm256_castsi256_si128(quads), _mm256_extracti128_si256(quads, 1));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
        *sums++ = -8 * _mm_cvtsi128_si32(four);
      }
    }
  }
  template <int kRows>
  static void run(const MicroArgs& args) {
    constexpr int kVectors = kRows == 1 ? kLinearTileN / V::kLanes : 2;
    for_panel_vectors<V, kVectors>([&](int first) { run_int4<V, kRows, kVectors>(args, first); });
  }
};

}  // namespace
}  // namespace fathom
