// INT8 and INT4 linear layers with AVX2. vpmaddubsw multiplies unsigned by signed bytes and adds pairs in 16
// bits:
//   INT8  |w| · sign(x, w), at most 2 · 127 · 127 = 32258 a pair: never saturates.
//   INT4  code + 8 (0 … 15) · x, at most 2 · 15 · 127 = 3810 a pair: the eight pairs of a group of 32 add up
//   to
//         30480 in 16 bits, so one widening per group is exact.
#include "kernels/dispatch_tables.h"
#include "kernels/panel_driver.h"
#include "kernels/simd_avx2.h"

namespace fathom {
namespace {

FATHOM_INLINE __m256i load_bytes(const std::byte* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}

// Accumulators have the lanes' own type: through __m256i, whose lanes are 64 bits, g++ 12 copies and spills
// them.
typedef int32_t Int32x8 __attribute__((vector_size(32), may_alias));
typedef int16_t Int16x16 __attribute__((vector_size(32), may_alias));

FATHOM_INLINE void prefetch(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p) + 2048, _MM_HINT_T0);
}

FATHOM_INLINE __m256i broadcast_quad(const std::byte* a) {
  int32_t quad;
  __builtin_memcpy(&quad, a, 4);
  return _mm256_set1_epi32(quad);
}

FATHOM_INLINE void add_scaled(float* c, __m256 sum, __m256 scale, bool fresh) {
  _mm256_storeu_ps(c, _mm256_fmadd_ps(sum, scale, fresh ? _mm256_setzero_ps() : _mm256_loadu_ps(c)));
}

// Vectors [first, first + kVectors) of the panel's four, eight outputs each.
template <int kRows, int kVectors>
void run_int8(const MicroArgs& args, int first) {
  const __m256i offset = _mm256_set1_epi8(static_cast<char>(0x80));
  const __m256i ones = _mm256_set1_epi16(1);
  const std::byte* w = args.w + first * 32;
  for (int64_t block = 0; block * kScaleBlock < args.k_count; ++block) {
    const std::byte* a = args.a + block * kScaleBlock;
    const std::byte* scales = w;
    w += 128;
    Int32x8 dot[kRows][kVectors];
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v) dot[r][v] = Int32x8{};
    }
    const int64_t count = smaller(kScaleBlock, args.k_count - block * kScaleBlock);
    for (int64_t k = 0; k < count; k += 4, w += 128) {
      prefetch(w);
      prefetch(w + 64);
      __m256i weight[kVectors], magnitude[kVectors];
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        weight[v] = _mm256_xor_si256(load_bytes(w + v * 32), offset);
        magnitude[v] = _mm256_abs_epi8(weight[v]);
      }
      FATHOM_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const __m256i quad = broadcast_quad(a + r * args.a_stride + k);
        FATHOM_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          const __m256i pairs = _mm256_maddubs_epi16(magnitude[v], _mm256_sign_epi8(quad, weight[v]));
          dot[r][v] += (Int32x8)_mm256_madd_epi16(pairs, ones);
        }
      }
    }
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m256 x_scale = _mm256_set1_ps(args.x_scales[r * args.x_scale_stride + block]);
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const __m256 w_scale = _mm256_load_ps(reinterpret_cast<const float*>(scales) + v * 8);
        add_scaled(args.c + r * args.c_stride + (first + v) * 8, _mm256_cvtepi32_ps((__m256i)dot[r][v]),
                   _mm256_mul_ps(x_scale, w_scale), args.first && block == 0);
      }
    }
  }
}

// The weights' scales stand before their block for all 32 outputs, the codes of a vector every 128 bytes.
struct Int8Kernel {
  using Args = MicroArgs;
  static constexpr WeightFormat kFormat = WeightFormat::kInt8;
  static constexpr int kMaxRows = 4;
  static constexpr int64_t kKBlock = 1024;
  static constexpr int64_t kGroupRows = 64;
  struct Scratch {};
  static int64_t max_k(int64_t) { return INT64_MAX; }
  static void prepare(const Activations& x, int64_t row, int64_t, int64_t k, int64_t, Scratch&,
                      MicroArgs& args) {
    args.a = static_cast<const std::byte*>(x.data) + row * x.row_stride_bytes + k;
    args.a_stride = x.row_stride_bytes;
  }
  template <int kRows>
  static void run(const MicroArgs& args) {
    if constexpr (kRows == 1) {
      run_int8<1, 4>(args, 0);
    } else {
      run_int8<kRows, 2>(args, 0);
      run_int8<kRows, 2>(args, 2);
    }
  }
};

// One group of 32 for kVectors vectors of outputs: sums[r][v] += dot · scale.
template <int kRows, int kVectors>
FATHOM_INLINE void add_int4_group(const MicroArgs& args, const std::byte* w, int first, const std::byte* a,
                                  const int32_t* x_sums, __m256 (&sums)[kRows][kVectors]) {
  const __m256i nibble = _mm256_set1_epi8(15);
  Int16x16 pairs[kRows][kVectors];
  FATHOM_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FATHOM_UNROLL
    for (int v = 0; v < kVectors; ++v) pairs[r][v] = Int16x16{};
  }
  const std::byte* codes = w + 64 + first * 32;
  FATHOM_NO_UNROLL
  for (int64_t s = 0; s < 4; ++s) {
    prefetch(codes + s * 128);
    prefetch(codes + s * 128 + 64);
    FATHOM_UNROLL
    for (int half = 0; half < 2; ++half) {
      __m256i weight[kVectors];
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const __m256i raw = load_bytes(codes + s * 128 + v * 32);
        weight[v] = _mm256_and_si256(half == 0 ? raw : _mm256_srli_epi16(raw, 4), nibble);
      }
      FATHOM_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const __m256i quad = broadcast_quad(a + r * args.a_stride + s * 8 + half * 4);
        FATHOM_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          pairs[r][v] += (Int16x16)_mm256_maddubs_epi16(weight[v], quad);
        }
      }
    }
  }
  const __m256i ones = _mm256_set1_epi16(1);
  FATHOM_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const __m256 scale = Avx2::load_f16(w + (first + v) * 16);
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m256i offset = _mm256_set1_epi32(x_sums[r * args.x_sum_stride]);
      const __m256i dot = _mm256_add_epi32(_mm256_madd_epi16((__m256i)pairs[r][v], ones), offset);
      sums[r][v] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sums[r][v]);
    }
  }
}

template <int kRows, int kVectors>
void run_int4(const MicroArgs& args, int first) {
  const std::byte* w = args.w;
  for (int64_t block = 0; block * kScaleBlock < args.k_count; ++block) {
    __m256 sums[kRows][kVectors];
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm256_setzero_ps();
    }
    const int64_t begin = block * kScaleBlock, end = smaller(begin + kScaleBlock, args.k_count);
    for (int64_t k = begin; k < end; k += kInt4Group, w += kInt4GroupBytes) {
      add_int4_group<kRows, kVectors>(args, w, first, args.a + k, args.x_sums + k / kInt4Group, sums);
    }
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m256 x_scale = _mm256_set1_ps(args.x_scales[r * args.x_scale_stride + block]);
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        add_scaled(args.c + r * args.c_stride + (first + v) * 8, sums[r][v], x_scale,
                   args.first && block == 0);
      }
    }
  }
}

struct Int4Kernel {
  using Args = MicroArgs;
  static constexpr WeightFormat kFormat = WeightFormat::kInt4;
  static constexpr int kMaxRows = 4;
  static constexpr int64_t kKBlock = 1024;
  static constexpr int64_t kGroupRows = 64;
  static constexpr int64_t kSums = kGroupRows * kKBlock / kInt4Group;
  struct Scratch {
    int32_t sums[kSums];
  };
  static int64_t max_k(int64_t rows) { return kSums * kInt4Group / rows / kScaleBlock * kScaleBlock; }

  // x_sums: -8 · Σ x of each group of 32.
  static void prepare(const Activations& x, int64_t row, int64_t rows, int64_t k, int64_t k_count,
                      Scratch& scratch, MicroArgs& args) {
    args.a = static_cast<const std::byte*>(x.data) + row * x.row_stride_bytes + k;
    args.a_stride = x.row_stride_bytes;
    args.x_sum_stride = ceil_div(k_count, kInt4Group);
    args.x_sums = scratch.sums;
    int32_t* sums = scratch.sums;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < k_count; i += kInt4Group) {
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
    if constexpr (kRows == 1) {
      run_int4<1, 4>(args, 0);
    } else {
      run_int4<kRows, 2>(args, 0);
      run_int4<kRows, 2>(args, 2);
    }
  }
};

constexpr LinearKernel kInt8 = make_panel_kernel<WeightFormat::kInt8>(Isa::kAvx2, run_panels<Int8Kernel>);
constexpr LinearKernel kInt4 = make_panel_kernel<WeightFormat::kInt4>(Isa::kAvx2, run_panels<Int4Kernel>);

}  // namespace

void add_avx2_int_linear(KernelTable& table) {
  table.linear[static_cast<int>(WeightFormat::kInt8)] = &kInt8;
  table.linear[static_cast<int>(WeightFormat::kInt4)] = &kInt4;
}

}  // namespace fathom
