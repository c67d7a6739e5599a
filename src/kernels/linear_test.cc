// One test body for every (weight format, instruction set) that is registered and that this machine runs.
#include "kernels/linear.h"

#include <gtest/gtest.h>

#include "kernels/kernel_testing.h"

namespace fathom {
namespace {

struct KernelCase {
  WeightFormat format;
  Isa isa;
};

std::vector<KernelCase> all_cases() {
  std::vector<KernelCase> cases;
  for (const Isa isa : isas_above_ref()) {
    for (int f = 0; f < kNumWeightFormats; ++f) {
      if (own_kernel_table(isa).linear[f] != nullptr) cases.push_back({static_cast<WeightFormat>(f), isa});
    }
  }
  return cases;
}

std::string case_name(const KernelCase& c) {
  return std::string(weight_format_name(c.format)) + "_" + std::string(isa_name(c.isa));
}

class LinearTest : public testing::TestWithParam<KernelCase> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LinearTest);
INSTANTIATE_TEST_SUITE_P(All, LinearTest, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return case_name(info.param); });

// Error of a sum of k products rounded one by one, in units of the norms' product: each of about k roundings
// is random, 2^-24 of a partial sum.
double tolerance(int64_t k, double x_norm, double w_norm) {
  return 4 * std::sqrt(static_cast<double>(k) + 16) * 0x1p-24 * x_norm * w_norm;
}

struct Problem {
  int64_t m, n, k;
  std::vector<float> x;
  OwnedSource source;
  OwnedActivations act;

  Problem(WeightFormat format, int64_t m, int64_t n, int64_t k)
      : m(m),
        n(n),
        k(k),
        x(random_floats(m * k, 7 * m + 3 * n + k)),
        source(source_dtype_for(format), n, k, n + k),
        act(act_format_for(format), MatrixView<const float>(x.data(), m, k)) {}

  std::vector<float> run(WeightFormat format, Isa isa) const {
    const OwnedWeight w(format, source.view, isa);
    std::vector<float> y(static_cast<size_t>(m * n), -1.0f);
    linear(act.view, w.view, MatrixView<float>(y.data(), m, n));
    return y;
  }
};

TEST_P(LinearTest, MatchesReference) {
  const auto [format, isa] = GetParam();
  const std::pair<int64_t, int64_t> shapes[] = {{1, 1},     {5, 40},   {40, 5},    {72, 127},
                                                {127, 129}, {129, 72}, {32, 128},  {576, 64},
                                                {33, 576},  {96, 300}, {31, 1031}, {64, 2}};
  for (const auto& [n, k] : shapes) {
    for (const int64_t m : {1, 2, 3, 5, 8, 13, 17, 30}) {
      const Problem problem(format, m, n, k);
      const std::vector<float> want = problem.run(format, Isa::kRef), got = problem.run(format, isa);
      double worst = 0;
      int64_t at = 0;
      std::vector<float> w_row(static_cast<size_t>(k));
      for (int64_t c = 0; c < n; ++c) {
        dequantize_weight(problem.source.view, c, 0, k, w_row.data());
        const double w_norm = norm(w_row.data(), k);
        for (int64_t r = 0; r < m; ++r) {
          const double tol = tolerance(k, norm(problem.x.data() + r * k, k), w_norm) + 1e-30;
          const double error = std::fabs(static_cast<double>(got[r * n + c]) - want[r * n + c]) / tol;
          if (!(error <= worst)) {
            worst = error;
            at = r * n + c;
          }
        }
      }
      ASSERT_LE(worst, 1) << "m " << m << " n " << n << " k " << k << ": worst element row " << at / n
                          << " column " << at % n << ": got " << got[at] << " want " << want[at]
                          << " (tolerances off by " << worst << ")";
    }
  }
}

// A row has the same bits alone, at every place of a batch, and under every cut into tiles.
TEST_P(LinearTest, RowsDoNotDependOnTheBatch) {
  const auto [format, isa] = GetParam();
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{100, 333}, {64, 2100}}) {
    const int64_t m = 37;
    const Problem problem(format, m, n, k);
    const OwnedWeight w(format, problem.source.view, isa);
    std::vector<float> whole(static_cast<size_t>(m * n)), part(whole.size(), -1.0f);
    linear(problem.act.view, w.view, MatrixView<float>(whole.data(), m, n));
    for (int64_t r = 0; r < m; ++r) {
      linear(act_row_range(problem.act.view, r, r + 1), w.view, MatrixView<float>(part.data() + r * n, 1, n));
    }
    EXPECT_EQ(0, std::memcmp(whole.data(), part.data(), whole.size() * 4)) << "rows one by one";
    for (const int64_t rows : {2, 5, 11, 16, 36}) {
      std::fill(part.begin(), part.end(), -1.0f);
      for (int64_t r = 0; r < m; r += rows) {
        for (int64_t c = 0; c < n; c += kLinearTileN) {
          linear(problem.act.view, w.view, {r, std::min(r + rows, m), c, std::min(c + kLinearTileN, n)},
                 MatrixView<float>(part.data(), m, n));
        }
      }
      EXPECT_EQ(0, std::memcmp(whole.data(), part.data(), whole.size() * 4))
          << "tiles of " << rows << " rows";
    }
  }
}

// BF16 results are the F32 ones rounded, also where K comes in parts and where the last panel is cut.
TEST_P(LinearTest, RoundsResultsToBf16) {
  const auto [format, isa] = GetParam();
  constexpr uint16_t kUntouched = 0xabcd;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{100, 70}, {64, 256}, {230, 2100}}) {
    for (const int64_t m : {1, 3, 30, 250}) {
      const Problem problem(format, m, n, k);
      const OwnedWeight w(format, problem.source.view, isa);
      std::vector<float> whole(static_cast<size_t>(m * n));
      linear(problem.act.view, w.view, MatrixView<float>(whole.data(), m, n));
      const int64_t stride = n + 3, row_begin = m / 3;
      std::vector<Bf16> rounded(static_cast<size_t>(m * stride), Bf16{kUntouched});
      linear(problem.act.view, w.view, {row_begin, m, 32, n},
             {DType::kBf16, reinterpret_cast<std::byte*>(rounded.data()), m, n, stride});
      for (int64_t r = 0; r < m; ++r) {
        for (int64_t c = 0; c < stride; ++c) {
          const bool inside = r >= row_begin && c >= 32 && c < n;
          const uint16_t want = inside ? f32_to_bf16(whole[r * n + c]).bits : kUntouched;
          ASSERT_EQ(rounded[r * stride + c].bits, want)
              << "m " << m << " n " << n << " k " << k << " row " << r << " column " << c;
        }
      }
    }
  }
}

TEST_P(LinearTest, WritesOnlyItsTile) {
  const auto [format, isa] = GetParam();
  const int64_t m = 9, n = 90, k = 70;
  const Problem problem(format, m, n, k);
  const OwnedWeight w(format, problem.source.view, isa);
  std::vector<float> y(static_cast<size_t>(m * (n + 7)), -5.0f);
  linear(problem.act.view, w.view, {2, 7, 32, 90}, MatrixView<float>(y.data(), m, n, n + 7));
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < n + 7; ++c) {
      const bool inside = r >= 2 && r < 7 && c >= 32 && c < n;
      EXPECT_EQ(inside, y[r * (n + 7) + c] != -5.0f) << "row " << r << " column " << c;
    }
  }
}

// Packing in pieces, from a source whose rows stand elsewhere, gives the same result.
TEST_P(LinearTest, PacksInPieces) {
  const auto [format, isa] = GetParam();
  const int64_t n = 200, k = 150;
  const Problem problem(format, 3, n, k);
  const OwnedWeight whole(format, problem.source.view, isa);
  AlignedBuffer memory(static_cast<size_t>(whole.view.bytes()));
  const PackedWeight pieces = make_packed_weight(format, n, k, memory.data(), isa);
  pack_rows(pieces, 96, 104, problem.source.view, 96);
  pack_rows(pieces, 0, 64, problem.source.view, 0);
  pack_rows(pieces, 64, 32, problem.source.view, 64);
  EXPECT_EQ(0, std::memcmp(whole.memory.data(), memory.data(), memory.size_bytes()));
}

// Panels filled for one instruction set serve every other, and can be turned into any other layout.
TEST(LinearPanels, ServeEveryInstructionSet) {
  constexpr int64_t kN = 77, kK = 151;
  for (int f = 0; f < kNumWeightFormats; ++f) {
    const auto format = static_cast<WeightFormat>(f);
    const OwnedSource source(source_dtype_for(format), kN, kK, 11);
    const OwnedWeight panels(format, source.view, kPanelIsa);
    EXPECT_EQ(panels.view.bytes() % 64, 0);
    EXPECT_FALSE(reads_panels(format, Isa::kRef));
    for (int i = 0; i < kNumIsas; ++i) {
      const auto isa = static_cast<Isa>(i);
      const OwnedWeight direct(format, source.view, isa);
      AlignedBuffer memory(direct.memory.size_bytes());
      pack_from_panels(make_packed_weight(format, kN, kK, memory.data(), isa), panels.memory.data());
      EXPECT_EQ(0, std::memcmp(direct.memory.data(), memory.data(), memory.size_bytes()))
          << weight_format_name(format) << " " << isa_name(isa);
      if (reads_panels(format, isa)) {
        ASSERT_EQ(direct.memory.size_bytes(), panels.memory.size_bytes());
        EXPECT_EQ(0, std::memcmp(direct.memory.data(), panels.memory.data(), memory.size_bytes()));
      } else {
        EXPECT_EQ(isa, Isa::kRef);
      }
    }
  }
}

// Quantising while packing gives what packing the saved form gives.
TEST_P(LinearTest, QuantisesAsTheSavedForm) {
  const auto [format, isa] = GetParam();
  const int64_t n = 200, k = 150;
  const OwnedSource bf16(DType::kBf16, n, k, 5);
  std::vector<float> values(static_cast<size_t>(n * k));
  for (int64_t r = 0; r < n; ++r) dequantize_weight(bf16.view, r, 0, k, values.data() + r * k);
  OwnedSource saved(source_dtype_for(format), n, k, 1);
  saved.fill(values);
  const OwnedWeight direct(format, bf16.view, isa), through(format, saved.view, isa);
  EXPECT_EQ(0, std::memcmp(direct.memory.data(), through.memory.data(), direct.memory.size_bytes()));
}

TEST_P(LinearTest, DecodesEveryCode) {
  const auto [format, isa] = GetParam();
  if (act_format_for(format) == ActFormat::kF32 || act_format_for(format) == ActFormat::kBf16) return;
  // Row c holds code c at one place and zero elsewhere: its output is the code's value times that activation.
  const int64_t n = 256, k = 160, place = 77;
  OwnedSource source(source_dtype_for(format), n, k, 1);
  std::fill(source.data.begin(), source.data.end(),
            std::byte{format == WeightFormat::kInt4 ? uint8_t{0x88} : uint8_t{0}});
  for (int64_t c = 0; c < n; ++c) {
    if (format == WeightFormat::kInt4) {
      source.data[c * source.view.row_bytes() + place / 2] = static_cast<std::byte>(c);
    } else {
      source.data[c * k + place] = static_cast<std::byte>(format == WeightFormat::kInt8 && c == 128 ? 0 : c);
    }
  }
  std::vector<float> x(static_cast<size_t>(k), 0.0f);
  x[place - 1] = 4.0f;
  x[place] = -448.0f;
  const OwnedActivations act(act_format_for(format), MatrixView<const float>(x.data(), 1, k));
  std::vector<float> want(n), got(n);
  const OwnedWeight ref(format, source.view, Isa::kRef), w(format, source.view, isa);
  linear(act.view, ref.view, MatrixView<float>(want.data(), 1, n));
  linear(act.view, w.view, MatrixView<float>(got.data(), 1, n));
  for (int64_t c = 0; c < n; ++c) {
    if (std::isnan(want[c])) {
      EXPECT_TRUE(std::isnan(got[c])) << "code " << c << " got " << got[c];
    } else {
      EXPECT_FLOAT_EQ(got[c], want[c]) << "code " << c;
    }
  }
}

// Codes of the largest magnitude everywhere: no accumulator saturates.
TEST_P(LinearTest, ExtremesDoNotSaturate) {
  const auto [format, isa] = GetParam();
  if (format != WeightFormat::kInt8 && format != WeightFormat::kInt4) return;
  const int64_t n = 40, k = 512;
  OwnedSource source(source_dtype_for(format), n, k, 1);
  for (size_t i = 0; i < source.data.size(); ++i) {
    source.data[i] = format == WeightFormat::kInt4 ? std::byte{i % 7 == 0 ? uint8_t{0xff} : uint8_t{0x00}}
                                                   : static_cast<std::byte>(i % 512 < 256 ? 127 : -127);
  }
  for (const float value : {1.0f, -1.0f}) {
    const std::vector<float> x(static_cast<size_t>(3 * k), value);
    const OwnedActivations act(ActFormat::kInt8, MatrixView<const float>(x.data(), 3, k));
    std::vector<float> want(3 * n), got(3 * n);
    const OwnedWeight ref(format, source.view, Isa::kRef), w(format, source.view, isa);
    linear(act.view, ref.view, MatrixView<float>(want.data(), 3, n));
    linear(act.view, w.view, MatrixView<float>(got.data(), 3, n));
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * std::fabs(want[i]) + 1e-4);
  }
}

TEST(LinearRef, MatchesAPlainSum) {
  const OwnedSource source(DType::kF32, 3, 5, 11);
  const std::vector<float> x = random_floats(10, 12);
  const OwnedActivations act(ActFormat::kF32, MatrixView<const float>(x.data(), 2, 5));
  const OwnedWeight w(WeightFormat::kF32, source.view, Isa::kRef);
  std::vector<float> y(6);
  linear(act.view, w.view, MatrixView<float>(y.data(), 2, 3));
  const auto* weights = static_cast<const float*>(source.view.data);
  for (int r = 0; r < 2; ++r) {
    for (int c = 0; c < 3; ++c) {
      double sum = 0;
      for (int k = 0; k < 5; ++k) sum += static_cast<double>(x[r * 5 + k]) * weights[c * 5 + k];
      EXPECT_NEAR(y[r * 3 + c], sum, 1e-6);
    }
  }
}

// FP8 weights read by the float formats are the codes times their block's scale; edges of 128 are respected.
TEST(LinearRef, Fp8SourceScalesPerBlock) {
  OwnedSource source(DType::kFp8E4m3, 130, 257, 3);
  float* scales = reinterpret_cast<float*>(source.scales.data());
  for (int i = 0; i < 6; ++i) scales[i] = static_cast<float>(i + 1);
  std::fill(source.data.begin(), source.data.end(), std::byte{0x38});  // 1.0
  float value;
  dequantize_weight(source.view, 127, 255, 1, &value);
  EXPECT_EQ(value, 2);
  dequantize_weight(source.view, 128, 256, 1, &value);
  EXPECT_EQ(value, 6);
}

// A row against a router of 64 experts: memory gives two threads more than one.
TEST(LinearTiling, OneRowOfASmallProductIsShared) {
  EXPECT_EQ(plan_linear(1, 64, 1024, 2).num_tiles(), 2);
  EXPECT_EQ(plan_linear(1, 64, 256, 2).num_tiles(), 1);
}

TEST(LinearTiling, CoversEverythingOnce) {
  for (const int64_t rows : {0, 1, 7, 256, 257, 1000}) {
    for (const int64_t n : {1, 32, 100, 5000}) {
      for (const int threads : {1, 2, 8}) {
        const LinearTiling tiling = plan_linear(rows, n, 300, threads);
        int64_t area = 0;
        for (int64_t i = 0; i < tiling.num_tiles(); ++i) {
          const LinearTile tile = tiling.tile(i);
          EXPECT_EQ(tile.n_begin % kLinearTileN, 0);
          EXPECT_LT(tile.row_begin, tile.row_end);
          EXPECT_LT(tile.n_begin, tile.n_end);
          area += (tile.row_end - tile.row_begin) * (tile.n_end - tile.n_begin);
        }
        EXPECT_EQ(area, rows * n) << rows << " " << n << " " << threads;
      }
    }
  }
}

}  // namespace
}  // namespace fathom
