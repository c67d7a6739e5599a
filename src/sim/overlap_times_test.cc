// The tables against the closed forms the cost model was calibrated with, and where overlap pays.
#include "sim/overlap_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

// The published formula: five stages, two micro-batches half a layer apart.
double formula_us(const DecodeStages& s) {
  return 2 * (s.dispatch_sm + std::max(s.shared + s.attn0, s.dispatch - s.dispatch_sm) + s.mlp +
              s.combine_sm + std::max(s.attn1, s.combine - s.combine_sm));
}

TEST(OverlapTimes, TheDecodeTableGivesTheClosedForm) {
  const HardwareProfile hw = test_profile("h800");
  for (const double requests : {8.0, 40.0, 88.0, 128.0, 200.0}) {
    for (const double kv : {500.0, 4989.0, 20000.0}) {
      const DecodeStages s =
          decode_stages(hw, {}, {144, 288, 2, 1.2, true}, {requests * 1.15, requests, requests * kv});
      const std::array<OverlapStageTimes, 2> both = {overlap_times(s), overlap_times(s)};
      EXPECT_NEAR(steady_layer(decode_table(), both).layer_us / formula_us(s), 1, 1e-3)
          << requests << " " << kv;
    }
  }
}

TEST(OverlapTimes, ThePlainTableGivesTheSum) {
  const DecodeStages s =
      decode_stages(test_profile("h800"), {}, {72, 288, 2, 1, true}, {128, 128, 128 * 4050.0}, false);
  const double sum = s.attn0 + s.attn1 + s.shared + s.mlp + s.dispatch + s.combine;
  EXPECT_NEAR(plain_decode_layer(s).layer_us / sum, 1, 1e-9);
  EXPECT_NEAR(plain_decode_layer(s).idle_us, s.dispatch + s.combine, 1e-6);
}

// Small batches run one stage after another: two halves read every weight twice. A step never takes longer
// with overlap allowed than without, and from the published unit's night on it is the table that is charged.
TEST(OverlapTimes, OverlapIsChargedWhereItPays) {
  const HardwareProfile hw = test_profile("h800");
  const DecodeUnitShape unit{144, 288, 2, 1.2, true};
  int pays_from = 0;
  for (int requests = 1; requests <= 160; ++requests) {
    const DecodeLoad load{requests * 1.15, 1.0 * requests, requests * 4989.0};
    const DecodeStages halves = decode_stages(hw, {}, unit, load),
                       whole = decode_stages(hw, {}, unit, load, false);
    const SteadyLayer layer = decode_layer(halves, whole);
    EXPECT_LE(layer.layer_us, std::min(formula_us(halves), plain_decode_layer(whole).layer_us) * (1 + 1e-3));
    if (layer.table != &decode_table()) pays_from = requests + 1;
    EXPECT_LE(decode_step_us(hw, {}, unit, load), decode_step_us(hw, {}, unit, load, false));
  }
  std::printf("overlap pays from %d requests a rank on\n", pays_from);
  EXPECT_GT(pays_from, 1);
  EXPECT_LT(pays_from, 60);
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
