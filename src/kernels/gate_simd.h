// The gate's choice for a vector type V (simd_avx2.h, simd_avx512.h).
#pragma once

#include "kernels/elementwise_simd.h"

namespace fathom {
namespace {

constexpr float kGateTaken = -__builtin_inff();
constexpr float kGateLowest = -__FLT_MAX__;  // of a choice, above what is taken

// Calls fn(i, count) for each vector of n elements; count is V::kLanes but for the last.
template <class V, class Fn>
FATHOM_INLINE void for_each_part(int n, Fn fn) {
  for (int i = 0; i < n; i += V::kLanes) fn(i, smaller(V::kLanes, n - i));
}

template <class V>
void softmax_row_simd(float* x, int64_t n) {
  using F = typename V::F;
  const F lowest = V::set1(-__builtin_inff());
  F top = lowest;
  for_vectors<V>(
      n, [&](int64_t i) { top = V::max(top, V::load(x + i)); },
      [&](int64_t i, int64_t count) {
        top = V::max(top, V::first_lanes(V::load_part(x + i, count), count, lowest));
      });
  const F highest = V::set1(V::highest(top));
  F sum = V::zero();
  for_vectors<V>(
      n,
      [&](int64_t i) {
        const F e = simd_exp<V>(V::sub(V::load(x + i), highest));
        V::store(x + i, e);
        sum = V::add(sum, e);
      },
      [&](int64_t i, int64_t count) {
        const F e = simd_exp<V>(V::sub(V::load_part(x + i, count), highest));
        V::store_part(x + i, count, e);
        sum = V::add(sum, V::first_lanes(e, count, V::zero()));
      });
  const F factor = V::set1(1.0f / V::sum(sum));
  for_vectors<V>(
      n, [&](int64_t i) { V::store(x + i, V::mul(V::load(x + i), factor)); },
      [&](int64_t i, int64_t count) {
        V::store_part(x + i, count, V::mul(V::load_part(x + i, count), factor));
      });
}

template <class V>
void gate_scores(const GateConfig& config, const float* logits, float* scores) {
  const int n = config.num_experts;
  for_each_part<V>(n, [&](int i, int64_t count) {
    const auto x = V::load_part(logits + i, count);
    const auto one = V::set1(1.0f);
    V::store_part(scores + i, count,
                  config.score == GateScore::kSoftmax
                      ? x
                      : V::div(one, V::add(one, simd_exp<V>(V::sub(V::zero(), x)))));
  });
  if (config.score == GateScore::kSoftmax) softmax_row_simd<V>(scores, n);
}

template <class V>
float group_value(GroupScore kind, const float* choice, int size) {
  const auto taken = V::set1(kGateTaken);
  auto first = taken, second = taken;  // of each lane
  for_each_part<V>(size, [&](int i, int64_t count) {
    const auto x = V::first_lanes(V::load_part(choice + i, count), count, taken);
    second = V::max(second, V::min(first, x));
    first = V::max(first, x);
  });
  const float top = V::highest(first);
  if (kind == GroupScore::kMax || size == 1) return top;
  // The second is another lane's first, or the second of the lane that has the first.
  float lanes[V::kLanes];
  V::store(lanes, first);
  lanes[__builtin_ctz(V::equals(first, top))] = kGateTaken;
  const float sum = top + V::highest(V::max(V::load(lanes), second));
  return sum > kGateLowest ? sum : kGateLowest;
}

// The index of the largest of n values, the lowest on ties; it becomes kGateTaken. The lanes of the last
// vector beyond n are kGateTaken.
template <class V>
int take_best(float* values, int n) {
  auto top = V::set1(kGateTaken);
  for (int i = 0; i < n; i += V::kLanes) top = V::max(top, V::load(values + i));
  const float best = V::highest(top);
  for (int i = 0;; i += V::kLanes) {
    const uint32_t found = V::equals(V::load(values + i), best);
    if (found == 0) continue;
    const int index = i + __builtin_ctz(found);
    values[index] = kGateTaken;
    return index;
  }
}

template <class V>
void limit_groups(const GateConfig& config, float* choice) {
  const auto taken = V::set1(kGateTaken);
  const int size = config.num_experts / config.num_groups;
  float values[kGateExpertsMax], kept[kGateExpertsMax];
  int g = 0;
  for (; g < config.num_groups; ++g) values[g] = group_value<V>(config.group_score, choice + g * size, size);
  for (; g % V::kLanes != 0; ++g) values[g] = kGateTaken;
  for (int i = 0; i < config.num_groups; ++i) kept[i] = 0;
  for (int i = 0; i < config.top_groups; ++i) kept[take_best<V>(values, config.num_groups)] = 1;
  for (g = 0; g < config.num_groups; ++g) {
    if (kept[g] != 0) continue;
    for_each_part<V>(size, [&](int i, int64_t count) { V::store_part(choice + g * size + i, count, taken); });
  }
}

template <class V>
void gate_experts_simd(const GateConfig& config, const float* logits, const float* bias, float* scores,
                       int32_t* experts) {
  static_assert(kGateExpertsMax % V::kLanes == 0, "whole vectors fit the buffers");
  float choice[kGateExpertsMax];
  gate_scores<V>(config, logits, scores);
  for_each_part<V>(config.num_experts, [&](int i, int64_t count) {
    auto c = V::load_part(scores + i, count);
    if (bias != nullptr) c = V::add(c, V::load_part(bias + i, count));
    c = V::max(c, V::set1(kGateLowest));  // of NaN too: max gives its second argument
    V::store(choice + i, V::first_lanes(c, count, V::set1(kGateTaken)));
  });
  if (config.num_groups > 1) limit_groups<V>(config, choice);
  for (int i = 0; i < config.top_k; ++i) experts[i] = take_best<V>(choice, config.num_experts);
}

}  // namespace
}  // namespace fathom
