// Weights to their saved forms. Every operation of every instruction set's version is IEEE's, so all machines
// agree.
#include "kernels/quantize.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "kernels/dispatch.h"

namespace fathom {
namespace {

constexpr std::array<float, 256> make_fp8_values() {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) values[code] = fp8_e4m3_to_f32(Fp8E4m3{static_cast<uint8_t>(code)});
  return values;
}
constexpr std::array<float, 256> kFp8Values = make_fp8_values();

void dequantize_fp8(const WeightSource& source, int64_t row, int64_t k_begin, int64_t count, float* out) {
  const auto* codes = static_cast<const Fp8E4m3*>(source.data) + row * source.k + k_begin;
  const auto* scales = static_cast<const std::byte*>(source.scales);
  const int64_t scale_row = row / kScaleBlock * source.scale_cols();
  for (int64_t i = 0; i < count; ++i) {
    float scale;
    std::memcpy(&scale, scales + (scale_row + (k_begin + i) / kScaleBlock) * 4, 4);
    out[i] = kFp8Values[codes[i].bits] * scale;
  }
}

void dequantize_int8(const WeightSource& source, int64_t row, int64_t k_begin, int64_t count, float* out) {
  const auto* codes = static_cast<const int8_t*>(source.data) + row * source.k + k_begin;
  const auto* scales = static_cast<const std::byte*>(source.scales) + row * source.scale_cols() * 4;
  for (int64_t i = 0; i < count; ++i) {
    float scale;
    std::memcpy(&scale, scales + (k_begin + i) / kScaleBlock * 4, 4);
    out[i] = static_cast<float>(codes[i]) * scale;
  }
}

void dequantize_int4(const WeightSource& source, int64_t row, int64_t k_begin, int64_t count, float* out) {
  const auto* codes = static_cast<const uint8_t*>(source.data) + row * source.row_bytes();
  const auto* scales = static_cast<const std::byte*>(source.scales) + row * source.scale_cols() * 2;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t k = k_begin + i;
    F16 scale;
    std::memcpy(&scale, scales + k / kInt4Group * 2, 2);
    const int code = (codes[k / 2] >> (k % 2 * 4)) & 15;
    out[i] = static_cast<float>(code - 8) * f16_to_f32(scale);
  }
}

}  // namespace

void dequantize_weight(const WeightSource& source, int64_t row, int64_t k_begin, int64_t count, float* out) {
  const std::byte* data = static_cast<const std::byte*>(source.data);
  const int64_t at = row * source.k + k_begin;
  switch (source.dtype) {
    case DType::kF32:
      std::memcpy(out, data + at * 4, static_cast<size_t>(count) * 4);
      return;
    case DType::kBf16:
    case DType::kF16:
      return active_kernels().to_f32(source.dtype, data + at * 2, count, out);
    case DType::kFp8E4m3:
      return dequantize_fp8(source, row, k_begin, count, out);
    case DType::kInt8:
      return dequantize_int8(source, row, k_begin, count, out);
    case DType::kInt4:
      return dequantize_int4(source, row, k_begin, count, out);
    default:
      CHECK_MSG(false, "not a dtype of weights");
  }
}

void quantize_int8_block(const float* x, int64_t count, int8_t* codes, float* scale) {
  // The same rule as for activations: amax / 127 and nearest even.
  int8_t padded[kScaleBlock];
  const Activations out{.format = ActFormat::kInt8,
                        .rows = 1,
                        .k = count,
                        .data = padded,
                        .row_stride_bytes = kScaleBlock,
                        .scales = scale,
                        .scale_stride = 1};
  active_kernels().quantize_rows({x, 1, count}, out, 0, 1);
  std::memcpy(codes, padded, static_cast<size_t>(count));
}

void quantize_int4_block(float* x, int64_t count, uint8_t* codes, F16* scales) {
  const int64_t groups = ceil_div(count, kInt4Group);
  std::fill(x + count, x + groups * kInt4Group, 0.0f);
  active_kernels().quantize_int4_groups(x, groups, codes, scales);
}

namespace {

// Takes a row into the largest magnitude of its block.
void raise_to_row(const float* x, int64_t count, float& amax) {
  const float row_max = active_kernels().max_magnitude(x, count);
  if (!(row_max <= amax)) amax = row_max;
}

float fp8_scale(float amax) { return amax != 0 ? amax / kFp8E4m3Max : 1.0f; }

}  // namespace

float fp8_block_scale(const WeightSource& source, int64_t row, int64_t k) {
  const int64_t rows = std::min(kScaleBlock, source.n - row), count = std::min(kScaleBlock, source.k - k);
  float x[kScaleBlock];
  float amax = 0;
  for (int64_t r = 0; r < rows; ++r) {
    dequantize_weight(source, row + r, k, count, x);
    raise_to_row(x, count, amax);
  }
  return fp8_scale(amax);
}

float quantize_fp8_block(const WeightSource& source, int64_t row, int64_t k, Fp8E4m3* codes, int64_t stride) {
  const int64_t rows = std::min(kScaleBlock, source.n - row), count = std::min(kScaleBlock, source.k - k);
  float block[kScaleBlock][kScaleBlock];
  float amax = 0;
  for (int64_t r = 0; r < rows; ++r) {
    dequantize_weight(source, row + r, k, count, block[r]);
    raise_to_row(block[r], count, amax);
  }
  const float scale = fp8_scale(amax);
  for (int64_t r = 0; r < rows; ++r)
    active_kernels().divide_to_fp8(block[r], count, scale, codes + r * stride);
  return scale;
}

void quantize_weight_int8(const WeightSource& source, int64_t first_row, int64_t num_rows, int8_t* codes,
                          float* scales) {
  float x[kScaleBlock];
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t k = 0; k < source.k; k += kScaleBlock) {
      const int64_t count = std::min(kScaleBlock, source.k - k);
      dequantize_weight(source, first_row + r, k, count, x);
      quantize_int8_block(x, count, codes + k, scales + k / kScaleBlock);
    }
    codes += source.k;
    scales += ceil_div(source.k, kScaleBlock);
  }
}

void quantize_weight_int4(const WeightSource& source, int64_t first_row, int64_t num_rows, uint8_t* codes,
                          F16* scales) {
  float x[kScaleBlock];
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t k = 0; k < source.k; k += kScaleBlock) {
      const int64_t count = std::min(kScaleBlock, source.k - k), groups = ceil_div(count, kInt4Group);
      dequantize_weight(source, first_row + r, k, count, x);
      quantize_int4_block(x, count, codes, scales);
      codes += groups * (kInt4Group / 2);
      scales += groups;
    }
  }
}

void quantize_weight_fp8(const WeightSource& source, int64_t first_row, int64_t num_rows, Fp8E4m3* codes,
                         float* scales) {
  CHECK(first_row % kScaleBlock == 0);
  CHECK(num_rows % kScaleBlock == 0 || first_row + num_rows == source.n);
  for (int64_t r = 0; r < num_rows; r += kScaleBlock) {
    for (int64_t k = 0; k < source.k; k += kScaleBlock)
      *scales++ = quantize_fp8_block(source, first_row + r, k, codes + r * source.k + k, source.k);
  }
}

void quantize_rows(MatrixView<const float> x, const Activations& out, int64_t row_begin, int64_t row_end) {
  CHECK(x.cols == out.k && 0 <= row_begin && row_end <= x.rows && row_end <= out.rows);
  active_kernels().quantize_rows(x, out, row_begin, row_end);
}

}  // namespace fathom
