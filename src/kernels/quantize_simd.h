// Rounding of activations and weights for a vector type V (simd_avx2.h, simd_avx512.h).
#pragma once

#include "kernels/elementwise_simd.h"

namespace fathom {
namespace {

template <class V>
float max_magnitude_simd(const float* x, int64_t n) {
  typename V::F top = V::zero();
  for_vectors<V>(
      n, [&](int64_t i) { top = V::max_magnitude(top, V::load(x + i)); },
      [&](int64_t i, int64_t count) { top = V::max_magnitude(top, V::load_part(x + i, count)); });
  return V::highest_bits(top);
}

// One block of up to 128: its scale and codes; codes of the rest of 128 are zero.
template <class V>
FATHOM_INLINE void quantize_block(const float* x, int64_t count, const Activations& out, std::byte* codes,
                                  float* scale) {
  using F = typename V::F;
  const float amax = max_magnitude_simd<V>(x, count);
  const bool fp8 = out.format == ActFormat::kFp8;
  *scale = fp8 ? (amax < 1e-4f ? 1e-4f : amax) / kFp8E4m3Max : amax / 127.0f;
  if (fp8 && out.power_of_two_scales && *scale < __builtin_inff()) {
    uint32_t bits;  // up to the next power of two: scales are normal numbers
    __builtin_memcpy(&bits, scale, 4);
    bits = (bits + 0x7fffffu) & 0x7f800000u;
    __builtin_memcpy(scale, &bits, 4);
  }
  const F divisor = V::set1(*scale);
  const F inverse = V::set1(amax > 0 ? 127.0f / amax : 0.0f);
  for (int64_t i = 0; i < kScaleBlock; i += V::kLanes) {
    const int64_t n = count - i;
    const F value = n >= V::kLanes ? V::load(x + i) : n > 0 ? V::load_part(x + i, n) : V::zero();
    if (fp8) {
      V::store_fp8(codes + i, V::div(value, divisor));
    } else {
      V::store_int8(codes + i, V::mul(value, inverse));
    }
  }
}

template <class V>
void quantize_rows_simd(MatrixView<const float> x, const Activations& out, int64_t row_begin,
                        int64_t row_end) {
  for (int64_t r = row_begin; r < row_end; ++r) {
    const float* in = x.data + r * x.stride;
    auto* row = static_cast<std::byte*>(out.data) + r * out.row_stride_bytes;
    if (out.format == ActFormat::kF32) {
      convert<V>(DType::kF32, in, DType::kF32, row, out.k);
    } else if (out.format == ActFormat::kBf16) {
      convert<V>(DType::kF32, in, DType::kBf16, row, out.k);
      if (out.k % 2 == 1) __builtin_memset(row + out.k * 2, 0, 2);
    } else {
      float* scales = out.scales + r * out.scale_stride;
      for (int64_t k = 0; k < out.k; k += kScaleBlock) {
        quantize_block<V>(in + k, smaller(kScaleBlock, out.k - k), out, row + k, scales++);
      }
    }
  }
}

// Eight bytes of two codes each from 16 codes below 16.
FATHOM_INLINE __m128i join_nibbles(const int8_t* codes) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  return _mm_maddubs_epi16(bytes, _mm_set1_epi16(0x1001));
}

template <class V>
FATHOM_INLINE void quantize_int4_group(const float* x, uint8_t* codes, F16* scale_out) {
  using F = typename V::F;
  constexpr int kVectors = static_cast<int>(kInt4Group / V::kLanes);
  const float amax = max_magnitude_simd<V>(x, kInt4Group);
  uint64_t largest = 0;  // bit i: element i has the largest magnitude
  FATHOM_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    largest |= static_cast<uint64_t>(V::magnitude_equals(V::load(x + v * V::kLanes), amax)) << v * V::kLanes;
  }
  const float extreme = amax > 0 ? x[__builtin_ctzll(largest)] : amax;
  uint16_t halves[V::kLanes];
  V::store_f16(halves, V::set1(extreme / -8.0f));
  __builtin_memcpy(static_cast<void*>(scale_out), halves, 2);
  const float scale = V::first(V::load_f16(halves));
  const F inverse = V::set1(scale != 0 ? 1.0f / scale : 0.0f);
  int8_t values[kInt4Group];
  FATHOM_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const F code = V::mul(V::load(x + v * V::kLanes), inverse);
    const F clamped = V::min(V::set1(7.0f), V::max(V::set1(-8.0f), code));
    V::store_int8(values + v * V::kLanes, V::add(V::round(clamped), V::set1(8.0f)));
  }
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes),
                   _mm_packus_epi16(join_nibbles(values), join_nibbles(values + 16)));
}

template <class V>
void quantize_int4_groups_simd(const float* x, int64_t num_groups, uint8_t* codes, F16* scales) {
  for (int64_t g = 0; g < num_groups; ++g) {
    quantize_int4_group<V>(x + g * kInt4Group, codes + g * kInt4Group / 2, scales + g);
  }
}

template <class V>
void divide_to_fp8_simd(const float* x, int64_t n, float scale, Fp8E4m3* codes) {
  const auto divisor = V::set1(scale);
  for_vectors<V>(
      n, [&](int64_t i) { V::store_fp8(codes + i, V::div(V::load(x + i), divisor)); },
      [&](int64_t i, int64_t count) {
        uint8_t part[V::kLanes];
        V::store_fp8(part, V::div(V::load_part(x + i, count), divisor));
        __builtin_memcpy(static_cast<void*>(codes + i), part, static_cast<size_t>(count));
      });
}

template <class V>
void add_quantize(KernelTable& table) {
  table.quantize_rows = quantize_rows_simd<V>;
  table.quantize_int4_groups = quantize_int4_groups_simd<V>;
  table.divide_to_fp8 = divide_to_fp8_simd<V>;
  table.max_magnitude = max_magnitude_simd<V>;
}

}  // namespace
}  // namespace fathom
