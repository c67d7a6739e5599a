// The tables against the closed forms the cost model was calibrated with.
#include "sim/overlap_times.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

TEST(OverlapTimes, TheDecodeTableGivesTheClosedForm) {
  const HardwareProfile hw = test_profile("h800");
  for (const double requests : {8.0, 40.0, 88.0, 128.0, 200.0}) {
    for (const double kv : {500.0, 4989.0, 20000.0}) {
      const DecodeStages s =
          decode_stages(hw, {}, {144, 288, 2, 1.2, true}, {requests * 1.15, requests, requests * kv});
      EXPECT_NEAR(evaluated_layer_us(s) / overlapped_layer_us(s), 1, 1e-3) << requests << " " << kv;
    }
  }
}

TEST(OverlapTimes, ThePlainTableGivesTheSum) {
  const DecodeStages s =
      decode_stages(test_profile("h800"), {}, {72, 288, 2, 1, true}, {128, 128, 128 * 4050.0}, false);
  const OverlapStageTimes times = overlap_times(s);
  const OverlapTimeline line = evaluate_overlap(plain_table(), std::span(&times, 1), 8);
  EXPECT_NEAR(line.layer_us / sequential_layer_us(s), 1, 1e-3);
}

// The table's own share of prefill's bubble, at the calibration row and in production's mix.
TEST(OverlapTimes, PrefillComputeHidesItsCommunication) {
  const HardwareProfile hw = test_profile("h800");
  const PrefillLoad load{16384, 4 * 4096.0 * 4096 / 2};
  const OverlapStageTimes half = prefill_overlap_times(hw, {}, {}, load);
  const std::array<OverlapStageTimes, 2> both = {half, half};
  const OverlapTimeline line = evaluate_overlap(prefill_table(), both, 8);
  const double compute_us = 2 * half.compute_us();
  std::printf("prefill layer by the table: %.0f us, compute %.0f us, bubble %.3f\n", line.layer_us,
              compute_us, line.layer_us / compute_us);
  EXPECT_GE(line.layer_us, compute_us * (1 - 1e-9));
  EXPECT_NEAR(line.layer_us / compute_us, 1.037, 0.002);  // the profile's comment says so
  EXPECT_NEAR(prefill_exposed_us(hw, {}, {}, load), line.layer_us - compute_us, 1e-6);
}

}  // namespace
}  // namespace fathom::sim
