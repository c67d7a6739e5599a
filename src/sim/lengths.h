// Random request sizes and gaps by table: a 64-bit draw picks a bin of a quantile table and a point inside
// it, so sampling is a multiply and an add, and equal on every machine. The last bin is split again (and
// again) for the tail.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/rng.h"

namespace fathom::sim {

class QuantileTable {
 public:
  // quantile(p) for p in (0, 1), increasing. Three levels of 4,096 bins: the last bin of one level is the
  // next level.
  explicit QuantileTable(const std::function<double(double)>& quantile);

  double sample(Rng& rng) const {
    uint64_t bits = rng.next_u64();
    const float* level = edges_.data();
    for (int i = 0; i + 1 < kLevels && (bits >> 52) == kBins - 1; ++i) {
      bits = rng.next_u64();
      level += kBins + 1;
    }
    const uint64_t bin = bits >> 52;
    const float inside = static_cast<float>((bits >> 28) & 0xffffff) * 0x1.0p-24f;
    return level[bin] + (level[bin + 1] - level[bin]) * inside;
  }
  double at(double p) const;  // p in [0, 1)

 private:
  static constexpr uint64_t kBins = 4096;
  static constexpr int kLevels = 3;
  std::vector<float> edges_;
};

// Lognormal with the given mean and squared coefficient of variation.
QuantileTable lognormal_table(double mean, double cv2);
QuantileTable exponential_table();  // mean 1

struct LengthOptions {
  double input_mean_tokens = 3619;  // published: 608e9 / 168e9 per output token, at 1,000 out
  double input_cv2 = 1.5;           // assumption; Mooncake's conversations have 1.72, Azure's 0.92
  int input_tokens_min = 16;
  int input_tokens_max = 131072;
  double output_mean_tokens = 1000;  // assumption; 800-1,100 is plausible
  double output_cv2 = 1.74;          // follows from 4,989 KV tokens per output token
  int output_tokens_max = 1 << 20;   // never reached in practice; keeps arithmetic in 32 bits
  // Two classes of prompts: continuations of a conversation hit most of their prefix, the rest little.
  double continuation_share = 0.6341;  // with whole 64-token blocks this gives the published 56.3 %
  double continuation_hit = 0.85;
  double other_hit = 0.09;
  int block_tokens = 64;  // hits are whole blocks
  bool operator==(const LengthOptions&) const = default;
};

struct RequestShape {
  int32_t input_tokens = 0;
  int32_t cached_tokens = 0;  // of input, whole blocks, always below input
  int32_t output_tokens = 0;
  bool continuation = false;  // of the class that hits most of its prompt
};

// What a load's prompts are to prefill ranks, on average.
struct PromptMix {
  double computed_tokens = 0;      // of a prompt
  double cached_per_computed = 0;  // tokens
  double context_tokens = 0;       // that a computed token attends to
};

// Sums prompts to their mix.
class PromptSums {
 public:
  void add(double weight, double cached_tokens, double computed_tokens) {
    weight_ += weight, cached_ += weight * cached_tokens, computed_ += weight * computed_tokens;
    pairs_ += weight * computed_tokens * (cached_tokens + computed_tokens / 2);
  }
  PromptMix mix() const { return {computed_ / weight_, cached_ / computed_, pairs_ / computed_}; }

 private:
  double weight_ = 0, cached_ = 0, computed_ = 0, pairs_ = 0;
};

class LengthModel {
 public:
  explicit LengthModel(const LengthOptions& options);
  RequestShape sample(Rng& rng) const;
  PromptMix prompt_mix() const;  // by integration over the length table

 private:
  int32_t input_tokens(double drawn) const;
  int32_t cached_tokens(int32_t input_tokens, bool continuation) const;

  LengthOptions options_;
  QuantileTable input_;
  QuantileTable output_;
  uint64_t continuation_below_;
};

}  // namespace fathom::sim
