// INT8 and INT4 linear layers with vpdpbusd: codes are held as unsigned (code + 128, code + 8), so that the
// signed activations can be broadcast; what the offset adds, offset · Σ x, is taken off before the first
// product.
#include "kernels/dispatch_tables.h"
#include "kernels/fetch_ahead.h"
#include "kernels/simd_avx512.h"

namespace fathom {
namespace {

// Accumulators have the lanes' own type: through __m512i, whose lanes are 64 bits, g++ 12 copies and spills
// them.
typedef int32_t Int32x16 __attribute__((vector_size(64), may_alias));

FATHOM_INLINE Int32x16 dot_quads(Int32x16 acc, __m512i w, __m512i a) {
  return (Int32x16)_mm512_dpbusd_epi32((__m512i)acc, w, a);
}

FATHOM_INLINE __m512i broadcast_quad(const std::byte* a) {
  int32_t quad;
  __builtin_memcpy(&quad, a, 4);
  return _mm512_set1_epi32(quad);
}

// acc + factor · the sums of four signed codes each.
FATHOM_INLINE __m512i add_quads(__m512i acc, char factor, const std::byte* x) {
  return _mm512_dpbusd_epi32(acc, _mm512_set1_epi8(factor), _mm512_loadu_si512(x));
}

// Lane i of each 128-bit lane gets what that lane of vector i adds up to.
FATHOM_INLINE __m512i lane_sums(__m512i x0, __m512i x1, __m512i x2, __m512i x3) {
  const __m512i low = _mm512_add_epi32(_mm512_unpacklo_epi32(x0, x1), _mm512_unpackhi_epi32(x0, x1));
  const __m512i high = _mm512_add_epi32(_mm512_unpacklo_epi32(x2, x3), _mm512_unpackhi_epi32(x2, x3));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
}

struct Int8Kernel {
  using Args = MicroArgs;
  static constexpr WeightFormat kFormat = WeightFormat::kInt8;
  static constexpr int kMaxRows = 14;
  static constexpr int64_t kKBlock = 2048;
  static constexpr int64_t kGroupRows = 19 * kMaxRows;
  static_assert(kGroupRows >= kLinearTileRowsMax);  // a few rows left over would read all the weights again
  static constexpr int64_t kSums = kGroupRows * kKBlock / kScaleBlock;
  struct Scratch {
    int32_t sums[kSums];
  };
  static int64_t max_k(int64_t rows) { return kSums / rows * kScaleBlock; }

  static void prepare(const RowGroup& group, Scratch& scratch, MicroArgs& args) {
    args.a = group.data(1);
    args.a_stride = group.x.row_stride_bytes;
    args.x_sum_stride = ceil_div(group.k_count, kScaleBlock);
    args.x_sums = scratch.sums;
    for (int64_t r = 0; r < group.rows; ++r) {
      sum_row(args.a + r * args.a_stride, args.x_sum_stride, scratch.sums + r * args.x_sum_stride);
    }
  }

  // out[b] = -128 · Σ of the b-th 128 codes of x. Four at a time; what is behind the last is not stored.
  static FATHOM_INLINE void sum_row(const std::byte* x, int64_t num_blocks, int32_t* out) {
    constexpr char kOffset = static_cast<char>(128);
    for (int64_t b = 0; b < num_blocks; b += 4, x += 4 * kScaleBlock) {
      const int64_t left = num_blocks - b;
      const auto block = [&](int64_t i) {
        const std::byte* at = x + (i < left ? i : 0) * kScaleBlock;
        return add_quads(add_quads(_mm512_setzero_si512(), kOffset, at), kOffset, at + 64);
      };
      __m512i sums = lane_sums(block(0), block(1), block(2), block(3));
      sums = _mm512_add_epi32(sums, _mm512_shuffle_i64x2(sums, sums, _MM_SHUFFLE(1, 0, 3, 2)));
      sums = _mm512_add_epi32(sums, _mm512_shuffle_i64x2(sums, sums, _MM_SHUFFLE(2, 3, 0, 1)));
      const __m128i all = _mm_sub_epi32(_mm_setzero_si128(), _mm512_castsi512_si128(sums));
      _mm_mask_storeu_epi32(out + b, static_cast<__mmask8>((1 << smaller(left, 4)) - 1), all);
    }
  }

  template <int kRows>
  static FATHOM_INLINE void scale_block(const MicroArgs& args, int64_t block, const Int32x16 (&dot)[kRows][2],
                                        __m512 w_scale0, __m512 w_scale1) {
    const bool fresh = args.first && block == 0;
    const SumsPlace place = sums_place(args, block);
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const float* c = args.c + r * kLinearTileN;
      float* const to = place.to + r * place.stride;
      const __m512 x_scale = _mm512_set1_ps(args.x_scales[r * args.x_scale_stride + block]);
      const __m512 before0 = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(c);
      const __m512 before1 = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(c + 16);
      _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)dot[r][0]),
                                           _mm512_mul_ps(x_scale, w_scale0), before0));
      _mm512_storeu_ps(to + 16, _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)dot[r][1]),
                                                _mm512_mul_ps(x_scale, w_scale1), before1));
    }
  }

  template <int kRows>
  static void run(const MicroArgs& args) {
    constexpr int kLevel = kRows < 6 ? 1 : 2;
    const std::byte* w = args.w;
    const int64_t ahead = bytes_ahead(args);
    for (int64_t block = 0; block * kScaleBlock < args.k_count; ++block) {
      const std::byte* base[5];
      for (int i = 0; i < 5; ++i) base[i] = args.a + block * kScaleBlock + i * 3 * args.a_stride;
      const std::byte* w_scales = w;
      fetch<kLevel>(w + ahead);
      fetch<kLevel>(w + ahead + 64);
      w += 128;
      Int32x16 dot[kRows][2];
      FATHOM_UNROLL
      for (int r = 0; r < kRows; ++r) {
        dot[r][0] = dot[r][1] = (Int32x16)_mm512_set1_epi32(args.x_sums[r * args.x_sum_stride + block]);
      }
      const int64_t quads = (smaller(kScaleBlock, args.k_count - block * kScaleBlock) + 3) / 4;
      for (int64_t q = 0; q < quads; ++q) {
        fetch<kLevel>(w + ahead);
        fetch<kLevel>(w + ahead + 64);
        const __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 64);
        FATHOM_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const __m512i a = broadcast_quad(base[r / 3] + r % 3 * args.a_stride);
          dot[r][0] = dot_quads(dot[r][0], w0, a);
          dot[r][1] = dot_quads(dot[r][1], w1, a);
        }
        for (int i = 0; i < (kRows + 2) / 3; ++i) base[i] += 4;
        w += 128;
      }
      scale_block<kRows>(args, block, dot, _mm512_load_ps(w_scales), _mm512_load_ps(w_scales + 64));
    }
  }
};

struct Int4Kernel {
  using Args = MicroArgs;
  static constexpr WeightFormat kFormat = WeightFormat::kInt4;
  static constexpr int kMaxRows = 6;
  static constexpr int64_t kKBlock = 2048;
  static constexpr int64_t kGroupRows = 10 * kMaxRows;
  using Scratch = Int4Sums<kGroupRows, kKBlock>;
  static int64_t max_k(int64_t rows) { return Scratch::max_k(rows); }

  static void prepare(const RowGroup& group, Scratch& scratch, MicroArgs& args) {
    args.a = group.data(1);
    args.a_stride = group.x.row_stride_bytes;
    args.x_sum_stride = round_up(group.k_count, kScaleBlock) / kInt4Group;
    args.x_sums = scratch.sums;
    for (int64_t r = 0; r < group.rows; ++r) {
      sum_row(args.a + r * args.a_stride, args.x_sum_stride, scratch.sums + r * args.x_sum_stride);
    }
  }

  // out[g] = -8 · Σ of the g-th 32 codes of x, num_groups a multiple of four. Eight at a time.
  static FATHOM_INLINE void sum_row(const std::byte* x, int64_t num_groups, int32_t* out) {
    for (int64_t g = 0; g < num_groups; g += 8, x += 8 * kInt4Group) {
      const bool whole = g + 8 <= num_groups;
      const auto codes = [&](int64_t at) { return add_quads(_mm512_setzero_si512(), 8, x + at); };
      __m512i sums = lane_sums(codes(0), codes(64), codes(whole ? 128 : 0), codes(whole ? 192 : 64));
      // Lanes 0 and 2 now hold the first and the second group of each 64 codes.
      sums = _mm512_add_epi32(sums, _mm512_shuffle_i64x2(sums, sums, _MM_SHUFFLE(2, 3, 0, 1)));
      sums = _mm512_sub_epi32(_mm512_setzero_si512(), sums);
      const __m128i first = _mm512_castsi512_si128(sums), second = _mm512_extracti32x4_epi32(sums, 2);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + g), _mm_unpacklo_epi32(first, second));
      if (whole) _mm_storeu_si128(reinterpret_cast<__m128i*>(out + g + 4), _mm_unpackhi_epi32(first, second));
    }
  }

  // One group of 32: sums[r] += dot · scale. Rows are reached through few registers, as base[r / 3] +
  // {0, 1, 2} · stride.
  template <int kRows>
  static FATHOM_INLINE void add_group(const MicroArgs& args, const std::byte* w, int64_t ahead,
                                      const std::byte* a, const int32_t* x_sums, __m512 (&sums)[kRows][2]) {
    constexpr int kLevel = kRows < 4 ? 1 : 2;
    const __m512 scale0 = _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(w)));
    const __m512 scale1 = _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(w + 32)));
    fetch<kLevel>(w + ahead);
    w += 64;
    constexpr int kBases = (kRows + 2) / 3;
    const std::byte* base[kBases];
    for (int i = 0; i < kBases; ++i) base[i] = a + i * 3 * args.a_stride;
    Int32x16 dot[kRows][2];
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r)
      dot[r][0] = dot[r][1] = (Int32x16)_mm512_set1_epi32(x_sums[r * args.x_sum_stride]);
    const __m512i nibble = _mm512_set1_epi8(15);
    FATHOM_UNROLL
    for (int s = 0; s < 4; ++s) {
      fetch<kLevel>(w + ahead + s * 128);
      fetch<kLevel>(w + ahead + s * 128 + 64);
      const __m512i raw0 = _mm512_load_si512(w + s * 128), raw1 = _mm512_load_si512(w + s * 128 + 64);
      FATHOM_UNROLL
      for (int half = 0; half < 2; ++half) {
        const __m512i w0 = _mm512_and_si512(half == 0 ? raw0 : _mm512_srli_epi16(raw0, 4), nibble);
        const __m512i w1 = _mm512_and_si512(half == 0 ? raw1 : _mm512_srli_epi16(raw1, 4), nibble);
        FATHOM_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const __m512i quad = broadcast_quad(base[r / 3] + r % 3 * args.a_stride + s * 8 + half * 4);
          dot[r][0] = dot_quads(dot[r][0], w0, quad);
          dot[r][1] = dot_quads(dot[r][1], w1, quad);
        }
      }
    }
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      sums[r][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)dot[r][0]), scale0, sums[r][0]);
      sums[r][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)dot[r][1]), scale1, sums[r][1]);
    }
  }

  template <int kRows>
  static void run(const MicroArgs& args) {
    const std::byte* w = args.w;
    const int64_t ahead = bytes_ahead(args);
    for (int64_t block = 0; block * kScaleBlock < args.k_count; ++block) {
      __m512 sums[kRows][2];
      FATHOM_UNROLL
      for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
      const int64_t begin = block * kScaleBlock, end = smaller(begin + kScaleBlock, args.k_count);
      for (int64_t k = begin; k < end; k += kInt4Group) {
        add_group<kRows>(args, w, ahead, args.a + k, args.x_sums + k / kInt4Group, sums);
        w += kInt4GroupBytes;
      }
      const bool fresh = args.first && block == 0;
      const SumsPlace place = sums_place(args, block);
      FATHOM_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const float* c = args.c + r * kLinearTileN;
        float* const to = place.to + r * place.stride;
        const __m512 x_scale = _mm512_set1_ps(args.x_scales[r * args.x_scale_stride + block]);
        const __m512 before0 = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(c);
        const __m512 before1 = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(c + 16);
        _mm512_storeu_ps(to, _mm512_fmadd_ps(sums[r][0], x_scale, before0));
        _mm512_storeu_ps(to + 16, _mm512_fmadd_ps(sums[r][1], x_scale, before1));
      }
    }
  }
};

constexpr LinearKernel kInt8 =
    make_panel_kernel<WeightFormat::kInt8>(Isa::kAvx512Vnni, run_panels<Int8Kernel, Avx512>);
constexpr LinearKernel kInt4 =
    make_panel_kernel<WeightFormat::kInt4>(Isa::kAvx512Vnni, run_panels<Int4Kernel, Avx512>);

}  // namespace

void add_vnni_linear(KernelTable& table) {
  table.linear[static_cast<int>(WeightFormat::kInt8)] = &kInt8;
  table.linear[static_cast<int>(WeightFormat::kInt4)] = &kInt4;
}

}  // namespace fathom
