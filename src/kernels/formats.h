// Number formats of linear layers: how weights and activations are held in memory. docs/weight-formats.md
// specifies the forms that are saved to disk.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "tensor/dtype.h"

namespace fathom {

enum class WeightFormat : uint8_t { kF32, kF16, kBf16, kFp8, kInt8, kInt4 };
inline constexpr int kNumWeightFormats = 6;

// What the weights of a format are multiplied with.
enum class ActFormat : uint8_t { kF32, kBf16, kFp8, kInt8 };
inline constexpr int kNumActFormats = 4;

// FP8 and INT8 carry one scale per 128 along K; FP8 weights per 128 × 128.
inline constexpr int64_t kScaleBlock = 128;
// INT4 weights carry one scale per 32 along K.
inline constexpr int64_t kInt4Group = 32;
// Packed weights are cut along N at multiples of this only.
inline constexpr int64_t kLinearTileN = 32;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

std::string_view weight_format_name(WeightFormat format);  // "f32", "f16", "bf16", "fp8", "int8", "int4"
std::optional<WeightFormat> parse_weight_format(std::string_view name);
std::string_view act_format_name(ActFormat format);
// F32, F16 → F32; BF16 → BF16; FP8 → FP8; INT8, INT4 → INT8.
ActFormat act_format_for(WeightFormat format);

// A row-major matrix of weights as a checkpoint or a converted model holds it. Row 0 of `data` is row 0 of
// the matrix; elements of a row are adjacent. Nothing needs to be aligned.
//   dtype      data                               scales (row-major)
//   F32 BF16 F16  [n, k]                          none
//   FP8        [n, k] e4m3                        F32 [ceil(n/128), ceil(k/128)], multiplies
//   INT8       [n, k]                             F32 [n, ceil(k/128)]
//   INT4       [n, ceil(k/32)·16] bytes           F16 [n, ceil(k/32)]
struct WeightSource {
  DType dtype = DType::kF32;
  const void* data = nullptr;
  int64_t n = 0;  // rows: outputs
  int64_t k = 0;  // columns: inputs
  const void* scales = nullptr;

  int64_t row_bytes() const;
  int64_t scale_cols() const;
};

// Rows of activations in the format a linear layer reads; a view of memory owned elsewhere.
// Row r starts at data + r * row_stride_bytes. FP8 and INT8 rows are readable, and zero, from k up to the
// next multiple of 128; a BF16 row of odd k is readable, and finite, one element further.
struct Activations {
  ActFormat format = ActFormat::kF32;
  int64_t rows = 0;
  int64_t k = 0;
  void* data = nullptr;
  int64_t row_stride_bytes = 0;
  float* scales = nullptr;  // FP8, INT8: [rows, scale_stride], one per 128 along K
  int64_t scale_stride = 0;
  bool power_of_two_scales = false;  // FP8: round scales up to powers of two (scale_fmt "ue8m0")

  std::byte* row(int64_t r) const { return static_cast<std::byte*>(data) + r * row_stride_bytes; }
  float* row_scales(int64_t r) const { return scales + r * scale_stride; }
};

constexpr int64_t act_element_bytes(ActFormat format) {
  return format == ActFormat::kF32 ? 4 : format == ActFormat::kBf16 ? 2 : 1;
}
// Bytes of one row in memory of our own: padded (FP8 and INT8 to 128 elements) to an odd number of cache
// lines, so that the rows a kernel reads together fall on different cache sets.
int64_t act_row_bytes(ActFormat format, int64_t k);
// Scales of one row: ceil(k/128) for FP8 and INT8, else 0.
int64_t act_row_scales(ActFormat format, int64_t k);
// Memory for `rows` rows with their scales, as make_activations lays it out.
int64_t act_bytes(ActFormat format, int64_t rows, int64_t k);
// `memory`: act_bytes(format, rows, k) bytes aligned to 64.
Activations make_activations(ActFormat format, int64_t rows, int64_t k, void* memory);
// Rows [begin, end) as a matrix of their own.
Activations act_row_range(const Activations& x, int64_t begin, int64_t end);

}  // namespace fathom
