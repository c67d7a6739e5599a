// Checks of shapes and the choice of instruction set for norms, RoPE and activation.
#include "kernels/elementwise.h"

#include "base/check.h"
#include "kernels/dispatch.h"

namespace fathom {

void rms_norm(MatrixView<const float> x, const float* gain, float eps, MatrixView<float> y) {
  CHECK(x.rows == y.rows && x.cols == y.cols);
  active_kernels().rms_norm(x, gain, eps, y);
}

void silu_mul(MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> y) {
  CHECK(gate.rows == y.rows && gate.cols == y.cols && up.rows == y.rows && up.cols == y.cols);
  active_kernels().silu_mul(gate, up, y);
}

void rope_interleaved(MatrixView<float> x, const float* cos_sin) {
  CHECK(x.cols % 2 == 0);
  active_kernels().rope_interleaved(x, cos_sin);
}

void add_rows(MatrixView<const float> x, MatrixView<float> y) {
  CHECK(x.rows == y.rows && x.cols == y.cols);
  active_kernels().add_rows(x, y);
}

void weighted_sum(const WeightedRows& x, int64_t n, float* y) {
  CHECK(x.dtype == DType::kF32 || x.dtype == DType::kBf16 || x.dtype == DType::kF16);
  active_kernels().weighted_sum(x, n, y);
}

void to_f32(DType dtype, const void* x, int64_t n, float* y) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16);
  active_kernels().to_f32(dtype, x, n, y);
}

void from_f32(const float* x, int64_t n, DType dtype, void* y) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16);
  active_kernels().from_f32(x, n, dtype, y);
}

}  // namespace fathom
