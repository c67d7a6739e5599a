// exp, log and the normal quantile from + - * / alone: equal bits on every x86-64 machine.
#include "base/det_math.h"

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/check.h"

namespace fathom {
namespace {

constexpr double kLn2Hi = 6.93147180369123816490e-01;  // the top 32 bits of ln 2: k * kLn2Hi is exact
constexpr double kLn2Lo = 1.90821492927058770002e-10;

double ratio_of_polynomials(const double (&num)[8], const double (&den)[8], double x) {
  double n = num[7];
  double d = den[7];
  for (int i = 6; i >= 0; --i) {
    n = n * x + num[i];
    d = d * x + den[i];
  }
  return n / d;
}

}  // namespace

double det_log(double x) {
  CHECK(x > 0x1p-1000);
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  // log m = 2 artanh(s), s = (m - 1) / (m + 1), |s| <= 0.1716: s^23 / 23 is below 1e-18.
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double sum = 0;
  for (int k = 21; k >= 3; k -= 2) sum = (sum + 1.0 / k) * z;
  const double log_m = 2 * s + 2 * s * sum;
  return exponent * kLn2Hi + (log_m + exponent * kLn2Lo);
}

double det_exp(double x) {
  CHECK(x > -700.5 && x < 700.5);
  const double scaled = x * 1.44269504088896340736;
  const int k = static_cast<int>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
  const double r = (x - k * kLn2Hi) - k * kLn2Lo;  // |r| <= 0.3466: r^14 / 14! is below 5e-18
  double sum = 1;
  for (int i = 13; i >= 1; --i) sum = 1 + sum * r / i;
  return sum * std::bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52);
}

double det_pow(double x, double y) { return x == 0 ? 0 : det_exp(y * det_log(x)); }

double normal_quantile(double p) {
  CHECK(p > 0 && p < 1);
  static constexpr double kCentreNum[8] = {
      3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
      4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3};
  static constexpr double kCentreDen[8] = {1.0,
                                           4.2313330701600911252e1,
                                           6.8718700749205790830e2,
                                           5.3941960214247511077e3,
                                           2.1213794301586595867e4,
                                           3.9307895800092710610e4,
                                           2.8729085735721942674e4,
                                           5.2264952788528545610e3};
  static constexpr double kMiddleNum[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                           5.76949722146069140550e0,  3.64784832476320460504e0,
                                           1.27045825245236838258e0,  2.41780725177450611770e-1,
                                           2.27238449892691845833e-2, 7.74545014278341407640e-4};
  static constexpr double kMiddleDen[8] = {1.0,
                                           2.05319162663775882187e0,
                                           1.67638483018380384940e0,
                                           6.89767334985100004550e-1,
                                           1.48103976427480074590e-1,
                                           1.51986665636164571966e-2,
                                           5.47593808499534494600e-4,
                                           1.05075007164441684324e-9};
  static constexpr double kTailNum[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                         1.78482653991729133580e0,  2.96560571828504891230e-1,
                                         2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                         2.71155556874348757815e-5, 2.01033439929228813265e-7};
  static constexpr double kTailDen[8] = {1.0,
                                         5.99832206555887937690e-1,
                                         1.36929880922735805310e-1,
                                         1.48753612908506148525e-2,
                                         7.86869131145613259100e-4,
                                         1.84631831751005468180e-5,
                                         1.42151175831644588870e-7,
                                         2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (q > -0.425 && q < 0.425) return q * ratio_of_polynomials(kCentreNum, kCentreDen, 0.180625 - q * q);
  const double tail = q < 0 ? p : 1 - p;
  const double r = std::sqrt(-det_log(tail));  // sqrt is correctly rounded by IEEE 754
  const double z = r <= 5 ? ratio_of_polynomials(kMiddleNum, kMiddleDen, r - 1.6)
                          : ratio_of_polynomials(kTailNum, kTailDen, r - 5);
  return q < 0 ? -z : z;
}

}  // namespace fathom
