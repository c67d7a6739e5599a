// The tables' dependencies, the evaluator against the published formula, and the cuts against exhaustive
// search.
#include "ep/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "base/rng.h"
#include "ep/overlap_split.h"

namespace fathom {
namespace {

OverlapStageTimes random_times(Rng& rng) {
  const auto us = [&](double max) { return max * rng.next_double(); };
  OverlapStageTimes t{us(100), us(400), us(60), us(400), us(80), us(200), us(700), us(80)};
  t.dispatch_send_us = std::min(t.dispatch_send_us, t.dispatch_us);
  t.combine_send_us = std::min(t.combine_send_us, t.combine_us);
  return t;
}
// The published decode formula: what one micro-batch takes per layer.
double published_micro_batch_us(const OverlapStageTimes& t) {
  return t.dispatch_send_us + std::max(t.shared_us + t.attn0_us, t.dispatch_us - t.dispatch_send_us) +
         t.mlp_us + t.combine_send_us + std::max(t.attn1_us, t.combine_us - t.combine_send_us);
}

TEST(OverlapTable, every_dependency_follows_from_order_and_waits) {
  for (const OverlapTable* table : {&plain_table(), &prefill_table(), &decode_table()}) {
    const Status status = validate_overlap_table(*table);
    EXPECT_TRUE(status.ok()) << "dependencies_hold: " << status.message();
  }
}

// Dropping a wait must be refused, but for those that are there for time or by the publication's order of
// transfers.
TEST(OverlapTable, a_missing_wait_is_noticed) {
  std::set<std::string> not_needed;
  for (const OverlapTable* table : {&plain_table(), &prefill_table(), &decode_table()}) {
    for (size_t i = 0; i < table->ops.size(); ++i) {
      std::vector<OverlapOp> ops(table->ops.begin(), table->ops.end());
      if (ops[i].waits[0].op < 0) continue;
      ops[i].waits[0].op = -1;
      const OverlapTable less{table->name, ops, table->num_micro_batches, table->leading_micro_batch};
      if (validate_overlap_table(less).ok()) {
        not_needed.insert(
            fmt::format("{} {}({})", table->name, overlap_stage_name(ops[i].stage), ops[i].micro_batch));
      }
    }
  }
  // Decode: the attention after a combine, and the next transfer's send behind it, each vouch for the other.
  const std::set<std::string> expected = {"decode ATTN-0(0)", "decode ATTN-0(1)", "decode DISPATCH(0)",
                                          "decode DISPATCH(1)"};
  EXPECT_EQ(not_needed, expected);
}

TEST(OverlapEvaluator, equals_the_published_decode_formula) {
  Rng rng(1);
  for (int i = 0; i < 200; ++i) {
    const OverlapStageTimes t = random_times(rng);
    const OverlapStageTimes both[] = {t, t};
    const OverlapTimeline timeline = evaluate_overlap(decode_table(), both, 60);
    EXPECT_NEAR(timeline.layer_us, 2 * published_micro_batch_us(t), 1e-3 * timeline.layer_us)
        << "as_published";
  }
  // The validated profile point: ATTN-0 63, ATTN-1 344, SHARED 34, MLP 128, dispatch 187 and combine 394 us.
  const OverlapStageTimes profile{63, 344, 34, 187, 60, 128, 394, 52};
  const OverlapStageTimes both[] = {profile, profile};
  const double micro_batch_us = 60 + std::max(34.0 + 63, 187.0 - 60) + 128 + 52 + std::max(344.0, 394.0 - 52);
  EXPECT_NEAR(evaluate_overlap(decode_table(), both, 61).layer_us, 2 * micro_batch_us, 1e-6);
}

TEST(OverlapEvaluator, plain_is_the_sum) {
  Rng rng(2);
  const OverlapStageTimes t = random_times(rng);
  const OverlapTimeline timeline = evaluate_overlap(plain_table(), {&t, 1}, 7);
  EXPECT_NEAR(timeline.total_us, 7 * (t.compute_us() + t.communication_us()), 1e-6) << "as_published";
  EXPECT_NEAR(timeline.exposed_communication_us(), 7 * t.communication_us(), 1e-6);
}

TEST(OverlapEvaluator, the_quick_form_equals_the_time_line) {
  Rng rng(8);
  for (int i = 0; i < 100; ++i) {
    for (const OverlapTable* table : {&plain_table(), &prefill_table(), &decode_table()}) {
      std::vector<OverlapStageTimes> times;
      for (int m = 0; m < table->num_micro_batches; ++m) times.push_back(random_times(rng));
      const double exact =
          evaluate_overlap(*table, times, 200).total_us - evaluate_overlap(*table, times, 100).total_us;
      const SteadyLayer steady = steady_layer(*table, times);
      EXPECT_NEAR(steady.layer_us, exact / 100, 1e-6 * exact) << "quick_form_agrees";
      const double idle = evaluate_overlap(*table, times, 200).compute_idle_us -
                          evaluate_overlap(*table, times, 100).compute_idle_us;
      EXPECT_NEAR(steady.idle_us, idle / 100, 1e-6 * exact) << "quick_form_agrees";
    }
  }
}

// Prefill is bound by the longer of the two streams, plus what the table's dependencies cost.
TEST(OverlapEvaluator, prefill_hides_the_shorter_stream) {
  // Compute-bound as published: 16K tokens in two halves, microseconds.
  const OverlapStageTimes half{3000, 5200, 700, 4000, 0, 6500, 7800, 0};
  const OverlapStageTimes both[] = {half, half};
  const OverlapTimeline timeline = evaluate_overlap(prefill_table(), both, 61);
  EXPECT_GE(timeline.layer_us, 2 * half.compute_us() - 1e-6);
  EXPECT_LE(timeline.layer_us, 1.10 * 2 * half.compute_us());
  // Communication-bound: the transfers follow one another almost without a gap.
  OverlapStageTimes slow = half;
  slow.dispatch_us = 12000, slow.combine_us = 20000;
  const OverlapStageTimes slow_both[] = {slow, slow};
  const double layer_us = evaluate_overlap(prefill_table(), slow_both, 61).layer_us;
  EXPECT_GE(layer_us, 2 * slow.communication_us() - 1e-6);
  EXPECT_LE(layer_us, 2 * slow.communication_us() + slow.compute_us());
}

// Case B9: overlap that shows no overlap. The metric must fall when it is on.
TEST(OverlapEvaluator, B9_exposed_communication_falls_with_overlap_on) {
  // 88 requests a rank, MTP: the full batch against two halves.
  const OverlapStageTimes whole{70, 560, 40, 352, 75, 200, 699, 68};
  const OverlapStageTimes half{60, 297, 32, 191, 46, 122, 365, 39};
  const OverlapStageTimes halves[] = {half, half};
  const OverlapTimeline off = evaluate_overlap(plain_table(), {&whole, 1}, 58);
  const OverlapTimeline on = evaluate_overlap(decode_table(), halves, 58);
  EXPECT_LT(on.exposed_communication_us(), 0.5 * off.exposed_communication_us());
  EXPECT_LT(on.total_us, 0.8 * off.total_us);
  EXPECT_EQ(shorter_layer(decode_table(), halves, whole).table, &decode_table());
  // A tiny batch: halves cost as much as the whole, so overlap stays off.
  const OverlapStageTimes tiny{40, 60, 25, 40, 20, 90, 45, 15};
  const OverlapStageTimes tiny_halves[] = {tiny, tiny};
  EXPECT_EQ(shorter_layer(decode_table(), tiny_halves, tiny).table, &plain_table());
}

TEST(OverlapEvaluator, time_lines_are_consistent) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    for (const OverlapTable* table : {&plain_table(), &prefill_table(), &decode_table()}) {
      std::vector<OverlapStageTimes> times;
      for (int m = 0; m < table->num_micro_batches; ++m) times.push_back(random_times(rng));
      const int layers = 1 + static_cast<int>(rng.next_below(6));
      const OverlapTimeline timeline = evaluate_overlap(*table, times, layers);
      double busy[2] = {0, 0}, stream_end[2] = {0, 0};
      std::map<std::pair<int, int>, int> runs;  // (op, layer)
      for (const OverlapSpan& span : timeline.spans) {
        const int stream = static_cast<int>(table->ops[span.op].stream);
        EXPECT_GE(span.start_us, stream_end[stream]) << "one_thing_at_a_time";
        stream_end[stream] = span.end_us;
        busy[stream] += span.end_us - span.start_us;
        EXPECT_EQ(++runs[std::make_pair(span.op, span.layer)], 1) << "every_stage_once";
      }
      EXPECT_EQ(runs.size(), table->ops.size() * layers) << "every_stage_once";
      EXPECT_NEAR(busy[0] + timeline.compute_idle_us, timeline.total_us, 1e-6);
      EXPECT_NEAR(timeline.busy_us[0], busy[0], 1e-6);
      EXPECT_NEAR(timeline.busy_us[1], busy[1], 1e-6);
      EXPECT_GE(timeline.over_busier_stream(), 1 - 1e-9) << "bounded_below";
      EXPECT_GE(timeline.streams_max_over_mean(), 1);
      EXPECT_LE(timeline.streams_max_over_mean(), 2);
      double at = 0;
      for (int32_t s : timeline.critical_path) {
        EXPECT_DOUBLE_EQ(timeline.spans[s].start_us, at) << "gapless_critical_path";
        at = timeline.spans[s].end_us;
      }
      EXPECT_DOUBLE_EQ(at, timeline.total_us) << "gapless_critical_path";
    }
  }
}

// ---- cutting micro-batches ----

TEST(OverlapSplit, prefill_halves_have_equal_attention) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    std::vector<PrefillSlice> slices(rng.next_below(5));
    double context_max = 0;
    for (PrefillSlice& slice : slices) {
      slice = {1 + static_cast<int64_t>(rng.next_below(60)), static_cast<int64_t>(rng.next_below(100))};
      context_max = std::max(context_max, static_cast<double>(slice.new_tokens + slice.cached_tokens));
    }
    const PrefillSplit split = split_prefill(slices);
    // The oracle: every cut point.
    double total = 0, best = slices.empty() ? 0 : INFINITY, first = 0, ours = 0;
    for (const PrefillSlice& slice : slices) total += slice.attention_pairs();
    for (size_t s = 0; s < slices.size(); ++s) {
      for (int64_t n = 0; n <= slices[s].new_tokens; ++n) {
        const double pairs = first + PrefillSlice{n, slices[s].cached_tokens}.attention_pairs();
        best = std::min(best, std::abs(total - 2 * pairs));
      }
      if (static_cast<int32_t>(s) < split.slice) ours += slices[s].attention_pairs();
      if (static_cast<int32_t>(s) == split.slice)
        ours += PrefillSlice{split.tokens, slices[s].cached_tokens}.attention_pairs();
      first += slices[s].attention_pairs();
    }
    EXPECT_DOUBLE_EQ(ours, split.first_pairs) << "order_kept";
    EXPECT_NEAR(std::abs(split.first_pairs - split.second_pairs), best, 1e-9);
    EXPECT_LE(best, context_max + 1e-9) << "equal_attention";
  }
}

TEST(OverlapSplit, one_long_prompt_is_cut_on_a_block) {
  const PrefillSlice slices[] = {{100, 0}, {16000, 384}, {50, 0}};
  const PrefillSplit split = split_prefill(slices, 64);
  EXPECT_EQ(split.slice, 1);
  EXPECT_EQ((split.tokens + 384) % 64, 0);
  EXPECT_NEAR(split.first_pairs / split.second_pairs, 1, 0.02);
  EXPECT_LT(split.max_over_mean(), 1.01);
  EXPECT_DOUBLE_EQ(split.max_over_mean(), 2 * std::max(split.first_pairs, split.second_pairs) /
                                              (split.first_pairs + split.second_pairs));
  // Equal attention is not equal tokens: the later half attends to more.
  EXPECT_GT(split.tokens, 16000 - split.tokens);
}

TEST(OverlapSplit, decode_halves_have_equal_counts_and_nearly_equal_kv) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const int n = 1 + static_cast<int>(rng.next_below(11));
    std::vector<int64_t> kv(n);
    for (int64_t& tokens : kv) tokens = 1 + static_cast<int64_t>(rng.next_below(10000));
    const auto half = split_decode(kv);
    int64_t gap = 0;
    int count = 0;
    for (int i = 0; i < n; ++i) gap += half[i] ? -kv[i] : kv[i], count += half[i] ? -1 : 1;
    EXPECT_LE(std::abs(count), 1) << "equal_counts";
    const double sum = static_cast<double>(std::accumulate(kv.begin(), kv.end(), int64_t{0}));
    EXPECT_NEAR(kv_max_over_mean(kv, half), 1 + static_cast<double>(std::abs(gap)) / sum, 1e-12);
    // The optimum by trying all halves; ours is within the largest gap between neighbours by size.
    int64_t best = INT64_MAX;
    for (int mask = 0; mask < 1 << n; ++mask) {
      if (std::abs(2 * __builtin_popcount(mask) - n) > 1) continue;
      int64_t g = 0;
      for (int i = 0; i < n; ++i) g += (mask >> i & 1) ? -kv[i] : kv[i];
      best = std::min(best, std::abs(g));
    }
    std::vector<int64_t> sorted = kv;
    std::sort(sorted.rbegin(), sorted.rend());
    int64_t step = 0;
    for (int i = 0; i < n; i += 2) step = std::max(step, sorted[i] - (i + 1 < n ? sorted[i + 1] : 0));
    EXPECT_GE(std::abs(gap), best);
    EXPECT_LE(std::abs(gap), std::max(best, step));
  }
}

}  // namespace
}  // namespace fathom
