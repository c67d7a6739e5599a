// Choosing the next token from one row of logits: exact, and the same whatever shares the batch, because the
// random number is a function of (seed, choice, position) alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"

namespace fathom {

struct SamplingParams {
  float temperature = 1;         // [0, 100]; 0: the largest logit, ties to the lowest id
  float top_p = 1;               // (0, 1]; 1: off
  float min_p = 0;               // [0, 1]; drops tokens less likely than min_p times the likeliest; 0: off
  int32_t top_k = 0;             // >= 0; 0: off
  float presence_penalty = 0;    // [-2, 2]; off the logit of every token generated before
  float frequency_penalty = 0;   // [-2, 2]; the same, times how often
  float repetition_penalty = 1;  // (0, 10]; divides positive, multiplies negative logits of tokens seen in
                                 // the prompt or generated; 1: off
  uint64_t seed = 0;             // the API draws one when the client names none
  std::vector<std::pair<int32_t, float>> logit_bias;  // distinct ids below the vocabulary's size, [-100, 100]
  int32_t num_logprobs =
      -1;  // -1: none; 0: of the sampled token only; up to kMaxLogprobs: of the likeliest too
};
inline constexpr int32_t kMaxLogprobs = 20;

// kInvalidArgument naming the parameter and its limits.
Status validate(const SamplingParams& params, int32_t vocab_size);

// Logarithms of the model's own distribution: softmax of the raw logits, before bias, penalties and
// temperature, so that they do not depend on how the token was chosen (the habit of vLLM and OpenAI).
struct TokenLogprobs {
  float sampled = 0;
  std::vector<std::pair<int32_t, float>> top;  // likeliest first, ties by lower id
};

struct SampledToken {
  int32_t token = 0;
  std::optional<TokenLogprobs> logprobs;
};

// Scratch of one thread that samples; keeps its memory from call to call.
struct SamplerWorkspace {
  struct Candidate {
    float logit;
    int32_t id;
    double below;   // (largest logit - this) / temperature
    double weight;  // exp(-below)
  };
  std::vector<float> logits;
  std::vector<Candidate> candidates;
  std::vector<Candidate> scratch;
};

// One sequence's sampler: the parameters and what the penalties need to know of the past. Order of
// operations: logit bias, repetition penalty, presence and frequency penalties, temperature, top-k, top-p (of
// what top-k left), min-p; then the inverse of the cumulative distribution over the remaining tokens by id.
// Sums are F64.
class Sampler {
 public:
  // `prompt` counts for the repetition penalty only. The parameters are valid.
  Sampler(SamplingParams params, uint32_t choice, std::span<const int32_t> prompt);

  const SamplingParams& params() const { return params_; }

  // The token for `position` (its index in prompt + output). kDataLoss when a logit is NaN or +infinity or
  // none is finite. Does not change the sampler: record() does.
  Result<SampledToken> sample(std::span<const float> logits, int32_t position, SamplerWorkspace& work) const;
  // `token` was appended to the output.
  void record(int32_t token);

 private:
  struct Seen {
    int32_t num_generated = 0;
    bool in_prompt = false;
  };
  bool changes_logits() const;
  void adjust(std::span<float> logits) const;
  int32_t draw(std::span<const float> logits, int32_t largest_id, int32_t position,
               SamplerWorkspace& work) const;

  const SamplingParams params_;
  const uint32_t choice_;
  const bool has_penalties_;
  std::unordered_map<int32_t, Seen> seen_;  // only filled when a penalty is on
};

}  // namespace fathom
