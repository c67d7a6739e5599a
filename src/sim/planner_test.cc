#include "sim/planner.h"

#include <gtest/gtest.h>

#include "sim/autoscale_replay.h"
#include "sim/model_file.h"
#include "sim/plan_report.h"
#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

PlanInput published_layout() {
  PlanInput in;
  in.hw = test_profile("h800-day");
  in.decode_nodes = 18;
  in.prefill_nodes = 4;
  in.peak_over_mean = 1.33;
  in.kv_imbalance = 1.1;
  in.slo_tokens_per_s_per_user = 19.5;
  return in;
}

TEST(Planner, ThePublishedUnitsCarryThePublishedDay) {
  const PlanOutcome outcome = make_plan(published_layout());
  ASSERT_TRUE(outcome.plan.has_value()) << outcome.reason;
  const PlanResult& plan = *outcome.plan;
  std::printf(
      "published layout: %d D + %d P at the peak, %.0f out tok/s per decode node, f_ep %.3f, B %.1f\n",
      plan.peak_decode_units, plan.peak_prefill_units, plan.decode.output_tokens_per_s / 18,
      plan.decode.expert_imbalance, plan.decode.requests_per_rank);
  EXPECT_NEAR(plan.peak_decode_units, 9, 1);
  EXPECT_NEAR(plan.peak_prefill_units, 29, 4);
  EXPECT_NEAR(plan.decode.output_tokens_per_s / 18, 15900, 1600);
  EXPECT_NEAR(plan.decode.expert_imbalance, 1.2, 0.06);
  EXPECT_EQ(plan.decode.redundant, 32);
  EXPECT_NEAR(plan.kv_read_gb_per_s_peak, 369, 25);
}

TEST(Planner, MoreIsNeverLess) {
  const PlanInput base = published_layout();
  const PlanResult plan = *make_plan(base).plan;
  PlanInput more = base;
  more.requests_per_day *= 1.5;
  EXPECT_GT(make_plan(more).plan->node_hours, plan.node_hours);
  PlanInput faster = base;
  faster.slo_tokens_per_s_per_user *= 1.2;
  EXPECT_GT(make_plan(faster).plan->node_hours_fluid, plan.node_hours_fluid);
  PlanInput cached = base;
  cached.hit_share = 0.7;
  EXPECT_LT(make_plan(cached).plan->node_hours_fluid, plan.node_hours_fluid);
  for (const Sensitivity& s : plan_sensitivities(base, plan)) {
    if (s.input == "requests_per_day") {
      EXPECT_NEAR(*s.node_hours_plus, 0.10, 1e-6);
      EXPECT_NEAR(*s.cost_plus, 0, 1e-6);
    }
    if (s.input == "price_usd_per_gpu_hour") {
      EXPECT_NEAR(*s.cost_plus, 0.10, 1e-6);
    }
  }
}

TEST(Planner, SaysWhyNothingFits) {
  PlanInput in = published_layout();
  in.slo_tokens_per_s_per_user = 500;
  EXPECT_NE(make_plan(in).reason.find("a single request gets"), std::string::npos) << make_plan(in).reason;
  in = published_layout();
  in.slo_ttft_s = 0.01;
  EXPECT_NE(make_plan(in).reason.find("time to first token"), std::string::npos) << make_plan(in).reason;
  in = published_layout();
  in.nodes_max = 100;
  EXPECT_NE(make_plan(in).reason.find("the limit is 100"), std::string::npos);
  in = published_layout();
  in.decode_nodes = 1;
  EXPECT_NE(make_plan(in).reason.find("weights leave room"), std::string::npos) << make_plan(in).reason;
}

TEST(Planner, BadInputNamesTheField) {
  PlanInput in = published_layout();
  in.hit_share = 1;
  EXPECT_EQ(validate_plan_input(in).message(), "hit_share: 1 is outside 0..1");
  in = published_layout();
  in.requests_per_day = 0;
  EXPECT_EQ(validate_plan_input(in).message(), "requests_per_day: 0 must be above 0");
}

TEST(Planner, OneServerDoesBoth) {
  PlanInput in;
  in.hw = test_profile("cpu-2core");
  in.model = known_model_shape("deepseek-v2-lite").value();
  in.requests_per_day = 200;
  in.input_tokens_mean = 300;
  in.output_tokens_mean = 150;
  in.output_cv2 = 0.6;
  in.slo_ttft_s = 60;
  in.slo_tokens_per_s_per_user = 3;
  in.mtp_acceptance = 0;
  const PlanOutcome outcome = make_plan(in);
  ASSERT_TRUE(outcome.plan.has_value()) << outcome.reason;
  EXPECT_TRUE(outcome.plan->colocated);
  EXPECT_EQ(outcome.plan->peak_nodes, 1);
}

TEST(Planner, FitsAProfileToMeasurements) {
  HardwareProfile slow = test_profile("h800");
  slow.decode_phi = 1.1;
  const DecodeUnitShape decode{144, 288, 2, 1.2, true};
  std::string rows = "phase,load,length,time_ms\n";
  for (const double b : {40.0, 80.0, 120.0}) {
    rows += fmt::format("decode,{},4989,{}\n", b, decode_step_us(slow, {}, decode, {b, b, b * 4989}) / 1e3);
  }
  const auto fit = fit_profile("m.csv", rows, test_profile("h800"), {}, decode, {});
  ASSERT_TRUE(fit.ok());
  EXPECT_NEAR(fit->hw.decode_phi, 1.1, 1e-6);
  EXPECT_NEAR(fit->decode_rms_percent, 0, 1e-6);
  const auto bad = fit_profile("m.csv", "decode,40,4989\n", slow, {}, decode, {});
  EXPECT_EQ(bad.status().message(), "m.csv:1: time_ms: missing");
}

// Cases G4 and G7: a dry run neither oscillates nor passes its budget.
TEST(Planner, DryRunOfTheAutoscalerFollowsARampWithinItsBudget) {
  const PlanInput in = published_layout();
  const AutoscaleOptions options = autoscale_options_of(in, *make_plan(in).plan);
  Trace trace{"ramp", 512, {}};
  for (int s = 0; s < 4 * 3600; ++s) {  // one request stands for many: up for two hours, then down
    const int level = s < 7200 ? s : 14400 - s;
    trace.requests.push_back({s * int64_t{1'000'000}, 1000 * level / 10, 270 * level / 10, {}});
    if (trace.requests.back().output_tokens == 0) trace.requests.pop_back();
  }
  const AutoscaleReplay replay = replay_autoscaler(trace, options, in.hit_share, 10);
  EXPECT_GT(replay.hours.num_changes, 4);
  EXPECT_LT(replay.hours.num_changes, 60);
  EXPECT_LE(replay.hours.nodes_max, options.budget_nodes);
  EXPECT_FALSE(replay.lines.empty());
}

TEST(Planner, DeploymentsNameEveryUnit) {
  const PlanInput in = published_layout();
  const PlanResult plan = *make_plan(in).plan;
  const std::string toml = emit_deployment("deepseek-v3", in, plan, EmitFormat::kToml);
  EXPECT_NE(toml.find(fmt::format("[decode]\nunits = {}\n", plan.peak_decode_units)), std::string::npos)
      << toml;
  const std::string kubernetes = emit_deployment("deepseek-v3", in, plan, EmitFormat::kKubernetes);
  size_t sets = 0;
  for (size_t at = 0; (at = kubernetes.find("kind: StatefulSet", at)) != std::string::npos; ++at) ++sets;
  EXPECT_EQ(sets, static_cast<size_t>(plan.peak_decode_units + plan.peak_prefill_units));
  EXPECT_NE(emit_deployment("deepseek-v3", in, plan, EmitFormat::kSlurm).find("sbatch"), std::string::npos);
}

}  // namespace
}  // namespace fathom::sim
