// Row-wise ops of the forward pass, all in F32. A row's result depends on that row only.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/view.h"

namespace fathom {

// y[i, :] = x[i, :] / sqrt(mean(x[i, :]²) + eps) · gain. y may be x.
void rms_norm(MatrixView<const float> x, const float* gain, float eps, MatrixView<float> y);

// y = silu(gate) · up, silu(a) = a / (1 + exp(-a)). y may be gate or up.
void silu_mul(MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> y);

// Rotates each row's interleaved pairs (x[2i], x[2i+1]) by the angle whose (cos, sin) stand at
// cos_sin[2i], cos_sin[2i+1]; every row by the same angles (the heads of one token). x.cols is even.
void rope_interleaved(MatrixView<float> x, const float* cos_sin);

// y += x.
void add_rows(MatrixView<const float> x, MatrixView<float> y);

// Rows to be added up, each times its weight.
struct WeightedRows {
  DType dtype = DType::kF32;  // F32, BF16 or F16
  int64_t count = 0;
  const float* weights = nullptr;     // [count]
  const void* const* rows = nullptr;  // [count]
};
// y[0, n) = Σ_i weights[i] · rows[i][0, n): in their order from 0, one rounding per term (fused).
void weighted_sum(const WeightedRows& x, int64_t n, float* y);

// n elements of F32, BF16 or F16 to F32: embedding rows, stored latents. x need not be aligned.
void to_f32(DType dtype, const void* x, int64_t n, float* y);
// n elements of F32 to F32, BF16 or F16, nearest even.
void from_f32(const float* x, int64_t n, DType dtype, void* y);

}  // namespace fathom
