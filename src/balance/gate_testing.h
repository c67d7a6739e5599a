// Batches as V3's gate routes them, for tests and benchmarks of what expert balancing is worth: group-limited
// top-8 over log-normal popularity.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "balance/testing.h"

namespace fathom {

// Each expert's popularity is a weight; a token draws its scores from it by Gumbel noise on the logarithm,
// goes to the four groups of 32 whose two best scores sum highest, and to the eight best experts of these.
class GateModel {
 public:
  static constexpr int kExperts = 256, kGroups = 8, kGroupsTaken = 4, kTopK = 8;
  static constexpr int kGroupSize = kExperts / kGroups;

  GateModel(uint64_t seed, double sigma) : rng_(seed) {
    for (float& weight : popularity_) weight = static_cast<float>(std::exp(sigma * test_normal(rng_)));
    // Quantiles of exp(Gumbel): the reciprocals of an exponential's.
    for (size_t i = 0; i < noise_.size(); ++i)
      noise_[i] = static_cast<float>(-1 / std::log((static_cast<double>(i) + 0.5) / double(noise_.size())));
  }

  // Popularity moves by up to so much, up or down.
  void drift(double share) {
    for (float& weight : popularity_)
      weight *= static_cast<float>(std::exp(share * (2 * rng_.next_double() - 1)));
  }

  // Tokens per expert of a batch.
  std::vector<int32_t> batch(int num_tokens) {
    std::vector<int32_t> counts(kExperts, 0);
    for (int t = 0; t < num_tokens; ++t) route(counts);
    return counts;
  }
  // The same as statistics for a placement.
  std::vector<float> statistics(int num_tokens) {
    const std::vector<int32_t> counts = batch(num_tokens);
    return {counts.begin(), counts.end()};
  }

 private:
  static constexpr int kNoiseBits = 16;

  void route(std::vector<int32_t>& counts) {
    std::array<float, kExperts> score;
    for (int e = 0; e < kExperts; e += 4) {
      uint64_t bits = rng_.next_u64();
      for (int i = 0; i < 4; ++i, bits >>= kNoiseBits)
        score[e + i] = popularity_[e + i] * noise_[bits & (noise_.size() - 1)];
    }
    std::array<std::pair<float, int>, kGroups> groups;
    for (int g = 0; g < kGroups; ++g) {
      float first = 0, second = 0;
      for (const float s : std::span(score).subspan(g * kGroupSize, kGroupSize)) {
        second = std::max(second, std::min(first, s));
        first = std::max(first, s);
      }
      groups[g] = {first * second, g};  // the sum of their logarithms
    }
    std::partial_sort(groups.begin(), groups.begin() + kGroupsTaken, groups.end(), std::greater<>());
    std::array<std::pair<float, int>, kGroupsTaken * kGroupSize> open;
    int n = 0;
    for (int i = 0; i < kGroupsTaken; ++i) {
      for (int e = 0; e < kGroupSize; ++e) {
        const int expert = groups[i].second * kGroupSize + e;
        open[n++] = {score[expert], expert};
      }
    }
    std::nth_element(open.begin(), open.begin() + kTopK, open.end(), std::greater<>());
    for (int k = 0; k < kTopK; ++k) ++counts[open[k].second];
  }

  Rng rng_;
  std::array<float, kExperts> popularity_;
  std::vector<float> noise_ = std::vector<float>(size_t{1} << kNoiseBits);
};

}  // namespace fathom
