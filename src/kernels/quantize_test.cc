// Quantised weights and activations: worst errors by format, shared scales, and the published FP8 example.
#include "kernels/quantize.h"

#include <gtest/gtest.h>

#include "kernels/kernel_testing.h"

namespace fathom {
namespace {

// Worst error of a format in units of the largest magnitude that shares its scale.
double worst_error(DType dtype, int64_t n, int64_t k, int64_t group) {
  const std::vector<float> values = random_floats(n * k, 17);
  OwnedSource source(dtype, n, k, 1);
  source.fill(values);
  std::vector<float> row(static_cast<size_t>(k));
  double worst = 0;
  for (int64_t r = 0; r < n; ++r) {
    dequantize_weight(source.view, r, 0, k, row.data());
    for (int64_t i = 0; i < k; ++i) {
      float amax = 0;
      for (int64_t j = i / group * group; j < std::min(k, (i / group + 1) * group); ++j) {
        amax = std::max(amax, std::fabs(values[r * k + j]));
      }
      worst = std::max(worst, std::fabs(static_cast<double>(row[i]) - values[r * k + i]) / amax);
    }
  }
  return worst;
}

TEST(QuantizeWeight, Int8ErrorIsHalfAStep) {
  EXPECT_LE(worst_error(DType::kInt8, 5, 300, 128), 0.5 / 127 * 1.001);
}

// A step is an eighth of the group's extreme; codes reach from -8 to 7, so the other end may lose a whole
// step.
TEST(QuantizeWeight, Int4ErrorIsAtMostAStep) {
  EXPECT_LE(worst_error(DType::kInt4, 5, 300, 32), 1.0 / 8 * 1.002);
}

TEST(QuantizeWeight, Fp8KeepsThreeBitsAndSharesScalesByBlock) {
  const int64_t n = 130, k = 200;
  const std::vector<float> values = random_floats(n * k, 18);
  OwnedSource source(DType::kFp8E4m3, n, k, 1);
  source.fill(values);
  const auto* scales = reinterpret_cast<const float*>(source.view.scales);
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t i = 0; i < k; ++i) {
      float back;
      dequantize_weight(source.view, r, i, 1, &back);
      const float scale = scales[r / 128 * 2 + i / 128];
      EXPECT_NEAR(back, values[r * k + i], std::fabs(values[r * k + i]) / 16 + scale * 0x1p-10f);
    }
  }
}

TEST(QuantizeWeight, ZerosStayZeros) {
  const std::vector<float> zeros(64 * 40, 0.0f);
  for (const DType dtype : {DType::kInt8, DType::kInt4, DType::kFp8E4m3}) {
    OwnedSource source(dtype, 64, 40, 1);
    source.fill(zeros);
    std::vector<float> row(40, 1.0f);
    dequantize_weight(source.view, 63, 0, 40, row.data());
    EXPECT_EQ(row, std::vector<float>(40, 0.0f)) << dtype_name(dtype);
  }
}

// The published case of facts: amax 2 over 128 → scale 2/448; values are e4m3 of x · 224.
TEST(QuantizeRows, Fp8ScalesPerTokenPer128) {
  std::vector<float> x(256, 0.5f);
  x[5] = -2.0f;
  x[200] = 448e-6f;
  for (int i = 128; i < 256; ++i) x[i] = i == 200 ? 448e-6f : 0.0f;
  AlignedBuffer memory(static_cast<size_t>(act_bytes(ActFormat::kFp8, 1, 256)));
  Activations out = make_activations(ActFormat::kFp8, 1, 256, memory.data());
  kernel_table(Isa::kRef).quantize_rows({x.data(), 1, 256}, out, 0, 1);
  EXPECT_EQ(out.scales[0], 2.0f / 448);
  EXPECT_EQ(fp8_e4m3_to_f32(static_cast<const Fp8E4m3*>(out.data)[5]), -448);
  EXPECT_EQ(fp8_e4m3_to_f32(static_cast<const Fp8E4m3*>(out.data)[0]), 112);
  EXPECT_EQ(out.scales[1], 448e-6f / 448);
  out.power_of_two_scales = true;
  kernel_table(Isa::kRef).quantize_rows({x.data(), 1, 256}, out, 0, 1);
  EXPECT_EQ(out.scales[0], 0x1p-7f);
}

}  // namespace
}  // namespace fathom
