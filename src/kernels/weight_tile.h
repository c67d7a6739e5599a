// The step between a checkpoint and packed weights: 32 rows × 128 of K of a source, converted or quantised to
// a weight format, row-major. Every layout is filled from such tiles, so they all hold the same values.
#pragma once

#include "kernels/formats.h"

namespace fathom {

struct alignas(64) WeightTile {
  int64_t rows = 0;  // filled; the rest of 32 is zero
  int64_t cols = 0;  // filled; the rest of 128 is zero
  union {
    float f32[kLinearTileN][kScaleBlock];
    uint16_t half[kLinearTileN][kScaleBlock];  // F16 or BF16 bits
    uint8_t fp8[kLinearTileN][kScaleBlock];
    int8_t int8[kLinearTileN][kScaleBlock];
    uint8_t int4[kLinearTileN][kScaleBlock / 2];  // low nibble: even k; code + 8
  };
  float scales[kLinearTileN];                                // INT8; FP8: all equal
  F16 group_scales[kLinearTileN][kScaleBlock / kInt4Group];  // INT4
};

// Rows [row, row + rows) and columns [k_begin, min(k_begin + 128, source.k)) of source in `format`.
// rows ≤ 32, k_begin a multiple of 128, row a multiple of 32.
void load_weight_tile(WeightFormat format, const WeightSource& source, int64_t row, int64_t rows,
                      int64_t k_begin, WeightTile& tile);

}  // namespace fathom
