// Against libm, and against each other.
#include "base/det_math.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fathom {
namespace {

TEST(DetMath, AgreesWithLibm) {
  for (double x = 1e-9; x < 1e9; x *= 1.37) {
    EXPECT_NEAR(det_log(x), std::log(x), 4e-15 * std::max(1.0, std::abs(std::log(x)))) << x;
    EXPECT_NEAR(det_pow(x, 1 / 2.53) / std::pow(x, 1 / 2.53), 1, 1e-14) << x;
  }
  for (double x = -60; x < 60; x += 0.173) EXPECT_NEAR(det_exp(x) / std::exp(x), 1, 1e-14) << x;
}

TEST(DetMath, NormalQuantileInvertsTheNormalDistribution) {
  for (double p = 1e-9; p < 1; p = p < 0.001 ? p * 3 : p + 0.0137) {
    const double z = normal_quantile(p);
    EXPECT_NEAR(0.5 * std::erfc(-z / std::sqrt(2.0)) / p, 1, 1e-9) << p;
  }
  EXPECT_EQ(normal_quantile(0.5), 0);
}

}  // namespace
}  // namespace fathom
