#include "kernels/weight_tile.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
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

// A source narrowed to the 128 columns of a tile, as F32.
struct Columns {
  alignas(64) float x[kScaleBlock][kScaleBlock];
  WeightSource source;

  Columns(const WeightSource& from, int64_t row, int64_t rows, int64_t k_begin) {
    source.dtype = DType::kF32;
    source.n = rows;
    source.k = std::min(kScaleBlock, from.k - k_begin);
    source.data = x;
    for (int64_t r = 0; r < rows; ++r) {
      dequantize_weight(from, row + r, k_begin, source.k, x[0] + r * source.k);
    }
  }
};

void quantize_fp8_tile(const WeightSource& source, int64_t row, int64_t k_begin, WeightTile& tile) {
  const int64_t first = row / kScaleBlock * kScaleBlock;
  const int64_t rows = std::min(kScaleBlock, source.n - first);
  const Columns columns(source, first, rows, k_begin);
  Fp8E4m3 codes[kScaleBlock * kScaleBlock];
  float scale;
  quantize_weight_fp8(columns.source, 0, rows, codes, &scale);
  for (int64_t r = 0; r < tile.rows; ++r) {
    std::memcpy(tile.fp8[r], codes + (row - first + r) * columns.source.k,
                static_cast<size_t>(columns.source.k));
  }
  std::fill(tile.scales, tile.scales + kLinearTileN, scale);
}

void quantize_int_tile(WeightFormat format, const WeightSource& source, int64_t row, int64_t k_begin,
                       WeightTile& tile) {
  const Columns columns(source, row, tile.rows, k_begin);
  for (int64_t r = 0; r < tile.rows; ++r) {
    if (format == WeightFormat::kInt8) {
      quantize_weight_int8(columns.source, r, 1, tile.int8[r], &tile.scales[r]);
    } else {
      quantize_weight_int4(columns.source, r, 1, tile.int4[r], tile.group_scales[r]);
    }
  }
}

void convert_float_tile(WeightFormat format, const WeightSource& source, int64_t row, int64_t k_begin,
                        WeightTile& tile) {
  float x[kScaleBlock];
  for (int64_t r = 0; r < tile.rows; ++r) {
    dequantize_weight(source, row + r, k_begin, tile.cols, x);
    for (int64_t i = 0; i < tile.cols; ++i) {
      if (format == WeightFormat::kF32) {
        tile.f32[r][i] = x[i];
      } else {
        tile.half[r][i] = format == WeightFormat::kBf16 ? f32_to_bf16(x[i]).bits : f32_to_f16(x[i]).bits;
      }
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
  switch (format) {
    case WeightFormat::kFp8:
      return quantize_fp8_tile(source, row, k_begin, tile);
    case WeightFormat::kInt8:
    case WeightFormat::kInt4:
      return quantize_int_tile(format, source, row, k_begin, tile);
    default:
      return convert_float_tile(format, source, row, k_begin, tile);
  }
}

}  // namespace fathom
