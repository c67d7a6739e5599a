// The reference every faster element-wise kernel is tested against: plain loops in the order of the formulas.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/dispatch_tables.h"

namespace fathom {
namespace {

void rms_norm_ref(MatrixView<const float> x, const float* gain, float eps, MatrixView<float> y) {
  for (int64_t r = 0; r < x.rows; ++r) {
    double squares = 0;
    for (int64_t c = 0; c < x.cols; ++c) squares += static_cast<double>(x.at(r, c)) * x.at(r, c);
    const float mean = static_cast<float>(squares / static_cast<double>(x.cols));
    const float factor = 1.0f / std::sqrt(mean + eps);
    for (int64_t c = 0; c < x.cols; ++c) y.at(r, c) = x.at(r, c) * factor * gain[c];
  }
}

void silu_mul_ref(MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> y) {
  for (int64_t r = 0; r < y.rows; ++r) {
    for (int64_t c = 0; c < y.cols; ++c) {
      const float a = gate.at(r, c);
      y.at(r, c) = a / (1.0f + std::exp(-a)) * up.at(r, c);
    }
  }
}

void rope_interleaved_ref(MatrixView<float> x, const float* cos_sin) {
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t i = 0; i < x.cols; i += 2) {
      const float re = x.at(r, i), im = x.at(r, i + 1);
      const float cosine = cos_sin[i], sine = cos_sin[i + 1];
      x.at(r, i) = re * cosine - im * sine;
      x.at(r, i + 1) = re * sine + im * cosine;
    }
  }
}

void add_rows_ref(MatrixView<const float> x, MatrixView<float> y) {
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.cols; ++c) y.at(r, c) += x.at(r, c);
  }
}

// Element i of memory that need not be aligned.
template <typename T>
T load(const void* x, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(x) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

void to_f32_ref(DType dtype, const void* x, int64_t n, float* y) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(y, x, static_cast<size_t>(n) * 4);
      return;
    case DType::kBf16:
      for (int64_t i = 0; i < n; ++i) y[i] = bf16_to_f32(load<Bf16>(x, i));
      return;
    case DType::kF16:
      for (int64_t i = 0; i < n; ++i) y[i] = f16_to_f32(load<F16>(x, i));
      return;
    default:
      CHECK_MSG(false, "to_f32 takes F32, BF16 and F16");
  }
}

void from_f32_ref(const float* x, int64_t n, DType dtype, void* y) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(y, x, static_cast<size_t>(n) * 4);
      return;
    case DType::kBf16:
      for (int64_t i = 0; i < n; ++i) static_cast<Bf16*>(y)[i] = f32_to_bf16(x[i]);
      return;
    case DType::kF16:
      for (int64_t i = 0; i < n; ++i) static_cast<F16*>(y)[i] = f32_to_f16(x[i]);
      return;
    default:
      CHECK_MSG(false, "from_f32 makes F32, BF16 and F16");
  }
}

void weighted_sum_ref(const WeightedRows& x, int64_t n, float* y) {
  std::fill(y, y + n, 0.0f);
  for (int64_t r = 0; r < x.count; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      float value;
      to_f32_ref(x.dtype, static_cast<const std::byte*>(x.rows[r]) + dtype_bytes(x.dtype, i), 1, &value);
      y[i] = std::fma(x.weights[r], value, y[i]);
    }
  }
}

}  // namespace

void add_ref_elementwise(KernelTable& table) {
  table.rms_norm = rms_norm_ref;
  table.silu_mul = silu_mul_ref;
  table.rope_interleaved = rope_interleaved_ref;
  table.add_rows = add_rows_ref;
  table.weighted_sum = weighted_sum_ref;
  table.to_f32 = to_f32_ref;
  table.from_f32 = from_f32_ref;
}

}  // namespace fathom
