// For tests of block-exact replays: two prefill and two decode units of 16 ranks, and a load for them.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "sim/block_fleet.h"
#include "sim/synthetic.h"

namespace fathom::sim {

inline BlockFleetOptions two_by_sixteen_ranks() {
  BlockFleetOptions options;
  options.prefill_units = options.decode_units = 2;
  options.prefill_ranks = options.decode_ranks = 16;
  options.prefill_blocks_per_rank = 400;
  options.decode_blocks_per_rank = 300;
  options.chunk_tokens = 4096;
  options.deadline_s = 60;
  return options;
}

// The same under all checkers.
inline BlockFleetOptions small_fleet() {
  BlockFleetOptions options = two_by_sixteen_ranks();
  options.lease_s = 1;
  options.check_books_often = true;
  options.liveness_s = 30;
  return options;
}

inline Trace small_load(uint64_t seed, double requests_per_s = 40, double seconds = 6) {
  SyntheticOptions options;
  options.seconds = seconds;
  options.requests_per_s = requests_per_s;
  options.burst_share = 0.3;
  options.lengths.input_mean_tokens = 900;
  options.lengths.input_tokens_max = 8000;
  options.lengths.output_mean_tokens = 60;
  options.lengths.output_cv2 = 1;
  return synthetic_trace(options, seed);
}

inline void expect_clean(const BlockFleetResult& result, const std::string& what) {
  for (const std::string& text : result.violations) ADD_FAILURE() << what << ": " << text;
  EXPECT_EQ(result.finished + result.expired + result.refused_too_long, result.requests) << what;
}

}  // namespace fathom::sim
