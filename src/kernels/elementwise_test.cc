// Row-wise ops and the rounding of activations on every instruction set, against the reference.
#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/kernel_testing.h"

namespace fathom {
namespace {

class ElementwiseTest : public testing::TestWithParam<Isa> {
 protected:
  const KernelTable& ref() const { return kernel_table(Isa::kRef); }
  const KernelTable& own() const { return kernel_table(GetParam()); }
};

std::vector<Isa> isas_with_own_ops() {
  std::vector<Isa> isas;
  for (const Isa isa : isas_above_ref()) {
    const KernelTable& own = own_kernel_table(isa);
    if (own.rms_norm != nullptr || own.from_f32 != nullptr) isas.push_back(isa);
  }
  return isas;
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ElementwiseTest);
INSTANTIATE_TEST_SUITE_P(All, ElementwiseTest, testing::ValuesIn(isas_with_own_ops()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

constexpr int64_t kWidths[] = {1, 2, 7, 8, 15, 16, 17, 40, 127, 129, 576, 1000};

void expect_close(const std::vector<float>& got, const std::vector<float>& want, double relative,
                  double absolute) {
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], relative * std::fabs(want[i]) + absolute)
        << "element " << i << " of " << got.size();
  }
}

TEST_P(ElementwiseTest, RmsNorm) {
  for (const int64_t n : kWidths) {
    const std::vector<float> x = random_floats(3 * n, n), gain = random_floats(n, n + 1);
    std::vector<float> want(x.size()), got = x;
    ref().rms_norm({x.data(), 3, n}, gain.data(), 1e-6f, {want.data(), 3, n});
    own().rms_norm({got.data(), 3, n}, gain.data(), 1e-6f, {got.data(), 3, n});
    expect_close(got, want, 2e-6, 1e-9);
  }
}

TEST_P(ElementwiseTest, SiluMul) {
  for (const int64_t n : kWidths) {
    std::vector<float> gate = random_floats(2 * n, n, 8.0f);
    const std::vector<float> up = random_floats(2 * n, n + 1);
    gate[0] = -120;
    if (n > 1) gate[1] = 120;
    std::vector<float> want(gate.size()), got = gate;
    ref().silu_mul({gate.data(), 2, n}, {up.data(), 2, n}, {want.data(), 2, n});
    own().silu_mul({got.data(), 2, n}, {up.data(), 2, n}, {got.data(), 2, n});
    expect_close(got, want, 1e-6, 1e-30);
  }
}

TEST_P(ElementwiseTest, Rope) {
  for (const int64_t n : {2, 8, 10, 64, 66}) {
    const std::vector<float> angles = random_floats(n, 3);
    std::vector<float> want = random_floats(5 * n, n), got = want;
    ref().rope_interleaved({want.data(), 5, n}, angles.data());
    own().rope_interleaved({got.data(), 5, n}, angles.data());
    expect_close(got, want, 1e-6, 1e-6);
  }
}

TEST_P(ElementwiseTest, AddRowsIsExact) {
  for (const int64_t n : kWidths) {
    const std::vector<float> x = random_floats(2 * n, n);
    std::vector<float> want = random_floats(2 * n, n + 1), got = want;
    ref().add_rows({x.data(), 2, n}, {want.data(), 2, n});
    own().add_rows({x.data(), 2, n}, {got.data(), 2, n});
    EXPECT_EQ(want, got);
  }
}

TEST_P(ElementwiseTest, WeightedSumIsExactInEveryDtype) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const int64_t n : kWidths) {
      constexpr int64_t kRows = 5;
      const std::vector<float> values = random_floats(kRows * n, n), weights = random_floats(kRows, 7);
      std::vector<std::byte> stored(static_cast<size_t>(dtype_bytes(dtype, kRows * n)));
      ref().from_f32(values.data(), kRows * n, dtype, stored.data());
      const void* rows[kRows];
      for (int64_t r = 0; r < kRows; ++r) rows[r] = stored.data() + dtype_bytes(dtype, r * n);
      std::vector<float> want(static_cast<size_t>(n + 1), 3.0f), got = want;
      for (const int64_t count : {int64_t{0}, int64_t{1}, kRows}) {
        const WeightedRows x{dtype, count, weights.data(), rows};
        ref().weighted_sum(x, n, want.data());
        own().weighted_sum(x, n, got.data());
        EXPECT_EQ(want, got);
        EXPECT_EQ(got.back(), 3.0f) << "written beyond the row";
      }
    }
  }
}

// Every 16-bit code, and floats around every rounding boundary.
TEST_P(ElementwiseTest, ConversionsAreExact) {
  std::vector<uint16_t> codes(65536);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    std::vector<float> want(codes.size() - 3), got(want.size());
    ref().to_f32(dtype, codes.data(), static_cast<int64_t>(want.size()), want.data());
    own().to_f32(dtype, codes.data(), static_cast<int64_t>(got.size()), got.data());
    EXPECT_EQ(0, std::memcmp(want.data(), got.data(), got.size() * 4)) << dtype_name(dtype);
    std::vector<float> x;
    for (const float value : want) {
      x.push_back(value);
      x.push_back(value * 1.001953125f);
      x.push_back(value * 1.00048828125f);
      x.push_back(std::nextafter(value * 1.00048828125f, 0.0f));
    }
    std::vector<uint16_t> want_bits(x.size()), got_bits(x.size());
    ref().from_f32(x.data(), static_cast<int64_t>(x.size()), dtype, want_bits.data());
    own().from_f32(x.data(), static_cast<int64_t>(x.size()), dtype, got_bits.data());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(want_bits[i], got_bits[i]) << dtype_name(dtype) << " of " << x[i] << " (element " << i << ")";
    }
  }
}

TEST_P(ElementwiseTest, QuantizesActivationsBitForBit) {
  for (const ActFormat format : {ActFormat::kF32, ActFormat::kBf16, ActFormat::kFp8, ActFormat::kInt8}) {
    for (const int64_t k : kWidths) {
      for (const bool power_of_two : {false, true}) {
        std::vector<float> x = random_floats(4 * k, k);
        for (int64_t i = 0; i < k; ++i)
          x[i] *= std::exp2(static_cast<float>(i % 40 - 20));  // subnormal codes too
        std::fill(x.begin() + k, x.begin() + 2 * k, 0.0f);
        const MatrixView<const float> view(x.data(), 4, k);
        AlignedBuffer want_memory(static_cast<size_t>(act_bytes(format, 4, k)));
        AlignedBuffer got_memory(want_memory.size_bytes());
        Activations want = make_activations(format, 4, k, want_memory.data());
        Activations got = make_activations(format, 4, k, got_memory.data());
        want.power_of_two_scales = got.power_of_two_scales = power_of_two;
        ref().quantize_rows(view, want, 0, 4);
        own().quantize_rows(view, got, 0, 4);
        EXPECT_EQ(0, std::memcmp(want_memory.data(), got_memory.data(), got_memory.size_bytes()))
            << act_format_name(format) << " k " << k;
      }
    }
  }
}

TEST_P(ElementwiseTest, QuantizesWeightsBitForBit) {
  constexpr int64_t kGroups = 40, kCount = kGroups * kInt4Group - 5;
  std::vector<float> x = random_floats(kGroups * kInt4Group, 3);
  for (int64_t g = 0; g < kGroups; ++g) {
    for (int64_t i = 0; i < kInt4Group; ++i) x[g * kInt4Group + i] *= std::exp2(static_cast<float>(g - 20));
  }
  std::fill(x.begin() + 64, x.begin() + 96, 0.0f);
  x[100] = 3;  // a tie of magnitudes
  x[101] = -3;
  std::vector<uint8_t> want(kGroups * 16), got(want.size());
  std::vector<F16> want_scales(kGroups), got_scales(kGroups);
  ref().quantize_int4_groups(x.data(), kGroups, want.data(), want_scales.data());
  own().quantize_int4_groups(x.data(), kGroups, got.data(), got_scales.data());
  EXPECT_EQ(want, got);
  EXPECT_EQ(want_scales, got_scales);
  std::vector<Fp8E4m3> want_fp8(kCount), got_fp8(kCount);
  ref().divide_to_fp8(x.data(), kCount, 0.013f, want_fp8.data());
  own().divide_to_fp8(x.data(), kCount, 0.013f, got_fp8.data());
  EXPECT_EQ(want_fp8, got_fp8);
  EXPECT_EQ(ref().max_magnitude(x.data(), kCount), own().max_magnitude(x.data(), kCount));
}

TEST_P(ElementwiseTest, BadNumbersShowInTheScale) {
  for (const ActFormat format : {ActFormat::kFp8, ActFormat::kInt8}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      std::vector<float> x = random_floats(256, 1);
      x[130] = bad;
      AlignedBuffer memory(static_cast<size_t>(act_bytes(format, 1, 256)));
      const Activations out = make_activations(format, 1, 256, memory.data());
      own().quantize_rows({x.data(), 1, 256}, out, 0, 1);
      EXPECT_TRUE(std::isfinite(out.scales[0]));
      EXPECT_FALSE(std::isfinite(out.scales[1]));
    }
  }
}

}  // namespace
}  // namespace fathom
