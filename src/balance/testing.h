// Shared by the folder's tests and benchmarks: skewed expert loads and property checks with printed seeds.
#pragma once

#include <cmath>
#include <vector>

#include "base/rng.h"

namespace fathom {

// Standard normal from a sum of twelve uniforms: shape enough for skew, equal on every machine up to libm's
// exp.
inline double test_normal(Rng& rng) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += rng.next_double();
  return sum;
}

// Whole token counts with lognormal popularity: sigma 0.3 is mild, 1.0 is severe.
inline std::vector<float> lognormal_weights(Rng& rng, int n, double sigma, double mean_tokens) {
  std::vector<float> weights(n);
  for (float& w : weights)
    w = std::round(static_cast<float>(mean_tokens * std::exp(sigma * test_normal(rng))));
  return weights;
}

}  // namespace fathom
