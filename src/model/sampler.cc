// The sampler. Candidates are kept in one array that every filter shortens; sorting touches only the part of
// it that a filter needs.
#include "model/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/rng.h"

namespace fathom {
namespace {

using Candidate = SamplerWorkspace::Candidate;

// Logits further than this below the largest are left out: even all of a vocabulary of 2^20 such tokens
// weighs less than 2^-66, and the random number has 53 bits.
constexpr double kNegligibleBelow = 60;

bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The largest logit, ties to the lowest id; -1 when the row is not a distribution.
int32_t find_largest(std::span<const float> logits) {
  int32_t best = -1;
  float best_logit = -std::numeric_limits<float>::infinity();
  bool bad = false;
  for (size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    bad |= !(logit < std::numeric_limits<float>::infinity());  // NaN and +infinity
    if (logit > best_logit) {
      best_logit = logit;
      best = static_cast<int32_t>(id);
    }
  }
  return bad ? -1 : best;
}

// Drops what is less likely than `last`; keeps the order.
void keep_down_to(std::vector<Candidate>& candidates, const Candidate& last) {
  std::erase_if(candidates, [&](const Candidate& c) { return likelier(last, c); });
}

void keep_top_k(std::vector<Candidate>& candidates, int32_t top_k, std::vector<Candidate>& scratch) {
  if (top_k <= 0 || static_cast<size_t>(top_k) >= candidates.size()) return;
  scratch = candidates;
  std::nth_element(scratch.begin(), scratch.begin() + top_k - 1, scratch.end(), likelier);
  keep_down_to(candidates, scratch[static_cast<size_t>(top_k - 1)]);
}

// Keeps the likeliest tokens that together reach `top_p` of the weight; at least one. A histogram over the
// logarithm of the weight says in which narrow bucket the limit falls, and only that bucket is sorted.
void keep_top_p(std::vector<Candidate>& candidates, double top_p, std::vector<Candidate>& scratch) {
  if (top_p >= 1) return;
  constexpr int kBuckets = 1024;
  std::array<double, kBuckets> mass{};
  // Falls with the weight, so no token of a later bucket is likelier than one of an earlier.
  const auto bucket_of = [](const Candidate& c) {
    return std::min(kBuckets - 1, static_cast<int>(c.below * (kBuckets / kNegligibleBelow)));
  };
  double total = 0;
  for (const Candidate& c : candidates) {
    mass[static_cast<size_t>(bucket_of(c))] += c.weight;
    total += c.weight;
  }
  const double limit = top_p * total;
  double reached = 0;
  int bucket = 0;
  while (bucket < kBuckets - 1 && reached + mass[static_cast<size_t>(bucket)] < limit) {
    reached += mass[static_cast<size_t>(bucket++)];
  }
  scratch.clear();
  for (const Candidate& c : candidates) {
    if (bucket_of(c) == bucket) scratch.push_back(c);
  }
  if (scratch.empty()) return;  // only when rounding kept the sum below the limit: all belong
  std::sort(scratch.begin(), scratch.end(), likelier);
  size_t last = 0;
  while (last + 1 < scratch.size() && reached + scratch[last].weight < limit)
    reached += scratch[last++].weight;
  keep_down_to(candidates, scratch[last]);
}

TokenLogprobs logprobs_of(std::span<const float> logits, float largest, int32_t token, int32_t num_top,
                          std::vector<Candidate>& work) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  const double log_sum = std::log(sum) + largest;
  TokenLogprobs logprobs{.sampled = static_cast<float>(logits[static_cast<size_t>(token)] - log_sum)};
  if (num_top == 0) return logprobs;
  work.clear();
  for (size_t id = 0; id < logits.size(); ++id) work.push_back({logits[id], static_cast<int32_t>(id), 0, 0});
  const size_t count = std::min(work.size(), static_cast<size_t>(num_top));
  std::partial_sort(work.begin(), work.begin() + static_cast<ptrdiff_t>(count), work.end(), likelier);
  for (size_t i = 0; i < count; ++i) {
    logprobs.top.emplace_back(work[i].id, static_cast<float>(work[i].logit - log_sum));
  }
  return logprobs;
}

Status out_of_range(const char* name, double value, const char* limits) {
  return invalid_argument("{}: {} is outside {}", name, value, limits);
}

}  // namespace

Status validate(const SamplingParams& p, int32_t vocab_size) {
  // Written so that NaN fails.
  const auto within = [](float value, float low, float high) { return value >= low && value <= high; };
  if (!within(p.temperature, 0, 100)) return out_of_range("temperature", p.temperature, "[0, 100]");
  if (!(p.top_p > 0 && p.top_p <= 1)) return out_of_range("top_p", p.top_p, "(0, 1]");
  if (!within(p.min_p, 0, 1)) return out_of_range("min_p", p.min_p, "[0, 1]");
  if (p.top_k < 0) return out_of_range("top_k", p.top_k, "[0, ...)");
  if (!within(p.presence_penalty, -2, 2))
    return out_of_range("presence_penalty", p.presence_penalty, "[-2, 2]");
  if (!within(p.frequency_penalty, -2, 2)) {
    return out_of_range("frequency_penalty", p.frequency_penalty, "[-2, 2]");
  }
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 10)) {
    return out_of_range("repetition_penalty", p.repetition_penalty, "(0, 10]");
  }
  if (p.num_logprobs < -1 || p.num_logprobs > kMaxLogprobs) {
    return out_of_range("logprobs", p.num_logprobs, "[0, 20]");
  }
  for (const auto& [token, bias] : p.logit_bias) {
    if (token < 0 || token >= vocab_size) {
      return invalid_argument("logit_bias: token {} is outside the vocabulary of {}", token, vocab_size);
    }
    if (!within(bias, -100, 100)) return out_of_range("logit_bias", bias, "[-100, 100]");
  }
  return ok_status();
}

Sampler::Sampler(SamplingParams params, uint32_t choice, std::span<const int32_t> prompt)
    : params_(std::move(params)),
      choice_(choice),
      has_penalties_(params_.presence_penalty != 0 || params_.frequency_penalty != 0 ||
                     params_.repetition_penalty != 1) {
  if (params_.repetition_penalty == 1) return;
  for (const int32_t token : prompt) seen_[token].in_prompt = true;
}

void Sampler::record(int32_t token) {
  if (has_penalties_) ++seen_[token].num_generated;
}

bool Sampler::changes_logits() const { return !params_.logit_bias.empty() || !seen_.empty(); }

// Each token's new logit depends on its own old one only, so the map's order does not matter.
void Sampler::adjust(std::span<float> logits) const {
  for (const auto& [token, bias] : params_.logit_bias) logits[static_cast<size_t>(token)] += bias;
  for (const auto& [token, seen] : seen_) {
    if (static_cast<size_t>(token) >= logits.size()) continue;
    float& logit = logits[static_cast<size_t>(token)];
    logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    if (seen.num_generated == 0) continue;
    logit -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(seen.num_generated);
  }
}

int32_t Sampler::draw(std::span<const float> logits, int32_t largest_id, int32_t position,
                      SamplerWorkspace& work) const {
  if (params_.temperature == 0) return largest_id;
  const double largest = logits[static_cast<size_t>(largest_id)];
  const double scale = 1.0 / params_.temperature;
  std::vector<Candidate>& candidates = work.candidates;
  candidates.clear();
  for (size_t id = 0; id < logits.size(); ++id) {
    const double below = (largest - logits[id]) * scale;
    if (!(below < kNegligibleBelow)) continue;
    candidates.push_back({logits[id], static_cast<int32_t>(id), below, std::exp(-below)});
  }
  keep_top_k(candidates, params_.top_k, work.scratch);
  keep_top_p(candidates, params_.top_p, work.scratch);
  if (params_.min_p > 0) {
    // The largest logit's weight is 1.
    std::erase_if(candidates, [&](const Candidate& c) { return c.weight < params_.min_p; });
  }
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  const uint64_t bits = hash_u64(params_.seed, choice_, static_cast<uint64_t>(position));
  const double target = unit_double(bits) * total;
  double reached = 0;
  for (const Candidate& c : candidates) {
    reached += c.weight;
    if (reached > target) return c.id;
  }
  return candidates.back().id;  // only when rounding made target reach the total
}

Result<SampledToken> Sampler::sample(std::span<const float> logits, int32_t position,
                                     SamplerWorkspace& work) const {
  CHECK(!logits.empty());
  const int32_t largest_id = find_largest(logits);
  if (largest_id < 0) {
    return make_status(StatusCode::kDataLoss,
                       "the model's logits for position {} hold NaN or no finite value", position);
  }
  SampledToken sampled;
  if (changes_logits()) {
    work.logits.assign(logits.begin(), logits.end());
    adjust(work.logits);
    const int32_t largest_adjusted = find_largest(work.logits);
    if (largest_adjusted < 0) {
      return invalid_argument("repetition_penalty: {} takes a logit beyond what a float holds",
                              params_.repetition_penalty);
    }
    sampled.token = draw(work.logits, largest_adjusted, position, work);
  } else {
    sampled.token = draw(logits, largest_id, position, work);
  }
  if (params_.num_logprobs >= 0) {
    const float largest = logits[static_cast<size_t>(largest_id)];
    sampled.logprobs = logprobs_of(logits, largest, sampled.token, params_.num_logprobs, work.scratch);
  }
  return sampled;
}

}  // namespace fathom
