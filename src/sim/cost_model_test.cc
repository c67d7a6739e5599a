// The calibration table of the cost model: published measurements beside what the model says.
#include "sim/cost_model.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "sim/overlap_times.h"
#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

const ModelShape kV3;

double percent(double model, double reference) { return 100 * (model / reference - 1); }

// DeepGEMM README at a6d97a1, H800: groups, M, N, K, TFLOPS.
constexpr double kDeepGemm[][5] = {
    {1, 64, 2112, 7168, 206},     {1, 64, 24576, 1536, 289},   {1, 64, 32768, 512, 219},
    {1, 64, 7168, 16384, 336},    {1, 64, 4096, 7168, 287},    {1, 64, 7168, 2048, 295},
    {1, 128, 2112, 7168, 352},    {1, 128, 24576, 1536, 535},  {1, 128, 32768, 512, 358},
    {1, 128, 7168, 16384, 645},   {1, 128, 4096, 7168, 533},   {1, 128, 7168, 2048, 510},
    {1, 4096, 2112, 7168, 1058},  {1, 4096, 24576, 1536, 990}, {1, 4096, 32768, 512, 590},
    {1, 4096, 7168, 16384, 1358}, {1, 4096, 4096, 7168, 1304}, {1, 4096, 7168, 2048, 1025},
    {4, 8192, 4096, 7168, 1297},  {4, 8192, 7168, 2048, 1099}, {8, 4096, 4096, 7168, 1288},
    {8, 4096, 7168, 2048, 1093},  {1, 1024, 4096, 7168, 1233}, {1, 1024, 7168, 2048, 925},
    {2, 512, 4096, 7168, 1040},   {2, 512, 7168, 2048, 916},   {4, 256, 4096, 7168, 932},
    {4, 256, 7168, 2048, 815}};

TEST(CostModel, DeepGemmTable) {
  const HardwareProfile hw = test_profile("h800");
  double sum_squares = 0;
  for (const auto& [groups, m, n, k, tflops] : kDeepGemm) {
    const double reference_us = 2 * groups * m * n * k / (tflops * 1e12) * 1e6;
    const double error = percent(gemm_us(hw, {m, n, k, groups}), reference_us);
    EXPECT_LE(std::abs(error), 25) << m << "x" << n << "x" << k;
    sum_squares += error * error;
  }
  const double rms = std::sqrt(sum_squares / std::size(kDeepGemm));
  std::printf("DeepGEMM: 28 rows, rms %.2f %%\n", rms);
  EXPECT_LE(rms, 9.0);
}

TEST(CostModel, DeepEpLowLatencyTable) {
  const HardwareProfile hw = test_profile("h800");
  constexpr double kTable[][3] = {{8, 77, 114},   {16, 118, 195},  {32, 155, 273},
                                  {64, 173, 314}, {128, 192, 369}, {256, 194, 360}};
  for (const auto& [ep, dispatch, combine] : kTable) {
    EXPECT_LE(std::abs(percent(dispatch_us(hw, kV3, 128, ep), dispatch)), 10) << ep;
    EXPECT_LE(std::abs(percent(combine_us(hw, kV3, 128, ep), combine)), 10) << ep;
  }
}

TEST(CostModel, KernelsOfTheDecodeProfile) {
  const DecodeStages s =
      decode_stages(test_profile("h800"), kV3, {128, 256, 2, 1, true}, {128, 128, 128 * 4096.0});
  EXPECT_LE(std::abs(percent(s.attn0, 63)), 7);
  EXPECT_LE(std::abs(percent(s.attn1, 344)), 7);
  EXPECT_LE(std::abs(percent(s.shared, 34)), 7);
  EXPECT_LE(std::abs(percent(s.mlp, 128)), 7);
  EXPECT_LE(std::abs(percent(s.dispatch, 187)), 7);
  EXPECT_LE(std::abs(percent(s.combine, 394)), 8);
  const std::array<OverlapStageTimes, 2> both = {overlap_times(s), overlap_times(s)};
  EXPECT_LE(std::abs(percent(61 * steady_layer(decode_table(), both).layer_us / 1e3, 87.3)), 2);
}

struct DecodeRow {
  const char* name;
  DecodeUnitShape unit;
  double requests, kv, acceptance;
  bool overlap, sglang;
  double tokens_per_s_per_node;
};

TEST(CostModel, PublishedDecodeRowsWithin8Percent) {
  const DecodeRow rows[] = {
      {"DeepSeek profile EP128, 60 % acceptance", {128, 256, 2, 1, true}, 128, 4096, 0.6, true, false, 18598},
      {"SGLang EP72, 256 requests, 2K", {72, 288, 1, 1, false}, 256, 2050, 0, true, true, 22282},
      {"SGLang EP72, 128 x 2, 4K", {72, 288, 2, 1, true}, 128, 4050, 0.6, true, true, 17373},
      {"the same without overlap", {72, 288, 2, 1, true}, 128, 4050, 0.6, false, true, 12929}};
  for (const DecodeRow& row : rows) {
    HardwareProfile hw = test_profile("h800");
    if (row.sglang) {  // they report experts 25 % slower and a longer host gap
      hw.gemm_expert_efficiency = 0.6;
      hw.step_host_ms = 6;
    }
    const DecodeLoad load{row.requests, row.requests, row.requests * row.kv};
    const double step_s = decode_step_us(hw, kV3, row.unit, load, row.overlap) / 1e6;
    const double rate = row.requests * 8 * (1 + row.acceptance) / step_s;
    std::printf("%-42s published %6.0f  model %6.0f  %+5.1f %%\n", row.name, row.tokens_per_s_per_node, rate,
                percent(rate, row.tokens_per_s_per_node));
    EXPECT_LE(std::abs(percent(rate, row.tokens_per_s_per_node)), 8) << row.name;
  }
  const double step_ms =
      decode_step_us(test_profile("h800"), kV3, rows[0].unit, {128, 128, 128 * 4096.0}) / 1e3;
  EXPECT_LE(std::abs(percent(step_ms, 96)), 3);
}

TEST(CostModel, IscaBoundExactly) {
  const double us = isca_all_to_all_us(32, 9, 7000, 50);
  EXPECT_DOUBLE_EQ(us, 120.96);
  const double step_ms = 2 * 61 * us / 1e3;
  EXPECT_NEAR(step_ms, 14.76, 0.005);
  EXPECT_NEAR(1e3 / step_ms, 67.8, 0.05);
}

// Prompt tokens per second and node in forwards of 16,384 tokens a rank.
double prefill_rate(const HardwareProfile& hw, double prompt_tokens, double expert_imbalance) {
  PrefillUnitShape unit;
  unit.expert_imbalance = expert_imbalance;
  const double layer_us = prefill_layer_us(hw, kV3, unit, {16384, 16384 * prompt_tokens / 2});
  return 8 * 16384 / ((61 * layer_us / 1e6) + hw.prefill_host_ms / 1e3);
}

// The overlap table carries the exposed communication; what is left of the bubble is fitted to DeepSeek's
// published prefill profile, here again from that row.
TEST(CostModel, TheBubbleIsRefittedBesideTheOverlapTable) {
  HardwareProfile hw = test_profile("h800");
  constexpr double kPublished = 62713;
  const double rate = prefill_rate(hw, 4096, 1);
  std::printf("prefill profile: published %.0f  model %.0f  %+.2f %%\n", kPublished, rate,
              percent(rate, kPublished));
  EXPECT_LE(std::abs(percent(rate, kPublished)), 0.1);
  double low = 1, high = 2;
  for (int i = 0; i < 50; ++i) {
    hw.prefill_bubble = (low + high) / 2;
    (prefill_rate(hw, 4096, 1) > kPublished ? low : high) = hw.prefill_bubble;
  }
  std::printf("prefill bubble beside the table: profile %.4f, refit %.4f\n",
              test_profile("h800").prefill_bubble, low);
  EXPECT_NEAR(test_profile("h800").prefill_bubble, low, 0.0005);
}

// SGLang's own efficiency in prefill is lower and its skew higher than the 1.25 it reports (its run with
// perfect balance is 5 % under DeepSeek's profile): the model is a bound that it stays within 18 % of.
TEST(CostModel, SglangPrefillRowsAreBelowTheModel) {
  constexpr double kRows[][2] = {{1024, 57700}, {2048, 54500}, {4096, 50300}};
  for (const auto& [prompt_tokens, published] : kRows) {
    const double rate = prefill_rate(test_profile("h800"), prompt_tokens, 1.25);
    std::printf("SGLang prefill, %4.0f tokens: published %.0f  model %.0f  %+.1f %%\n", prompt_tokens,
                published, rate, percent(rate, published));
    EXPECT_GE(percent(rate, published), 0);
    EXPECT_LE(percent(rate, published), 18);
  }
}

TEST(CostModel, PrefillLinearForm) {
  const HardwareProfile hw = test_profile("h800");
  const PrefillLoad load{16384, 4 * 4096.0 * 4096 / 2};
  // aiconfigurator, H100, free GPU: MLA 9.72 + MoE 14.26 + shared 1.14 ms.
  EXPECT_LE(std::abs(percent(prefill_compute_us(hw, kV3, {}, load, true) / 1e3, 25.1)), 10);
  EXPECT_GT(prefill_compute_us(hw, kV3, {}, load), prefill_all_to_all(hw, kV3, {}, load.tokens).us());

  const PrefillUnitShape production{32, 288, 1.08, 1.29, 5400};
  const LayerCost cost = fit_prefill_cost(hw, kV3, production);
  std::printf("prefill cost: c0 %.1f us, a %.4f us/token, b %.4e us/pair\n", cost.c0_us, cost.a_us_per_token,
              cost.b_us_per_pair);
  EXPECT_LE(std::abs(percent(cost.c0_us, 72.8)), 2);
  EXPECT_LE(std::abs(percent(cost.a_us_per_token, 1.7451)), 1);
  EXPECT_LE(std::abs(percent(cost.b_us_per_pair, 1.7011e-4)), 0.1);
  for (const double tokens : {2048.0, 4096.0, 12000.0, 16384.0}) {
    const double exact = prefill_compute_us(hw, kV3, production, {tokens, tokens * 3000});
    EXPECT_LE(std::abs(percent(cost.c0_us + cost.rank_us(tokens, tokens * 3000), exact)), 1) << tokens;
    // With what the table exposes; short contexts, where the network outweighs attention, a little more.
    const auto linear_us = [&](double pairs) {
      return hw.prefill_bubble * (cost.c0_us + cost.rank_us(tokens, pairs) + cost.exposed_us(tokens));
    };
    for (const double context : {2048.0, 5400.0, 20000.0}) {
      const PrefillLoad part{tokens, tokens * context};
      EXPECT_LE(
          std::abs(percent(linear_us(part.attended_pairs), prefill_layer_us(hw, kV3, production, part))), 1)
          << tokens << " " << context;
    }
    EXPECT_LE(std::abs(percent(linear_us(tokens * 512),
                               prefill_layer_us(hw, kV3, production, {tokens, tokens * 512}))),
              3);
  }
}

// A token visits no more nodes than its unit has; within one node the node's links carry it.
TEST(CostModel, PrefillSendsToItsUnitsNodesOnly) {
  const HardwareProfile hw = test_profile("h800");
  const auto us = [&](double ranks) { return prefill_all_to_all(hw, kV3, {ranks, 288}, 8192).us(); };
  EXPECT_EQ(us(1), 0);
  EXPECT_NEAR(us(16) / us(32), 2 / hw.prefill_nodes_per_token, 1e-12);
  EXPECT_NEAR(us(24) / us(32), 3 / hw.prefill_nodes_per_token, 1e-12);
  EXPECT_EQ(us(32), us(64));  // the calibrated units and larger ones: 3.14 of their nodes
  // Eight experts hit 5.25 of eight ranks; DeepEP's bandwidth inside a node.
  const double one_node_us =
      8192 * 5.251 * hw.prefill_contention *
      (hw.dispatch_bytes / hw.dispatch_local_gb_per_s + hw.combine_bytes / hw.combine_local_gb_per_s) / 1e3;
  EXPECT_NEAR(us(8) / one_node_us, 1, 1e-3);
  EXPECT_LT(us(8), us(16));
  // With less to hide, a layer of a small unit leaves no more of it exposed.
  const PrefillLoad load{16384, 16384 * 512.0};
  EXPECT_LE(prefill_exposed_us(hw, kV3, {16, 288}, load), prefill_exposed_us(hw, kV3, {32, 288}, load));
}

TEST(CostModel, WeightsAndKvRoom) {
  const HardwareProfile hw = test_profile("h800");
  EXPECT_EQ(kV3.kv_bytes_per_token(false), 70272);
  EXPECT_EQ(kV3.kv_bytes_per_token(true), 71424);
  EXPECT_NEAR(weight_bytes_per_rank(kV3, 2, false) / 1e9, 25.0, 0.1);
  EXPECT_NEAR(weight_bytes_per_rank(kV3, 9, false) / 1e9, 42.9, 0.1);
  EXPECT_NEAR(kv_room_tokens(hw, kV3, 2, false), 669e3, 1e3);
  EXPECT_NEAR(kv_room_tokens(hw, kV3, 2, true), 652e3, 1e3);
}

TEST(CostModel, StepSensitivitiesAtBatch96) {
  const HardwareProfile hw = test_profile("h800");
  const DecodeUnitShape unit{144, 288, 2, 1.2, true};
  const DecodeLoad load{96, 96, 96 * 4989 * 1.09};
  const double base = decode_step_us(hw, kV3, unit, load);
  const auto change = [&](const HardwareProfile& h, const DecodeUnitShape& u, const DecodeLoad& l,
                          bool overlap) { return percent(decode_step_us(h, kV3, u, l, overlap), base); };
  DecodeUnitShape balanced = unit;
  balanced.expert_imbalance = 1;
  HardwareProfile april = hw;
  april.mla_peak_tflops = 660;
  HardwareProfile no_host = hw;
  no_host.step_host_ms = 0;
  EXPECT_NEAR(change(hw, unit, load, false), 35.5, 2.5);
  EXPECT_NEAR(change(hw, balanced, load, true), -5.3, 1);
  EXPECT_NEAR(change(april, unit, load, true), -4.2, 1);
  EXPECT_NEAR(change(no_host, unit, load, true), -3.9, 0.5);
}

// The CPU profile against the engine's own int8 cells of model M on two threads (docs/performance.md): decode
// of so many requests at a context, and prefill of a prompt in the steps that the server cuts it into.
TEST(CostModel, TheCpuProfileIsItsEngines) {
  const HardwareProfile hw = test_profile("cpu-2core");
  ModelShape m;
  m.hidden = 2048, m.heads = 16, m.layers = 6, m.dense_layers = 1, m.mtp_layers = 0, m.vocab = 32768;
  m.experts = 64, m.experts_per_token = 6, m.shared_experts = 2;
  m.moe_intermediate = 1408, m.dense_intermediate = 10944;
  const DecodeUnitShape decode{1, m.experts, 1, 1, false};
  double squares = 0;
  const struct {
    double requests, context, tokens_per_s;
  } kDecode[] = {{1, 128, 60.1},  {4, 128, 107},   {16, 128, 194}, {64, 128, 407},
                 {1, 2048, 43.0}, {16, 2048, 143}, {64, 2048, 259}};
  for (const auto& cell : kDecode) {
    const DecodeLoad load{cell.requests, cell.requests, cell.requests * (cell.context + 0.5)};
    const double error =
        percent(decode_step_us(hw, m, decode, load), cell.requests / cell.tokens_per_s * 1e6);
    std::printf("decode of %2.0f at %4.0f: %+5.1f %%\n", cell.requests, cell.context, error);
    EXPECT_LT(std::abs(error), 20) << cell.requests << " at " << cell.context;
    squares += error * error;
  }
  EXPECT_LT(std::sqrt(squares / std::size(kDecode)), 12);
  const auto prefill_us = [&](std::initializer_list<double> steps) {
    double us = 0, done = 0;
    for (const double tokens : steps) {
      const LayerCost cost = fit_prefill_cost(hw, m, {1, m.experts, 1, done / tokens, done + tokens / 2});
      us += prefill_forward_us(hw, m, cost, cost.rank_us(tokens, tokens * (done + tokens / 2)), tokens);
      done += tokens;
    }
    return us;
  };
  EXPECT_NEAR(percent(prefill_us({512}), 512 / 571.0 * 1e6), 0, 5);
  EXPECT_NEAR(percent(prefill_us({683, 683, 682}), 2048 / 494.0 * 1e6), 0, 5);
}

}  // namespace
}  // namespace fathom::sim
