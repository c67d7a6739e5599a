// Prefill cuts where the running load reaches half; decode deals requests in pairs of like size.
#include "ep/overlap_split.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace fathom {

PrefillSplit split_prefill(std::span<const PrefillSlice> slices, int64_t align_tokens) {
  CHECK(align_tokens > 0);
  double total = 0;
  for (const PrefillSlice& slice : slices) total += slice.attention_pairs();
  PrefillSplit split;
  double before = 0;
  while (split.slice < static_cast<int32_t>(slices.size())) {
    const double mine = slices[split.slice].attention_pairs();
    if (before + mine > total / 2) break;
    before += mine;
    ++split.slice;
  }
  split.first_pairs = before;
  if (split.slice < static_cast<int32_t>(slices.size())) {
    // n^2 / 2 + c n = what is missing to the half; then the better of the two neighbouring cuts.
    const PrefillSlice& slice = slices[split.slice];
    const double c = static_cast<double>(slice.cached_tokens);
    const double wanted = total / 2 - before;
    const int64_t exact = static_cast<int64_t>(std::sqrt(c * c + 2 * wanted) - c);
    const auto aligned_down = [&](int64_t n) {
      return std::max<int64_t>(0, n - (slice.cached_tokens + n) % align_tokens);
    };
    double best_gap = INFINITY;
    for (int64_t n : {aligned_down(exact), aligned_down(exact) + 1, aligned_down(exact + align_tokens)}) {
      n = std::min(n, slice.new_tokens);
      if (n > 0 && n < slice.new_tokens && (slice.cached_tokens + n) % align_tokens != 0) continue;
      const double first = before + PrefillSlice{n, slice.cached_tokens}.attention_pairs();
      const double gap = std::abs(total - 2 * first);
      if (gap < best_gap) best_gap = gap, split.tokens = n, split.first_pairs = first;
    }
    if (split.tokens == slice.new_tokens) ++split.slice, split.tokens = 0;
  }
  split.second_pairs = total - split.first_pairs;
  return split;
}

std::vector<uint8_t> split_decode(std::span<const int64_t> kv_tokens) {
  const int n = static_cast<int>(kv_tokens.size());
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return kv_tokens[a] != kv_tokens[b] ? kv_tokens[a] > kv_tokens[b] : a < b;
  });
  // Pairs of neighbours by size, the larger of each pair to the lighter half: the halves differ by at most
  // the largest difference within a pair, and counts by one.
  std::vector<uint8_t> micro_batch(n, 0);
  int64_t lead = 0;  // KV of half 0 over half 1
  for (int i = 0; i < n; i += 2) {
    const int64_t large = kv_tokens[order[i]], small = i + 1 < n ? kv_tokens[order[i + 1]] : 0;
    const uint8_t larger_to = lead > 0;
    micro_batch[order[i]] = larger_to;
    if (i + 1 < n) micro_batch[order[i + 1]] = !larger_to;
    lead += larger_to == 0 ? large - small : small - large;
  }
  return micro_batch;
}

double kv_max_over_mean(std::span<const int64_t> kv_tokens, std::span<const uint8_t> micro_batch) {
  CHECK(kv_tokens.size() == micro_batch.size());
  int64_t kv[2] = {0, 0};
  for (size_t i = 0; i < kv_tokens.size(); ++i) kv[micro_batch[i] != 0] += kv_tokens[i];
  const int64_t sum = kv[0] + kv[1];
  return sum > 0 ? 2 * static_cast<double>(std::max(kv[0], kv[1])) / static_cast<double>(sum) : 1;
}

}  // namespace fathom
