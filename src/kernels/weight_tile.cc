// Decodes a tile of any weight format to F32, for reference kernels and tests.
#include "kernels/weight_tile.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/dispatch.h"
#include "kernels/quantize.h"

namespace fathom {
namespace {

DType stored_dtype(WeightFormat format) {
  constexpr DType kDTypes[kNumWeightFormats] = {DType::kF32,     DType::kF16,  DType::kBf16,
                                                DType::kFp8E4m3, DType::kInt8, DType::kInt4};
  return kDTypes[static_cast<int>(format)];
}

// The source already is in the tile's format: rows are copied as they are.
void copy_rows(const WeightSource& source, int64_t row, int64_t k_begin, WeightTile& tile) {
  auto* out = reinterpret_cast<std::byte*>(tile.f32);
  const auto* in = static_cast<const std::byte*>(source.data) + row * source.row_bytes();
  const int64_t tile_row_bytes = dtype_bytes(source.dtype, kScaleBlock);
  const int64_t bytes = std::min(tile_row_bytes, source.row_bytes() - dtype_bytes(source.dtype, k_begin));
  for (int64_t r = 0; r < tile.rows; ++r) {
    std::memcpy(out + r * tile_row_bytes, in + r * source.row_bytes() + dtype_bytes(source.dtype, k_begin),
                static_cast<size_t>(bytes));
  }
}

void copy_scales(const WeightSource& source, int64_t row, int64_t k_begin, WeightTile& tile) {
  const auto* in = static_cast<const std::byte*>(source.scales);
  for (int64_t r = 0; r < tile.rows; ++r) {
    if (source.dtype == DType::kInt4) {
      const int64_t group = k_begin / kInt4Group;
      const int64_t count = std::min(kScaleBlock / kInt4Group, source.scale_cols() - group);
      std::memcpy(tile.group_scales[r], in + ((row + r) * source.scale_cols() + group) * 2,
                  static_cast<size_t>(count) * 2);
    } else {
      const int64_t scale_row = source.dtype == DType::kFp8E4m3 ? (row + r) / kScaleBlock : row + r;
      std::memcpy(&tile.scales[r], in + (scale_row * source.scale_cols() + k_begin / kScaleBlock) * 4, 4);
    }
  }
}

void quantize_tile(WeightFormat format, const WeightSource& source, int64_t row, int64_t k_begin,
                   WeightTile& tile) {
  float x[kScaleBlock];
  const float scale =
      format == WeightFormat::kFp8 ? fp8_block_scale(source, row / kScaleBlock * kScaleBlock, k_begin) : 0.0f;
  for (int64_t r = 0; r < tile.rows; ++r) {
    dequantize_weight(source, row + r, k_begin, tile.cols, x);
    if (format == WeightFormat::kFp8) {
      active_kernels().divide_to_fp8(x, tile.cols, scale, reinterpret_cast<Fp8E4m3*>(tile.fp8[r]));
      tile.scales[r] = scale;
    } else if (format == WeightFormat::kInt8) {
      quantize_int8_block(x, tile.cols, tile.int8[r], &tile.scales[r]);
    } else {
      quantize_int4_block(x, tile.cols, tile.int4[r], tile.group_scales[r]);
    }
  }
}

void convert_float_tile(WeightFormat format, const WeightSource& source, int64_t row, int64_t k_begin,
                        WeightTile& tile) {
  float x[kScaleBlock];
  for (int64_t r = 0; r < tile.rows; ++r) {
    dequantize_weight(source, row + r, k_begin, tile.cols, x);
    if (format == WeightFormat::kF32) {
      std::memcpy(tile.f32[r], x, static_cast<size_t>(tile.cols) * 4);
    } else {
      active_kernels().from_f32(x, tile.cols, stored_dtype(format), tile.half[r]);
    }
  }
}

}  // namespace

void load_weight_tile(WeightFormat format, const WeightSource& source, int64_t row, int64_t rows,
                      int64_t k_begin, WeightTile& tile) {
  tile.rows = rows;
  tile.cols = std::min(kScaleBlock, source.k - k_begin);
  if (rows < kLinearTileN || tile.cols < kScaleBlock) {
    std::memset(static_cast<void*>(tile.f32), 0, sizeof(tile.f32));
    // Code 0 of INT4 is stored as 8.
    if (format == WeightFormat::kInt4) std::memset(tile.int4, 0x88, sizeof(tile.int4));
    std::memset(tile.scales, 0, sizeof(tile.scales));
    std::memset(static_cast<void*>(tile.group_scales), 0, sizeof(tile.group_scales));
  }
  if (source.dtype == stored_dtype(format)) {
    copy_rows(source, row, k_begin, tile);
    if (source.scales != nullptr) copy_scales(source, row, k_begin, tile);
    return;
  }
  if (format == WeightFormat::kFp8 || format == WeightFormat::kInt8 || format == WeightFormat::kInt4) {
    quantize_tile(format, source, row, k_begin, tile);
  } else {
    convert_float_tile(format, source, row, k_begin, tile);
  }
}

}  // namespace fathom
