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

RequestShape LengthModel::sample(Rng& rng) const {
  RequestShape r;
  const double input =
      std::clamp<double>(input_.sample(rng), options_.input_tokens_min, options_.input_tokens_max);
  r.input_tokens = static_cast<int32_t>(input + 0.5);
  const double output = std::clamp<double>(output_.sample(rng), 1, options_.output_tokens_max);
  r.output_tokens = static_cast<int32_t>(output + 0.5);
  r.continuation = (rng.next_u64() >> 11) < continuation_below_;
  const double hit = r.continuation ? options_.continuation_hit : options_.other_hit;
  r.cached_tokens =
      static_cast<int32_t>(r.input_tokens * hit) / options_.block_tokens * options_.block_tokens;
  return r;
}

}  // namespace fathom::sim
