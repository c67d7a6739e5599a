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

}  // namespace
}  // namespace fathom
