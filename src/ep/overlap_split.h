// How a step's tokens are cut into two micro-batches of equal attention load.
//
// Invariants, by name:
// * equal_attention: prefill's halves differ by at most what one token (or one alignment unit) attends to
// * order_kept: prefill's first half is a prefix of the step's tokens, so a cut prompt's earlier part leads
// * equal_counts: decode's request counts differ by at most one
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fathom {

// New tokens of one prompt in this step, after `cached_tokens` that are in its KV already.
struct PrefillSlice {
  int64_t new_tokens = 0;
  int64_t cached_tokens = 0;

  double attention_pairs() const {
    const double n = static_cast<double>(new_tokens);
    return n * (static_cast<double>(cached_tokens) + n / 2);
  }
};

// The first micro-batch holds slices [0, slice) whole and the first `tokens` of slice `slice`.
struct PrefillSplit {
  int32_t slice = 0;
  int64_t tokens = 0;
  double first_pairs = 0;
  double second_pairs = 0;

  // Of the halves' attention, the objective.
  double max_over_mean() const {
    const double sum = first_pairs + second_pairs;
    return sum > 0 ? 2 * (first_pairs > second_pairs ? first_pairs : second_pairs) / sum : 1;
  }
};

// `align_tokens`: a cut inside a prompt falls on such a multiple of its sequence (1: anywhere).
PrefillSplit split_prefill(std::span<const PrefillSlice> slices, int64_t align_tokens = 1);

// Decode requests are not cut: micro_batch[i] (0 or 1) levels the KV tokens of two halves of equal count.
std::vector<uint8_t> split_decode(std::span<const int64_t> kv_tokens);
// Of the halves' KV, the objective.
double kv_max_over_mean(std::span<const int64_t> kv_tokens, std::span<const uint8_t> micro_batch);

}  // namespace fathom
