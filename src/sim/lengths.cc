// Lognormal lengths and cache hits from quantile tables and integers.
#include "sim/lengths.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/det_math.h"

namespace fathom::sim {

QuantileTable::QuantileTable(const std::function<double(double)>& quantile) {
  double from = 0;
  double width = 1;
  edges_.reserve((kBins + 1) * kLevels);
  for (int level = 0; level < kLevels; ++level) {
    for (uint64_t bin = 0; bin <= kBins; ++bin) {
      const double p = from + width * static_cast<double>(bin) / kBins;
      edges_.push_back(static_cast<float>(quantile(std::clamp(p, 0x1p-30, 1 - 0x1p-40))));
    }
    from += width * (kBins - 1) / kBins;
    width /= kBins;
  }
}

double QuantileTable::at(double p) const {
  const float* level = edges_.data();
  double bins = p * kBins;
  for (int i = 0; i + 1 < kLevels && bins >= kBins - 1; ++i) {
    bins = (bins - (kBins - 1)) * kBins;
    level += kBins + 1;
  }
  const auto bin = std::min(static_cast<uint64_t>(bins), kBins - 1);
  return level[bin] + (level[bin + 1] - level[bin]) * (bins - static_cast<double>(bin));
}

QuantileTable lognormal_table(double mean, double cv2) {
  CHECK(mean > 0 && cv2 > 0);
  const double sigma2 = det_log(1 + cv2);
  const double sigma = std::sqrt(sigma2);
  const double mu = det_log(mean) - sigma2 / 2;
  return QuantileTable([=](double p) { return det_exp(mu + sigma * normal_quantile(p)); });
}

QuantileTable exponential_table() {
  return QuantileTable([](double p) { return -det_log(1 - p); });
}

LengthModel::LengthModel(const LengthOptions& options)
    : options_(options),
      input_(lognormal_table(options.input_mean_tokens, options.input_cv2)),
      output_(lognormal_table(options.output_mean_tokens, options.output_cv2)),
      continuation_below_(static_cast<uint64_t>(std::clamp(options.continuation_share, 0.0, 1.0) * 0x1p53)) {}

int32_t LengthModel::input_tokens(double drawn) const {
  const double input = std::clamp<double>(drawn, options_.input_tokens_min, options_.input_tokens_max);
  return static_cast<int32_t>(input + 0.5);
}

int32_t LengthModel::cached_tokens(int32_t input_tokens, bool continuation) const {
  const double hit = continuation ? options_.continuation_hit : options_.other_hit;
  return static_cast<int32_t>(input_tokens * hit) / options_.block_tokens * options_.block_tokens;
}

PromptMix LengthModel::prompt_mix() const {
  constexpr int kStrata = 1 << 16;
  const double share = static_cast<double>(continuation_below_) * 0x1p-53;
  PromptSums sums;
  for (int i = 0; i < kStrata; ++i) {
    const int32_t input = input_tokens(input_.at((i + 0.5) / kStrata));
    for (const bool continuation : {false, true}) {
      const int32_t cached = cached_tokens(input, continuation);
      sums.add(continuation ? share : 1 - share, cached, input - cached);
    }
  }
  return sums.mix();
}

RequestShape LengthModel::sample(Rng& rng) const {
  RequestShape r;
  r.input_tokens = input_tokens(input_.sample(rng));
  const double output = std::clamp<double>(output_.sample(rng), 1, options_.output_tokens_max);
  r.output_tokens = static_cast<int32_t>(output + 0.5);
  r.continuation = (rng.next_u64() >> 11) < continuation_below_;
  r.cached_tokens = cached_tokens(r.input_tokens, r.continuation);
  return r;
}

}  // namespace fathom::sim
