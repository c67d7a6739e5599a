// Linear layers with F32 multiply-adds, for a vector type V: F32 and F16 weights everywhere, BF16 and FP8
// where the processor has no BF16 products. Activations that are not F32 are widened once per block of rows.
#pragma once

#include "kernels/dispatch_tables.h"
#include "kernels/panel_driver.h"

namespace fathom {
namespace {

// A decoder D turns one step of a panel into F32 vectors:
//   kFormat; kStep: elements of K in a step; kStepBytes;
//   kSpread: distance of a pair's second vector of outputs from its first;
//   Raw read(p, group): loads one step of the group-th pair of vectors (V::kLanes outputs each);
//   decode(raw, i, v): element i of the step for vector v of the pair.
template <class V>
struct F32Decoder {
  static constexpr WeightFormat kFormat = WeightFormat::kF32;
  static constexpr int kStep = 1, kStepBytes = 128;
  static constexpr int kSpread = V::kLanes;
  struct Raw {
    typename V::F w[2];
  };
  static FATHOM_INLINE Raw read(const std::byte* p, int group) {
    const float* at = reinterpret_cast<const float*>(p) + group * 2 * V::kLanes;
    return {{V::load(at), V::load(at + V::kLanes)}};
  }
  static FATHOM_INLINE typename V::F decode(const Raw& raw, int, int v) { return raw.w[v]; }
};

template <class V>
struct F16Decoder {
  static constexpr WeightFormat kFormat = WeightFormat::kF16;
  static constexpr int kStep = 1, kStepBytes = 64;
  static constexpr int kSpread = V::kLanes;
  struct Raw {
    typename V::F w[2];
  };
  static FATHOM_INLINE Raw read(const std::byte* p, int group) {
    const std::byte* at = p + group * 4 * V::kLanes;
    return {{V::load_f16(at), V::load_f16(at + 2 * V::kLanes)}};
  }
  static FATHOM_INLINE typename V::F decode(const Raw& raw, int, int v) { return raw.w[v]; }
};

template <class V>
struct Bf16Decoder {
  static constexpr WeightFormat kFormat = WeightFormat::kBf16;
  static constexpr int kStep = 2, kStepBytes = 128;
  static constexpr int kSpread = V::kLanes;
  struct Raw {
    const std::byte* at;
  };
  static FATHOM_INLINE Raw read(const std::byte* p, int group) { return {p + group * 8 * V::kLanes}; }
  static FATHOM_INLINE typename V::F decode(const Raw& raw, int i, int v) {
    const std::byte* at = raw.at + v * 4 * V::kLanes;
    return i == 0 ? V::load_bf16_even(at) : V::load_bf16_odd(at);
  }
};

// V::unpack_fp8(p, group): the pairs of two vectors of outputs as BF16, exactly, NaN too.
template <class V>
struct Fp8Decoder {
  static constexpr WeightFormat kFormat = WeightFormat::kFp8;
  static constexpr int kStep = 2, kStepBytes = 64;
  static constexpr int kSpread = 16;  // see fp8_column
  struct Raw {
    typename V::I pairs[2];
  };
  static FATHOM_INLINE Raw read(const std::byte* p, int group) {
    Raw raw;
    V::unpack_fp8(p + group * 4 * V::kLanes, raw.pairs[0], raw.pairs[1]);
    return raw;
  }
  static FATHOM_INLINE typename V::F decode(const Raw& raw, int i, int v) {
    return i == 0 ? V::even_halves(raw.pairs[v]) : V::odd_halves(raw.pairs[v]);
  }
};

// A panel widened to F32 in the cache, for many rows; scaled as its format is.
template <class V, WeightFormat kOf>
struct WidenedDecoder : F32Decoder<V> {
  static constexpr WeightFormat kFormat = kOf;
};

// A block of rows against kGroups pairs of vectors starting at pair `group`, over one run of K without
// scales.
template <class V, class D, int kRows, int kGroups>
FATHOM_INLINE void fma_run(const MicroArgs& args, const std::byte* w, const std::byte* a_begin,
                           int64_t k_count, int group, typename V::F (&acc)[kRows][2 * kGroups]) {
  const std::byte* base[(kRows + 2) / 3];
  FATHOM_UNROLL
  for (int i = 0; i < (kRows + 2) / 3; ++i) base[i] = a_begin + i * 3 * args.a_stride;
  for (int64_t k = 0; k < k_count; k += D::kStep) {
    _mm_prefetch(reinterpret_cast<const char*>(w + 2048), _MM_HINT_T0);
    if (D::kStepBytes > 64) _mm_prefetch(reinterpret_cast<const char*>(w + 2112), _MM_HINT_T0);
    typename D::Raw raw[kGroups];
    FATHOM_UNROLL
    for (int g = 0; g < kGroups; ++g) raw[g] = D::read(w, group + g);
    FATHOM_UNROLL
    for (int i = 0; i < D::kStep; ++i) {
      typename V::F weights[2 * kGroups];
      FATHOM_UNROLL
      for (int v = 0; v < 2 * kGroups; ++v) weights[v] = D::decode(raw[v / 2], i, v % 2);
      FATHOM_UNROLL
      for (int r = 0; r < kRows; ++r) {
        float value;
        __builtin_memcpy(&value, base[r / 3] + r % 3 * args.a_stride + i * 4, 4);
        const auto a = V::set1(value);
        FATHOM_UNROLL
        for (int v = 0; v < 2 * kGroups; ++v) acc[r][v] = V::fma(a, weights[v], acc[r][v]);
      }
    }
    FATHOM_UNROLL
    for (int i = 0; i < (kRows + 2) / 3; ++i) base[i] += D::kStep * 4;
    w += D::kStepBytes;
  }
}

template <class V, class D, int kRows, int kGroups>
FATHOM_INLINE void fma_groups(const MicroArgs& args, int group) {
  using F = typename V::F;
  constexpr int kVectors = 2 * kGroups;
  const auto column = [&](int v) {
    const int pair = group + v / 2;
    const int first = D::kSpread == V::kLanes ? pair * 2 * V::kLanes : pair * V::kLanes;
    return first + v % 2 * D::kSpread;
  };
  const auto out = [&](int r, int v) { return args.c + r * args.c_stride + column(v); };
  F acc[kRows][kVectors];
  if (D::kFormat != WeightFormat::kFp8) {
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v) acc[r][v] = args.first ? V::zero() : V::load(out(r, v));
    }
    fma_run<V, D, kRows, kGroups>(args, args.w, args.a, args.k_count, group, acc);
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v) V::store(out(r, v), acc[r][v]);
    }
    return;
  }
  for (int64_t block = 0; block * kScaleBlock < args.k_count; ++block) {
    const int64_t k = block * kScaleBlock;
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v) acc[r][v] = V::zero();
    }
    fma_run<V, D, kRows, kGroups>(args, args.w + k / D::kStep * D::kStepBytes, args.a + k * 4,
                                  smaller(kScaleBlock, args.k_count - k), group, acc);
    const auto [to, to_stride] = sums_place(args, block);
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const F scale = V::set1(args.x_scales[r * args.x_scale_stride + block] * args.w_scales[block]);
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const F before = args.first && block == 0 ? V::zero() : V::load(out(r, v));
        V::store(to + r * to_stride + column(v), V::fma(acc[r][v], scale, before));
      }
    }
  }
}

template <class V, class D>
struct FmaKernel;

// The K of panel_driver.h. With AVX2 a panel is two pairs of vectors: both at once for one or two rows, so
// that memory is read once and forward, one after the other (from the cache) for more.
template <class V, class D>
struct FmaKernel {
  using Args = MicroArgs;
  static constexpr WeightFormat kFormat = D::kFormat;
  static constexpr int kPairs = 16 / V::kLanes;
  static constexpr int kMaxRows = kPairs == 1 ? 12 : 6;
  static constexpr bool kWiden = D::kStep == 2;
  static constexpr int64_t kKBlock = kWiden ? 128 : 512;
  static constexpr int64_t kGroupRows = kWiden ? 240 : 60;
  static constexpr int64_t kRowPadding = 16;  // one cache line: rows fall on different cache sets
  static constexpr int64_t kScratchFloats = kWiden ? kGroupRows * (kKBlock + kRowPadding) : 16;
  struct Scratch {
    alignas(64) float a[kScratchFloats];
    alignas(64) float panel[kWiden ? kKBlock * kLinearTileN : 16];
  };
  // Several blocks of rows share a panel widened once.
  static constexpr bool kWidensPanels = kWiden;
  using Widened = FmaKernel<V, WidenedDecoder<V, kFormat>>;
  static void widen_panel(Scratch& scratch, MicroArgs& args) {
    for (int64_t k = 0; k < args.k_count; k += D::kStep) {
      float* out = scratch.panel + k * kLinearTileN;
      FATHOM_UNROLL
      for (int pair = 0; pair < kPairs; ++pair) {
        const auto raw = D::read(args.w + k / D::kStep * D::kStepBytes, pair);
        const int64_t first = D::kSpread == V::kLanes ? pair * 2 * V::kLanes : pair * V::kLanes;
        FATHOM_UNROLL
        for (int i = 0; i < D::kStep; ++i) {
          V::store(out + i * kLinearTileN + first, D::decode(raw, i, 0));
          V::store(out + i * kLinearTileN + first + D::kSpread, D::decode(raw, i, 1));
        }
      }
    }
    args.w = reinterpret_cast<const std::byte*>(scratch.panel);
  }
  static int64_t max_k(int64_t rows) {
    return kWiden ? (kScratchFloats / rows - kRowPadding) / kScaleBlock * kScaleBlock : INT64_MAX;
  }

  static void prepare(const RowGroup& group, Scratch& scratch, MicroArgs& args) {
    if (!kWiden) {
      args.a = group.data(4);
      args.a_stride = group.x.row_stride_bytes;
      return;
    }
    const std::byte* const data = group.data(kFormat == WeightFormat::kFp8 ? 1 : 2);
    const int64_t stride = round_up(group.k_count, kScaleBlock) + kRowPadding;
    for (int64_t r = 0; r < group.rows; ++r) {
      widen(data + r * group.x.row_stride_bytes, group.k_count, scratch.a + r * stride);
    }
    args.a = reinterpret_cast<const std::byte*>(scratch.a);
    args.a_stride = stride * 4;
  }

  // A row of BF16 of odd length is readable, and finite, one element further; FP8 up to a multiple of 128.
  static FATHOM_INLINE void widen(const std::byte* in, int64_t count, float* out) {
    if constexpr (kFormat == WeightFormat::kFp8) {
      for (int64_t i = 0; i < count; i += 16) V::widen_fp8(in + i, out + i);
    } else {
      int64_t i = 0;
      for (; i + V::kLanes <= count; i += V::kLanes) V::store(out + i, V::load_bf16(in + i * 2));
      for (; i < round_up(count, 2); ++i) {
        uint16_t bits;
        __builtin_memcpy(&bits, in + i * 2, 2);
        const uint32_t wide = static_cast<uint32_t>(bits) << 16;
        __builtin_memcpy(out + i, &wide, 4);
      }
    }
  }

  template <int kRows>
  static void run(const MicroArgs& args) {
    if constexpr (kPairs == 1) {
      fma_groups<V, D, kRows, 1>(args, 0);
    } else if constexpr (kRows <= 2) {
      fma_groups<V, D, kRows, 2>(args, 0);
    } else {
      fma_groups<V, D, kRows, 1>(args, 0);
      fma_groups<V, D, kRows, 1>(args, 1);
    }
  }
};

template <class V, class D>
constexpr LinearKernel make_fma_kernel(Isa isa) {
  return make_panel_kernel<D::kFormat>(isa, run_panels<FmaKernel<V, D>, V>);
}

}  // namespace
}  // namespace fathom
