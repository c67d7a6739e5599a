// Weights to their saved forms, in plain C++ whose every operation is IEEE's, so that all machines agree.
#include "kernels/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/dispatch.h"

namespace fathom {
namespace {

// Adding 1.5 · 2^23 leaves an integer of up to ±2^21, rounded to nearest even, in the low mantissa bits.
constexpr float kRoundMagic = 12582912.0f;

int32_t round_to_int(float x) {
  return std::bit_cast<int32_t>(x + kRoundMagic) - std::bit_cast<int32_t>(kRoundMagic);
}

// The largest magnitude; NaN if there is one (NaN's bits are above infinity's).
float max_magnitude(const float* x, int64_t n) {
  uint32_t bits = 0;
  for (int64_t i = 0; i < n; ++i) bits = std::max(bits, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return std::bit_cast<float>(bits);
}

void dequantize_fp8(const WeightSource& source, int64_t row, int64_t k_begin, int64_t count, float* out) {
  const auto* codes = static_cast<const Fp8E4m3*>(source.data) + row * source.k + k_begin;
  const auto* scales = static_cast<const std::byte*>(source.scales);
  const int64_t scale_row = row / kScaleBlock * source.scale_cols();
  for (int64_t i = 0; i < count; ++i) {
    float scale;
    std::memcpy(&scale, scales + (scale_row + (k_begin + i) / kScaleBlock) * 4, 4);
    out[i] = fp8_e4m3_to_f32(codes[i]) * scale;
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

// One group of up to 32: the scale takes the value of largest magnitude to code -8, so that it is exact.
void quantize_int4_group(const float* x, int64_t count, uint8_t* codes, F16* scale_out) {
  float extreme = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  *scale_out = f32_to_f16(extreme / -8.0f);
  const float scale = f16_to_f32(*scale_out);
  const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
  uint8_t nibbles[kInt4Group];
  std::fill(nibbles, nibbles + kInt4Group, uint8_t{8});
  for (int64_t i = 0; i < count; ++i) {
    nibbles[i] = static_cast<uint8_t>(round_to_int(std::clamp(x[i] * inverse, -8.0f, 7.0f)) + 8);
  }
  for (int64_t i = 0; i < kInt4Group / 2; ++i) {
    codes[i] = static_cast<uint8_t>(nibbles[2 * i] | (nibbles[2 * i + 1] << 4));
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
      for (int64_t i = 0; i < count; ++i) {
        Bf16 x;
        std::memcpy(&x, data + (at + i) * 2, 2);
        out[i] = bf16_to_f32(x);
      }
      return;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) {
        F16 x;
        std::memcpy(&x, data + (at + i) * 2, 2);
        out[i] = f16_to_f32(x);
      }
      return;
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

void quantize_weight_int8(const WeightSource& source, int64_t first_row, int64_t num_rows, int8_t* codes,
                          float* scales) {
  float x[kScaleBlock];
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t k = 0; k < source.k; k += kScaleBlock) {
      const int64_t count = std::min(kScaleBlock, source.k - k);
      dequantize_weight(source, first_row + r, k, count, x);
      const float amax = max_magnitude(x, count);
      const float inverse = amax > 0 ? 127.0f / amax : 0.0f;
      for (int64_t i = 0; i < count; ++i) codes[k + i] = static_cast<int8_t>(round_to_int(x[i] * inverse));
      scales[k / kScaleBlock] = amax / 127.0f;
    }
    codes += source.k;
    scales += ceil_div(source.k, kScaleBlock);
  }
}

void quantize_weight_int4(const WeightSource& source, int64_t first_row, int64_t num_rows, uint8_t* codes,
                          F16* scales) {
  float x[kInt4Group];
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t k = 0; k < source.k; k += kInt4Group) {
      const int64_t count = std::min(kInt4Group, source.k - k);
      dequantize_weight(source, first_row + r, k, count, x);
      quantize_int4_group(x, count, codes, scales);
      codes += kInt4Group / 2;
      ++scales;
    }
  }
}

void quantize_weight_fp8(const WeightSource& source, int64_t first_row, int64_t num_rows, Fp8E4m3* codes,
                         float* scales) {
  CHECK(first_row % kScaleBlock == 0);
  const int64_t scale_cols = ceil_div(source.k, kScaleBlock);
  float x[kScaleBlock];
  for (int64_t block = 0; block < num_rows; block += kScaleBlock) {
    const int64_t rows = std::min(kScaleBlock, num_rows - block);
    for (int64_t k = 0; k < source.k; k += kScaleBlock) {
      const int64_t count = std::min(kScaleBlock, source.k - k);
      float amax = 0;
      for (int64_t r = 0; r < rows; ++r) {
        dequantize_weight(source, first_row + block + r, k, count, x);
        const float row_max = max_magnitude(x, count);
        if (!(row_max <= amax)) amax = row_max;
      }
      const float scale = amax != 0 ? amax / kFp8E4m3Max : 1.0f;
      for (int64_t r = 0; r < rows; ++r) {
        dequantize_weight(source, first_row + block + r, k, count, x);
        Fp8E4m3* out = codes + (block + r) * source.k + k;
        for (int64_t i = 0; i < count; ++i) out[i] = f32_to_fp8_e4m3(x[i] / scale);
      }
      scales[block / kScaleBlock * scale_cols + k / kScaleBlock] = scale;
    }
  }
}

void quantize_rows(MatrixView<const float> x, const Activations& out, int64_t row_begin, int64_t row_end) {
  CHECK(x.cols == out.k && 0 <= row_begin && row_end <= x.rows && row_end <= out.rows);
  active_kernels().quantize_rows(x, out, row_begin, row_end);
}

}  // namespace fathom
