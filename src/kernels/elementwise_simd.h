// The row-wise ops for a vector type V (simd_avx2.h, simd_avx512.h).
#pragma once

#include "kernels/dispatch_tables.h"
#include "kernels/simd.h"

namespace fathom {
namespace {

// Calls whole(i) for whole vectors and part(i, n) for what is left of `count`.
template <class V, class Whole, class Part>
FATHOM_INLINE void for_vectors(int64_t count, Whole whole, Part part) {
  int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) whole(i);
  if (i < count) part(i, count - i);
}

template <class V>
float square_sum(const float* x, int64_t n) {
  using F = typename V::F;
  F sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  int64_t i = 0;
  for (; i + 4 * V::kLanes <= n; i += 4 * V::kLanes) {
    FATHOM_UNROLL
    for (int j = 0; j < 4; ++j) {
      const F value = V::load(x + i + j * V::kLanes);
      sums[j] = V::fma(value, value, sums[j]);
    }
  }
  for (; i < n; i += V::kLanes) {
    const F value = V::load_part(x + i, smaller(V::kLanes, n - i));
    sums[0] = V::fma(value, value, sums[0]);
  }
  return V::sum(V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3])));
}

template <class V>
void rms_norm_simd(MatrixView<const float> x, const float* gain, float eps, MatrixView<float> y) {
  using F = typename V::F;
  for (int64_t r = 0; r < x.rows; ++r) {
    const float* in = x.data + r * x.stride;
    float* out = y.data + r * y.stride;
    const float mean = square_sum<V>(in, x.cols) / static_cast<float>(x.cols);
    const F factor = V::set1(1.0f / __builtin_sqrtf(mean + eps));
    for_vectors<V>(
        x.cols,
        [&](int64_t i) { V::store(out + i, V::mul(V::mul(V::load(in + i), factor), V::load(gain + i))); },
        [&](int64_t i, int64_t n) {
          const F value = V::mul(V::mul(V::load_part(in + i, n), factor), V::load_part(gain + i, n));
          V::store_part(out + i, n, value);
        });
  }
}

template <class V>
FATHOM_INLINE typename V::F silu_times(typename V::F a, typename V::F up) {
  const auto exp_minus = simd_exp<V>(V::sub(V::zero(), a));
  return V::mul(V::div(a, V::add(V::set1(1.0f), exp_minus)), up);
}

template <class V>
void silu_mul_simd(MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> y) {
  for (int64_t r = 0; r < y.rows; ++r) {
    const float* a = gate.data + r * gate.stride;
    const float* b = up.data + r * up.stride;
    float* out = y.data + r * y.stride;
    for_vectors<V>(
        y.cols, [&](int64_t i) { V::store(out + i, silu_times<V>(V::load(a + i), V::load(b + i))); },
        [&](int64_t i, int64_t n) {
          V::store_part(out + i, n, silu_times<V>(V::load_part(a + i, n), V::load_part(b + i, n)));
        });
  }
}

template <class V>
void rope_simd(MatrixView<float> x, const float* cos_sin) {
  for (int64_t r = 0; r < x.rows; ++r) {
    float* row = x.data + r * x.stride;
    for_vectors<V>(
        x.cols,
        [&](int64_t i) { V::store(row + i, V::rotate_pairs(V::load(row + i), V::load(cos_sin + i))); },
        [&](int64_t i, int64_t n) {
          V::store_part(row + i, n, V::rotate_pairs(V::load_part(row + i, n), V::load_part(cos_sin + i, n)));
        });
  }
}

template <class V>
void add_rows_simd(MatrixView<const float> x, MatrixView<float> y) {
  for (int64_t r = 0; r < x.rows; ++r) {
    const float* in = x.data + r * x.stride;
    float* out = y.data + r * y.stride;
    for_vectors<V>(
        x.cols, [&](int64_t i) { V::store(out + i, V::add(V::load(out + i), V::load(in + i))); },
        [&](int64_t i, int64_t n) {
          V::store_part(out + i, n, V::add(V::load_part(out + i, n), V::load_part(in + i, n)));
        });
  }
}

template <class V>
FATHOM_INLINE typename V::F load_as(DType dtype, const void* p) {
  return dtype == DType::kF32    ? V::load(static_cast<const float*>(p))
         : dtype == DType::kBf16 ? V::load_bf16(p)
                                 : V::load_f16(p);
}

template <class V>
FATHOM_INLINE void store_as(DType dtype, void* p, typename V::F x) {
  if (dtype == DType::kF32) {
    V::store(static_cast<float*>(p), x);
  } else if (dtype == DType::kBf16) {
    V::store_bf16(p, x);
  } else {
    V::store_f16(p, x);
  }
}

// Converts between dtypes that are F32, BF16 or F16, one of them F32.
template <class V>
FATHOM_INLINE void convert(DType from, const void* x, DType to, void* y, int64_t n) {
  const int64_t in_bytes = from == DType::kF32 ? 4 : 2, out_bytes = to == DType::kF32 ? 4 : 2;
  const auto* in = static_cast<const char*>(x);
  auto* out = static_cast<char*>(y);
  for_vectors<V>(
      n, [&](int64_t i) { store_as<V>(to, out + i * out_bytes, load_as<V>(from, in + i * in_bytes)); },
      [&](int64_t i, int64_t count) {
        alignas(64) char part[64] = {}, result[64];
        __builtin_memcpy(part, in + i * in_bytes, static_cast<size_t>(count * in_bytes));
        store_as<V>(to, result, load_as<V>(from, part));
        __builtin_memcpy(out + i * out_bytes, result, static_cast<size_t>(count * out_bytes));
      });
}

// Elements [begin, end) of the sum, end - begin a multiple of kVectors · V::kLanes.
template <class V, DType kDType, int kVectors>
FATHOM_INLINE void add_up(const WeightedRows& x, int64_t begin, int64_t end, float* y) {
  constexpr int64_t kBytes = kDType == DType::kF32 ? 4 : 2;
  for (int64_t i = begin; i < end; i += kVectors * V::kLanes) {
    typename V::F sum[kVectors];
    FATHOM_UNROLL
    for (int v = 0; v < kVectors; ++v) sum[v] = V::zero();
    for (int64_t r = 0; r < x.count; ++r) {
      const auto weight = V::set1(x.weights[r]);
      const char* const row = static_cast<const char*>(x.rows[r]) + i * kBytes;
      FATHOM_UNROLL
      for (int v = 0; v < kVectors; ++v)
        sum[v] = V::fma(weight, load_as<V>(kDType, row + v * V::kLanes * kBytes), sum[v]);
    }
    FATHOM_UNROLL
    for (int v = 0; v < kVectors; ++v) V::store(y + i + v * V::kLanes, sum[v]);
  }
}

template <class V, DType kDType>
FATHOM_INLINE void weighted_sum_of(const WeightedRows& x, int64_t n, float* y) {
  constexpr int64_t kBytes = kDType == DType::kF32 ? 4 : 2;
  const int64_t fours = n / (4 * V::kLanes) * (4 * V::kLanes), ones = n / V::kLanes * V::kLanes;
  add_up<V, kDType, 4>(x, 0, fours, y);
  add_up<V, kDType, 1>(x, fours, ones, y);
  if (ones == n) return;
  auto sum = V::zero();
  for (int64_t r = 0; r < x.count; ++r) {
    alignas(64) char part[64] = {};
    __builtin_memcpy(part, static_cast<const char*>(x.rows[r]) + ones * kBytes,
                     static_cast<size_t>((n - ones) * kBytes));
    sum = V::fma(V::set1(x.weights[r]), load_as<V>(kDType, part), sum);
  }
  V::store_part(y + ones, n - ones, sum);
}

template <class V>
void weighted_sum_simd(const WeightedRows& x, int64_t n, float* y) {
  if (x.dtype == DType::kF32) {
    weighted_sum_of<V, DType::kF32>(x, n, y);
  } else if (x.dtype == DType::kBf16) {
    weighted_sum_of<V, DType::kBf16>(x, n, y);
  } else {
    weighted_sum_of<V, DType::kF16>(x, n, y);
  }
}

template <class V>
void to_f32_simd(DType dtype, const void* x, int64_t n, float* y) {
  convert<V>(dtype, x, DType::kF32, y, n);
}

template <class V>
void from_f32_simd(const float* x, int64_t n, DType dtype, void* y) {
  convert<V>(DType::kF32, x, dtype, y, n);
}

template <class V>
void add_elementwise(KernelTable& table) {
  table.rms_norm = rms_norm_simd<V>;
  table.silu_mul = silu_mul_simd<V>;
  table.rope_interleaved = rope_simd<V>;
  table.add_rows = add_rows_simd<V>;
  table.weighted_sum = weighted_sum_simd<V>;
  table.to_f32 = to_f32_simd<V>;
  table.from_f32 = from_f32_simd<V>;
}

}  // namespace
}  // namespace fathom
