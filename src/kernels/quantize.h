// Rounding F32 rows to the formats linear layers read, and weights to the forms that are saved.
#pragma once

#include <cstdint>

#include "kernels/formats.h"
#include "tensor/view.h"

namespace fathom {

// Rows [row_begin, row_end) of x into the same rows of out (out.format, out.k == x.cols); padding is written.
//   F32   copied.            BF16  nearest even.
//   FP8   per 128 of K: s = max(amax, 1e-4) / 448, rounded up to a power of two if out.power_of_two_scales;
//         code = e4m3(x / s), nearest even.
//   INT8  per 128 of K: s = amax / 127; code = nearest even of x · (127 / amax); all zero when amax is 0.
// A NaN or infinity in a block makes its scale NaN or infinite, so that products with it show it.
void quantize_rows(MatrixView<const float> x, const Activations& out, int64_t row_begin, int64_t row_end);
inline void quantize_rows(MatrixView<const float> x, const Activations& out) {
  quantize_rows(x, out, 0, x.rows);
}

// Weights to the saved forms of docs/weight-formats.md (WeightSource lists shapes). Source dtype: F32, BF16,
// F16, or FP8 with scales. Results are the same on every machine, and the same that pack_rows makes.
// INT8: codes [num_rows, k], scales [num_rows, ceil(k/128)] of rows [first_row, …) of the source.
void quantize_weight_int8(const WeightSource& source, int64_t first_row, int64_t num_rows, int8_t* codes,
                          float* scales);
// INT4: codes [num_rows, ceil(k/32)·16], scales [num_rows, ceil(k/32)].
void quantize_weight_int4(const WeightSource& source, int64_t first_row, int64_t num_rows, uint8_t* codes,
                          F16* scales);
// FP8: codes [num_rows, k], scales [ceil(num_rows/128), ceil(k/128)]; first_row is a multiple of 128, and
// num_rows too unless the rows end with the source's.
void quantize_weight_fp8(const WeightSource& source, int64_t first_row, int64_t num_rows, Fp8E4m3* codes,
                         float* scales);

// The same rules for one stretch of up to 128 of K (x may be overwritten behind count), and for the FP8 block
// of 128 × 128 (less at the edges) that starts at (row, k): its scale, and with it its codes, row by row.
void quantize_int8_block(const float* x, int64_t count, int8_t* codes, float* scale);
void quantize_int4_block(float* x, int64_t count, uint8_t* codes, F16* scales);
float fp8_block_scale(const WeightSource& source, int64_t row, int64_t k);
float quantize_fp8_block(const WeightSource& source, int64_t row, int64_t k, Fp8E4m3* codes, int64_t stride);

// Elements [k_begin, k_begin + count) of one row as F32, whatever the dtype (INT4: k_begin a multiple of 32).
void dequantize_weight(const WeightSource& source, int64_t row, int64_t k_begin, int64_t count, float* out);

}  // namespace fathom
