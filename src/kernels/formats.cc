// Sizes and views of activation and weight formats.
#include "kernels/formats.h"

#include "base/check.h"

namespace fathom {
namespace {
constexpr std::string_view kWeightNames[kNumWeightFormats] = {"f32", "f16", "bf16", "fp8", "int8", "int4"};
constexpr std::string_view kActNames[kNumActFormats] = {"f32", "bf16", "fp8", "int8"};
}  // namespace

std::string_view weight_format_name(WeightFormat format) { return kWeightNames[static_cast<int>(format)]; }

std::optional<WeightFormat> parse_weight_format(std::string_view name) {
  for (int i = 0; i < kNumWeightFormats; ++i) {
    if (kWeightNames[i] == name) return static_cast<WeightFormat>(i);
  }
  return std::nullopt;
}

std::string_view act_format_name(ActFormat format) { return kActNames[static_cast<int>(format)]; }

ActFormat act_format_for(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
      return ActFormat::kF32;
    case WeightFormat::kBf16:
      return ActFormat::kBf16;
    case WeightFormat::kFp8:
      return ActFormat::kFp8;
    case WeightFormat::kInt8:
    case WeightFormat::kInt4:
      return ActFormat::kInt8;
  }
  CHECK_MSG(false, "unknown weight format");
}

int64_t WeightSource::row_bytes() const {
  return dtype == DType::kInt4 ? ceil_div(k, kInt4Group) * (kInt4Group / 2) : dtype_bytes(dtype, k);
}

int64_t WeightSource::scale_cols() const {
  return ceil_div(k, dtype == DType::kInt4 ? kInt4Group : kScaleBlock);
}

int64_t act_row_bytes(ActFormat format, int64_t k) {
  constexpr int64_t kElementBytes[kNumActFormats] = {4, 2, 1, 1};
  const bool scaled = format == ActFormat::kFp8 || format == ActFormat::kInt8;
  const int64_t bytes = (scaled ? round_up(k, kScaleBlock) : k) * kElementBytes[static_cast<int>(format)];
  const int64_t lines = ceil_div(bytes, 64);
  return (lines % 2 == 0 ? lines + 1 : lines) * 64;
}

int64_t act_row_scales(ActFormat format, int64_t k) {
  return format == ActFormat::kFp8 || format == ActFormat::kInt8 ? ceil_div(k, kScaleBlock) : 0;
}

int64_t act_bytes(ActFormat format, int64_t rows, int64_t k) {
  return rows * act_row_bytes(format, k) + round_up(rows * act_row_scales(format, k) * 4, 64);
}

Activations make_activations(ActFormat format, int64_t rows, int64_t k, void* memory) {
  Activations x;
  x.format = format;
  x.rows = rows;
  x.k = k;
  x.data = memory;
  x.row_stride_bytes = act_row_bytes(format, k);
  x.scale_stride = act_row_scales(format, k);
  if (x.scale_stride > 0) {
    x.scales = reinterpret_cast<float*>(static_cast<std::byte*>(memory) + rows * x.row_stride_bytes);
  }
  return x;
}

Activations act_row_range(const Activations& x, int64_t begin, int64_t end) {
  CHECK(0 <= begin && begin <= end && end <= x.rows);
  Activations part = x;
  part.rows = end - begin;
  part.data = x.row(begin);
  if (x.scales != nullptr) part.scales = x.row_scales(begin);
  return part;
}

}  // namespace fathom
