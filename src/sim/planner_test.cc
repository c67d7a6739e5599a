// Plans of the published layout and of one server, fits to measurements, dry runs of the autoscaler.
#include "sim/planner.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sim/autoscale_replay.h"
#include "sim/day_autoscaler.h"
#include "sim/model_file.h"
#include "sim/plan_report.h"
#include "sim/test_plan.h"
#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

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
  EXPECT_GT(make_plan(faster).plan->node_hours_fluid(), plan.node_hours_fluid());
  PlanInput cached = base;
  cached.hit_share = 0.7;
  EXPECT_LT(make_plan(cached).plan->node_hours_fluid(), plan.node_hours_fluid());
}

// Case G7: objectives below what the hardware can do are said, not chased.
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
  EXPECT_EQ(validate_plan_input(in).message(), "--hit-share: 1 is not at least 0 and below 1");
  in = published_layout();
  in.requests_per_day = 0;
  EXPECT_EQ(validate_plan_input(in).message(), "--requests-per-day: 0 must be above 0");
  in = published_layout();
  in.peak_over_mean = 3;
  EXPECT_EQ(validate_plan_input(in).message(),
            "--peak: 3 is outside 1..2; a sharper day needs its hours (--day-load)");
  in = published_layout();
  in.kv_retention_hours = std::nan("");
  EXPECT_EQ(validate_plan_input(in).message(), "--kv-retention-hours: nan is outside 0..1000000");
  in = published_layout();
  in.kv_imbalance = 0.9;
  EXPECT_EQ(validate_plan_input(in).message(), "--kv-imbalance: 0.9 is outside 1..100");
  in = published_layout();
  in.ttft_p99_forwards = std::nan("");
  EXPECT_EQ(validate_plan_input(in).message(), "--ttft-forwards: nan is outside 1..1000");
  in = published_layout();
  in.spare_units = -1;
  EXPECT_EQ(validate_plan_input(in).message(), "--spare-units: -1 is outside 0..100");
  in = published_layout();
  in.decode_nodes = -1;
  EXPECT_EQ(validate_plan_input(in).message(), "--decode-nodes: -1 is outside 0..128");
  in = published_layout();
  in.requests_per_day = 1e18;
  EXPECT_TRUE(validate_plan_input(in).ok());
  in.requests_per_day = 2e18;
  EXPECT_EQ(validate_plan_input(in).message(), "--requests-per-day: 2e+18 is above 1e18");
  in = published_layout();
  in.nodes_max = 0;
  EXPECT_EQ(validate_plan_input(in).message(), "--nodes-max: 0 is a budget below one unit");
}

TEST(Planner, AFreeFleetAndAModelWithoutSharedExpertsHaveAPlan) {
  PlanInput in = published_layout();
  in.hw.price_usd_per_gpu_hour = 0;
  in.model.shared_experts = 0;
  const PlanOutcome outcome = make_plan(in);
  ASSERT_TRUE(outcome.plan.has_value()) << outcome.reason;
  ExpertSpreads spreads;
  const PlanStory story = tell_plan("m", in, *outcome.plan, spreads);
  for (const std::string& text : {plan_text(story), sensitivities_csv(story)}) {
    EXPECT_EQ(text.find("nan"), std::string::npos) << text;
    EXPECT_EQ(text.find("inf"), std::string::npos) << text;
  }
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
  const auto fit = fit_profile(steps_from_csv("m.csv", rows).value(), test_profile("h800"), {}, decode, {});
  ASSERT_TRUE(fit.ok());
  EXPECT_NEAR(fit->hw.decode_phi, 1.1, 1e-6);
  EXPECT_NEAR(fit->decode_rms_percent, 0, 1e-6);
  const auto error = [](const char* text) { return steps_from_csv("m.csv", text).status().message(); };
  EXPECT_EQ(error("decode,40,4989\n"), "m.csv:1: time_ms: missing");
  EXPECT_EQ(error("encode,40,4989,1\n"), "m.csv:1: phase: \"encode\" is neither decode nor prefill");
  EXPECT_EQ(error("phase,load,length,time_ms\n"), "m.csv:1: phase: no rows");
  EXPECT_EQ(error("phase,load,length,time_ms\ndecode,40,4989,45,9\n"),
            "m.csv:2: column 5: \"9\", expected 4 columns");
  EXPECT_EQ(error("decode,40,4989,45\ndecode,24,4989,4"),
            "m.csv:2: \"decode,24,4989,4\" does not end in a line feed: the file may be torn");
  const auto slow_step = steps_from_csv("m.csv", "# slow\ndecode,40,4989,1e9\n").value();
  EXPECT_TRUE(fit_profile(slow_step, test_profile("h800"), {}, decode, {})
                  .status()
                  .message()
                  .starts_with("2: time_ms: the measured steps give a residual.decode_phi of "));
}

// A unit's slowest rank makes its steps. What the plan's imbalances explain of a measured step is not phi's.
TEST(Planner, AFitDoesNotTakeTheImbalancesForItsFactor) {
  const HardwareProfile hw = test_profile("h800");
  const DecodeUnitShape decode{144, 288, 2, 1.2, true};
  const RankImbalance imbalance{1.10, 1.16};
  std::string rows = "phase,load,length,time_ms\n";
  for (const double b : {40.0, 80.0, 120.0}) {
    const DecodeLoad at{b * imbalance.requests, b, b * 4989 * imbalance.kv};
    rows += fmt::format("decode,{},4989,{}\n", b, decode_step_us(hw, {}, decode, at) / 1e3);
  }
  const auto fit = fit_profile(steps_from_csv("m.csv", rows).value(), hw, {}, decode, {}, imbalance);
  ASSERT_TRUE(fit.ok());
  EXPECT_NEAR(fit->hw.decode_phi, hw.decode_phi, 1e-6);
}

// The counters a server would export after 100 requests of 500 tokens in (100 from the cache) and 51 out, ten
// at a time.
constexpr const char* kMetrics =
    "# HELP fathom_generated_tokens_total tokens sampled\n"
    "# TYPE fathom_generated_tokens_total counter\n"
    "fathom_generated_tokens_total{model=\"m\"} 5100\n"
    "fathom_time_to_first_token_seconds_count{model=\"m\"} 100\n"
    "fathom_prompt_hit_tokens_total{model=\"m\"} 10000\n"
    "fathom_prompt_miss_tokens_total{model=\"m\"} 4e4\n"
    "fathom_decode_steps_total{model=\"m\"} 500\n"
    "fathom_decode_step_seconds_total{model=\"m\"} 10\n"
    "fathom_prefill_steps_total{model=\"m\"} 100\n"
    "fathom_prefill_step_seconds_total{model=\"m\"} 20\n"
    "fathom_prefill_tokens_total{model=\"m\"} 40000\n";

TEST(Planner, ReadsAServersMetrics) {
  ASSERT_TRUE(looks_like_metrics(kMetrics));
  EXPECT_FALSE(looks_like_metrics("phase,load,length,time_ms\n"));
  const auto steps = steps_from_metrics("m.txt", kMetrics, {1, 1, 1, 1}).value();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_TRUE(steps[0].decode);
  EXPECT_DOUBLE_EQ(steps[0].load_per_rank, 10);
  EXPECT_DOUBLE_EQ(steps[0].length, 551);
  EXPECT_DOUBLE_EQ(steps[0].time_ms, 20);
  EXPECT_DOUBLE_EQ(steps[1].load_per_rank, 400);
  EXPECT_DOUBLE_EQ(steps[1].length, 600);
  EXPECT_DOUBLE_EQ(steps[1].time_ms, 200);
  const HardwareProfile cpu = test_profile("cpu-2core");
  const DecodeUnitShape decode{1, 64, 1, 1, false};
  const PrefillUnitShape prefill{1, 64, 1, 0.25};
  const auto fit = fit_profile(steps, cpu, known_model_shape("deepseek-v2-lite").value(), decode, prefill);
  ASSERT_TRUE(fit.ok());
  EXPECT_NE(fit->hw.decode_phi, cpu.decode_phi);
  EXPECT_EQ(fit->decode_rows + fit->prefill_rows, 2);
  std::string torn = kMetrics;
  torn.resize(torn.size() - 6);
  EXPECT_EQ(steps_from_metrics("m.txt", torn, {}).status().message(),
            "m.txt:11: \"fathom_prefill_tokens_total{model=\"m\"} \" does not end in a line feed: the file "
            "is torn");
  EXPECT_EQ(steps_from_metrics("m.txt", "fathom_prompt_hit_tokens_total 3\n", {}).status().message(),
            "m.txt: fathom_time_to_first_token_seconds_count: missing");
  const auto with = [](std::string_view from, std::string_view to) {
    std::string text = kMetrics;
    text.replace(text.find(from), from.size(), to);
    return steps_from_metrics("m.txt", text, {}).status().message();
  };
  EXPECT_EQ(with(" 5100", " 5100 1700000000000"), "");  // a time stamp
  EXPECT_EQ(with(" 5100", " 5100 x"), "m.txt:3: fathom_generated_tokens_total: no value");
  EXPECT_EQ(with(" 5100", " inf"), "m.txt:3: fathom_generated_tokens_total: inf is outside 0..1e+18");
  EXPECT_EQ(with(" 10000", " nan"), "m.txt:5: fathom_prompt_hit_tokens_total: nan is outside 0..1e+18");
  EXPECT_EQ(with(" 5100", " -1"), "m.txt:3: fathom_generated_tokens_total: -1 is outside 0..1e+18");
  EXPECT_EQ(with("{model=\"m\"} 5100", "{model=\"a\\\"} b{\",x=\"}\"} 5100"), "");  // a model of that name
  EXPECT_EQ(with("{model=\"m\"} 5100", "{model=\"m 5100"),
            "m.txt:3: fathom_generated_tokens_total: no value");
  EXPECT_EQ(with("# HELP", "other{a=\"} x\"} NaN\n# HELP"), "");
}

// Case G4: a dry run neither oscillates nor passes its budget.
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
  // Case G6: no nodes to be had for the first hour. Starts are given up, backed off from, and said so.
  const AutoscaleReplay starved = replay_autoscaler(trace, options, in.hit_share, 10, 3600);
  EXPECT_LE(starved.hours.nodes_max, options.budget_nodes);
  const auto says = [&](std::string_view reason) {
    return std::any_of(starved.lines.begin(), starved.lines.end(),
                       [&](const std::string& line) { return line.find(reason) != std::string::npos; });
  };
  EXPECT_TRUE(says(scale_reason_name(ScaleReason::kStartTimedOut)));
  EXPECT_GT(starved.hours.num_changes, 4);  // the blockade over, the fleet follows the load
}

// One request a second that asks for so many units' work of both kinds.
Trace steps_of(const AutoscaleOptions& options,
               std::initializer_list<std::pair<int, double>> seconds_and_units) {
  Trace trace{"steps", 512, {}};
  int64_t now_us = 0;
  for (const auto& [seconds, units] : seconds_and_units) {
    for (int s = 0; s < seconds; ++s, now_us += 1'000'000) {
      const auto tokens = [&](int kind) {
        return static_cast<int32_t>(units * options.unit[kind].tokens_per_s);
      };
      trace.requests.push_back({now_us, tokens(0), tokens(1), {}});
    }
  }
  return trace;
}

TEST(Planner, DryRunStartsWithWhatTheFirstMinutesNeed) {
  const PlanInput in = published_layout();
  AutoscaleOptions options = autoscale_options_of(in, *make_plan(in).plan);
  const Trace trace = steps_of(options, {{1200, 4.4}});
  const AutoscaleReplay replay = replay_autoscaler(trace, options, 0.0, 1);
  EXPECT_EQ(replay.initial, (sim::UnitCounts{5, 5}));
  EXPECT_EQ(replay.hours.num_changes, 0) << replay.lines.front();
  EXPECT_LT(replay.queue_s_max[0], 2);
  options.budget_nodes = 3 * 18 + 3 * 4;
  const sim::UnitCounts fewer = units_for_the_start(trace, options, 0.0, 1);
  EXPECT_LE(fewer.decode * 18 + fewer.prefill * 4, options.budget_nodes);
  options.budget_nodes = 278;
  ASSERT_TRUE(tie_as_published(options).ok());
  EXPECT_EQ(units_for_the_start(trace, options, 0.0, 1), (sim::UnitCounts{5, 17}));
  EXPECT_EQ(units_for_the_start(trace, options, 0.0, 10), (sim::UnitCounts{9, 29}));  // the budget's
}

// A trace of longer prompts than the plan's: no number of units brings the first token in time, which is said
// once and not scaled for.
TEST(Planner, DryRunSaysAnObjectiveThatIsOutOfReach) {
  const PlanInput in = published_layout();
  const PlanResult plan = *make_plan(in).plan;
  AutoscaleOptions options = autoscale_options_of(in, plan);
  EXPECT_LT(options.unit[0].best_slo, options.unit[0].wanted_slo);
  EXPECT_EQ(options.unit[0].wanted_slo, in.slo_ttft_s);
  EXPECT_GT(options.unit[1].best_slo, options.unit[1].wanted_slo);
  EXPECT_EQ(options.unit[1].wanted_slo, in.slo_tokens_per_s_per_user);
  const Trace trace = steps_of(options, {{3600, 3.4}});
  const auto told = [&](const AutoscaleReplay& replay) {
    return std::count_if(replay.lines.begin(), replay.lines.end(), [](const std::string& line) {
      return line.find(scale_reason_name(ScaleReason::kSloUnreachable)) != std::string::npos;
    });
  };
  const AutoscaleReplay usual = replay_autoscaler(trace, options, 0.0, 1);
  EXPECT_EQ(told(usual), 0);
  PlanInput longer = in;
  longer.input_tokens_mean = 400'000, longer.hit_share = 0;
  set_objectives(options, longer, plan);
  EXPECT_GT(options.unit[0].best_slo, options.unit[0].wanted_slo);
  const AutoscaleReplay chased = replay_autoscaler(trace, options, 0.0, 1);
  EXPECT_EQ(told(chased), 1) << chased.lines.size();
  EXPECT_EQ(chased.hours.nodes_max, usual.hours.nodes_max);
}

// What waits is demand: a crowd that the arrivals' rate no longer tells of still gets its units.
TEST(Planner, DryRunSeesItsQueue) {
  const PlanInput in = published_layout();
  AutoscaleOptions options = autoscale_options_of(in, *make_plan(in).plan);
  const Trace trace = steps_of(options, {{1800, 1.8}, {240, 8}, {3600, 1.8}});
  const AutoscaleReplay seeing = replay_autoscaler(trace, options, 0.0, 1);
  EXPECT_EQ(seeing.initial, (sim::UnitCounts{2, 2}));
  EXPECT_GT(seeing.queue_s_max[1], 60);
  EXPECT_EQ(seeing.queue_tokens_end[1], 0);
  EXPECT_NE(
      std::find_if(seeing.lines.begin(), seeing.lines.end(),
                   [](const std::string& line) { return line.find(" s queued)") != std::string::npos; }),
      seeing.lines.end());
  options.catch_up_s = 1e9;  // as if nothing waited
  const AutoscaleReplay blind = replay_autoscaler(trace, options, 0.0, 1);
  EXPECT_GT(seeing.hours.nodes_max, blind.hours.nodes_max);
  EXPECT_LE(seeing.hours.nodes_max, options.budget_nodes);
}

TEST(Planner, HoursCarryTheClockOfTheLoadFile) {
  PlanInput in = published_layout();
  in.start_hour = 12;
  const PlanResult plan = *make_plan(in).plan;
  const PlanStory story{"deepseek-v3", in, plan, {}, {}};
  EXPECT_NE(plan_text(story).find("\n12:00 "), std::string::npos);
  const Report report = plan_report(story);
  EXPECT_EQ(report.charts[0].x_ticks[1].second, "15:00");
  EXPECT_EQ(report.tables[0].rows[13][0], "01:00");
  EXPECT_NE(report.csv_files[0].text.find("\n11:00,"), std::string::npos);
}

TEST(Planner, SparesAreInThePlanAndCarryALoss) {
  PlanInput in = published_layout();
  const PlanResult bare = *make_plan(in).plan;
  in.spare_units = 1;
  const PlanResult spared = *make_plan(in).plan;
  EXPECT_EQ(spared.peak_nodes, bare.peak_nodes + bare.spare_nodes);
  EXPECT_DOUBLE_EQ(spared.node_hours, bare.node_hours + 24 * bare.spare_nodes);
  EXPECT_LT(bare.speed_after_decode_loss, in.slo_tokens_per_s_per_user);
  EXPECT_GE(spared.speed_after_decode_loss, in.slo_tokens_per_s_per_user);
  EXPECT_LE(spared.prefill_use_after_loss, in.prefill_use_max);
}

// Where the cheapest day has a higher peak than the budget, a dearer one with a lower peak still fits.
TEST(Planner, ABudgetPrefersTheLowestPeak) {
  PlanInput in = published_layout();
  in.decode_nodes = in.prefill_nodes = 0;
  const PlanResult cheapest = *make_plan(in).plan;
  const int free_peak = cheapest.peak_nodes;
  int cheaper_peaks = 0;
  PlanOutcome tight;
  for (in.nodes_max = free_peak - 1; in.nodes_max > 0; --in.nodes_max) {
    tight = make_plan(in);
    if (!tight.plan) break;
    ++cheaper_peaks;
    EXPECT_LE(tight.plan->peak_nodes, in.nodes_max);
    EXPECT_GE(tight.plan->node_hours, cheapest.node_hours);
    in.nodes_max = tight.plan->peak_nodes;
  }
  EXPECT_GT(cheaper_peaks, 0);
  EXPECT_NE(tight.reason.find("at the peak, the limit is"), std::string::npos) << tight.reason;
  in.nodes_max = 1;
  EXPECT_FALSE(make_plan(in).plan.has_value());
  in.requests_per_day = 1e17;  // beyond what is counted
  EXPECT_TRUE(make_plan(in).reason.starts_with("nodes: more than ")) << make_plan(in).reason;
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
  for (const EmitFormat format : {EmitFormat::kToml, EmitFormat::kKubernetes, EmitFormat::kSlurm}) {
    const std::string text = emit_deployment("deepseek-v3", in, plan, format);
    EXPECT_NE(text.find(in.hw.hash), std::string::npos) << text;
  }
  EXPECT_TRUE(validate_deployed_model("a \"b\" 'c' $(d) \u00e9/config.json").ok());
  for (const char* bad :
       {"a\nb/config.json", "a\u0085b/config.json", "a\u2028b/config.json", "a\x7f/config.json"}) {
    EXPECT_FALSE(validate_deployed_model(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace fathom::sim
