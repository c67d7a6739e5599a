// Which engine steps next and how long a prefill step may be: learned costs, and the gap they must keep to.
#include "engine/arbiter.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace fathom {
namespace {

TEST(Arbiter, alternates_while_both_have_work) {
  EXPECT_EQ(choose_step(true, true, StepKind::kPrefill), StepKind::kDecode);
  EXPECT_EQ(choose_step(true, true, StepKind::kDecode), StepKind::kPrefill);
  EXPECT_EQ(choose_step(true, true, StepKind::kNone), StepKind::kPrefill);
  EXPECT_EQ(choose_step(false, true, StepKind::kDecode), StepKind::kDecode);
  EXPECT_EQ(choose_step(true, false, StepKind::kPrefill), StepKind::kPrefill);
  EXPECT_EQ(choose_step(false, false, StepKind::kDecode), StepKind::kNone);
}

TEST(Arbiter, learns_a_fixed_and_a_per_token_cost) {
  StepCosts costs;
  EXPECT_EQ(costs.prefill_tokens_within(1), 0) << "nothing is known yet";
  Rng rng(3);
  for (int i = 0; i < 100; ++i) {
    const auto tokens = static_cast<int64_t>(64 + rng.next_below(448));
    costs.observe_prefill(tokens, 0.002 + 1e-5 * static_cast<double>(tokens));
  }
  EXPECT_NEAR(costs.prefill_tokens_within(0.005), 300, 2);
  EXPECT_EQ(costs.prefill_tokens_within(0.001), 0);
  // The machine slows down fourfold, at one chunk size: predictions near that size follow.
  for (int i = 0; i < 40; ++i) costs.observe_prefill(256, 4 * (0.002 + 1e-5 * 256));
  EXPECT_NEAR(costs.prefill_tokens_within(4 * (0.002 + 1e-5 * 256)), 256, 3);
}

// The gap a decoding client sees is one prefill step plus one decode step. With steps that cost what they
// cost, chunks settle where the gap stays within the limit, or at the least chunk.
TEST(Arbiter, chunks_keep_the_gap_within_the_limit) {
  for (const double per_token : {2e-6, 2e-5, 2e-4}) {
    for (const double decode : {1e-3, 1e-2, 0.08, 0.2}) {
      EngineOptions options;
      StepCosts costs;
      double gap = 0;
      int32_t chunk = 0;
      for (int i = 0; i < 50; ++i) {
        chunk = choose_chunk_tokens(options, costs, true, 1);
        ASSERT_EQ(chunk % 64, 0);
        ASSERT_TRUE(chunk >= 64 && chunk <= options.prefill_chunk_tokens);
        const double prefill = 0.0005 + per_token * chunk;
        gap = prefill + decode;
        costs.observe_prefill(chunk, prefill);
        costs.observe_decode(decode);
      }
      const double limit = std::min(options.decode_gap_seconds_max, options.decode_gap_ratio_max * decode);
      if (chunk > 64) {
        EXPECT_LE(gap, limit * 1.01) << per_token << " " << decode;
      }
      const double larger = 0.0005 + per_token * (chunk + 64) + decode;
      if (chunk < options.prefill_chunk_tokens) {
        EXPECT_GE(larger, limit * 0.99) << "no smaller than needed";
      }
    }
  }
}

TEST(Arbiter, ranks_share_the_chunk) {
  EngineOptions options;
  EXPECT_EQ(options.prefill_tokens_per_rank(), 1024);
  options.prefill_ep = 3;
  EXPECT_EQ(options.prefill_tokens_per_rank(), 384);
  options.prefill_ep = 32;
  EXPECT_EQ(options.prefill_tokens_per_rank(), 128);
  options.prefill_chunk_tokens = 64;
  EXPECT_EQ(options.prefill_tokens_per_rank(), 64);
}

TEST(Arbiter, with_nothing_decoding_the_step_limit_rules) {
  EngineOptions options;
  StepCosts costs;
  costs.observe_prefill(64, 0.1);
  EXPECT_EQ(choose_chunk_tokens(options, costs, false, 1), 960);
  EXPECT_EQ(choose_chunk_tokens(options, costs, false, 4), 192);
  costs = StepCosts();
  costs.observe_prefill(64, 0.001);
  EXPECT_EQ(choose_chunk_tokens(options, costs, false, 1), options.prefill_chunk_tokens);
}

TEST(Arbiter, tells_how_long_a_prefill_step_will_last) {
  StepCosts costs;
  EXPECT_EQ(costs.prefill_seconds(100), 0);
  for (int i = 0; i < 20; ++i) costs.observe_prefill(64 + 64 * (i % 4), 0.1 + 0.001 * (64 + 64 * (i % 4)));
  EXPECT_NEAR(costs.prefill_seconds(512), 0.1 + 0.512, 1e-6);
}

TEST(Arbiter, a_shared_step_is_stopped_unless_it_ends_soon_and_never_twice_running) {
  using std::chrono::milliseconds;
  SharedStepStop rule;
  const TimePoint begin{};
  const auto may = [&](int expected_ms, int elapsed_ms) {
    rule.on_begin(begin, milliseconds(expected_ms));
    const bool stops = rule.may_stop(begin + milliseconds(elapsed_ms));
    rule.on_end();
    return stops;
  };
  EXPECT_TRUE(may(0, 10)) << "of unknown length";
  EXPECT_FALSE(may(20, 10));
  EXPECT_FALSE(may(20, 400)) << "late, but not for long yet";
  EXPECT_TRUE(may(20, 600));
  EXPECT_TRUE(may(1500, 100));
  EXPECT_FALSE(may(1500, 1100));
  EXPECT_TRUE(may(1500, 1600)) << "later than expected: nobody knows for how long";

  rule.on_begin(begin, milliseconds(1500));
  ASSERT_TRUE(rule.may_stop(begin));
  rule.on_stop();
  EXPECT_FALSE(rule.may_stop(begin)) << "stopped already";
  rule.on_end();
  EXPECT_FALSE(may(1500, 100)) << "the step after one that was stopped runs to its end";
  EXPECT_TRUE(may(1500, 100));
}

}  // namespace
}  // namespace fathom
