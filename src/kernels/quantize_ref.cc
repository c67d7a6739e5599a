// The reference for rounding rows to BF16, FP8 and int8, and the only form where speed does not matter.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/dispatch_tables.h"

namespace fathom {
namespace {

float max_magnitude(const float* x, int64_t n) {
  uint32_t bits = 0;
  for (int64_t i = 0; i < n; ++i) bits = std::max(bits, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return std::bit_cast<float>(bits);
}

void quantize_block(const float* x, int64_t count, const Activations& out, std::byte* codes, float* scale) {
  const float amax = max_magnitude(x, count);
  if (out.format == ActFormat::kInt8) {
    *scale = amax / 127.0f;
    const float inverse = amax > 0 ? 127.0f / amax : 0.0f;
    for (int64_t i = 0; i < count; ++i) {
      const float code = std::nearbyint(x[i] * inverse);
      codes[i] = static_cast<std::byte>(std::fabs(code) <= 127.0f ? static_cast<int>(code) : 0);
    }
    return;
  }
  *scale = (amax < 1e-4f ? 1e-4f : amax) / kFp8E4m3Max;
  if (out.power_of_two_scales && std::isfinite(*scale)) *scale = std::exp2(std::ceil(std::log2(*scale)));
  for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<std::byte>(f32_to_fp8_e4m3(x[i] / *scale).bits);
}

void quantize_row(const float* x, const Activations& out, int64_t r) {
  std::byte* row = out.row(r);
  if (out.format == ActFormat::kF32) {
    std::memcpy(row, x, static_cast<size_t>(out.k) * 4);
    return;
  }
  if (out.format == ActFormat::kBf16) {
    auto* codes = reinterpret_cast<Bf16*>(row);
    for (int64_t k = 0; k < out.k; ++k) codes[k] = f32_to_bf16(x[k]);
    if (out.k % 2 == 1) codes[out.k] = Bf16{0};
    return;
  }
  for (int64_t k = 0; k < out.k; k += kScaleBlock) {
    const int64_t count = std::min(kScaleBlock, out.k - k);
    std::memset(row + k, 0, kScaleBlock);
    quantize_block(x + k, count, out, row + k, out.row_scales(r) + k / kScaleBlock);
  }
}

void quantize_rows_ref(MatrixView<const float> x, const Activations& out, int64_t row_begin,
                       int64_t row_end) {
  for (int64_t r = row_begin; r < row_end; ++r) quantize_row(x.row(r), out, r);
}

// The scale takes the value of largest magnitude (the first of several) to code -8, so that it is exact.
void quantize_int4_group(const float* x, uint8_t* codes, F16* scale_out) {
  const float amax = max_magnitude(x, kInt4Group);
  float extreme = amax;  // stays where it is 0 or NaN
  for (int64_t i = kInt4Group; i-- > 0 && amax > 0;) {
    if (std::fabs(x[i]) == amax) extreme = x[i];
  }
  *scale_out = f32_to_f16(extreme / -8.0f);
  const float scale = f16_to_f32(*scale_out);
  const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
  for (int64_t i = 0; i < kInt4Group; ++i) {
    const float code = std::nearbyint(std::clamp(x[i] * inverse, -8.0f, 7.0f)) + 8;
    const auto nibble = static_cast<uint8_t>(std::isnan(code) ? 0 : static_cast<int>(code));
    codes[i / 2] = static_cast<uint8_t>(i % 2 == 0 ? nibble : codes[i / 2] | nibble << 4);
  }
}

void quantize_int4_groups_ref(const float* x, int64_t num_groups, uint8_t* codes, F16* scales) {
  for (int64_t g = 0; g < num_groups; ++g) {
    quantize_int4_group(x + g * kInt4Group, codes + g * kInt4Group / 2, scales + g);
  }
}

void divide_to_fp8_ref(const float* x, int64_t n, float scale, Fp8E4m3* codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = f32_to_fp8_e4m3(x[i] / scale);
}

}  // namespace

void add_ref_quantize(KernelTable& table) {
  table.quantize_rows = quantize_rows_ref;
  table.quantize_int4_groups = quantize_int4_groups_ref;
  table.divide_to_fp8 = divide_to_fp8_ref;
  table.max_magnitude = max_magnitude;
}

}  // namespace fathom
