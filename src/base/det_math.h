// exp, log and pow built from + - * / and exact bit moves only, so that a simulation gives the same bytes on
// every x86-64 machine; libm's versions may differ in the last bit between C libraries. Accurate to about
// 1e-15 relative.
#pragma once

namespace fathom {

double det_log(double x);            // natural logarithm; x > 0, normal
double det_exp(double x);            // |x| <= 700
double det_pow(double x, double y);  // x >= 0; 0^y = 0
// Standard normal quantile (Wichura 1988, algorithm AS 241, PPND16); 0 < p < 1.
double normal_quantile(double p);

}  // namespace fathom
