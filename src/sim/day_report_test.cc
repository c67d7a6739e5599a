// What a day's report says of itself: marks and published values follow what was run.
#include "sim/day_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "sim/active_faults.h"
#include "sim/fleet_file.h"
#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

const DayFiles& day() {
  static const DayFiles files =
      parse_day_files("day_load.csv", read_file_for_test(source_path("data/day_load.csv")).value(),
                      "day_schedule.csv", read_file_for_test(source_path("data/day_schedule.csv")).value())
          .value();
  return files;
}

FleetOptions a_little_of_each_hour() {
  FleetOptions options;
  options.fraction = 0.001;
  return options;
}

// One day that ran; reports of it are made under what different command lines would have said.
const FleetResult& ran() {
  static const FleetResult result =
      run_day(test_profile("h800-day"), ModelShape{}, day(), a_little_of_each_hour(), {});
  return result;
}

struct Told {
  HardwareProfile hw = test_profile("h800-day");
  DayRun run;
  FleetResult result = ran();
};

Report told(const std::function<void(Told&)>& change) {
  Told t;
  t.run.options = a_little_of_each_hour();
  change(t);
  return day_report(t.hw, ModelShape{}, day(), t.run, t.result);
}

std::vector<std::string> beside_published(const Report& report) {
  std::vector<std::string> names;
  for (const Figure& f : report.figures) {
    if (f.published) names.push_back(f.name);
  }
  return names;
}

Origin origin(const Report& report, const char* name) { return report.find(name)->origin; }

const std::vector<std::string> kOfTheLoad = {"theoretical_income_usd", "input_tokens", "output_tokens",
                                             "hit_share"};
constexpr const char* kOfTheUnits[] = {"nodes_mean",
                                       "node_hours",
                                       "decode_nodes_mean",
                                       "prefill_nodes_mean",
                                       "cost_usd",
                                       "margin_percent",
                                       "input_tokens_per_s_per_prefill_node",
                                       "output_tokens_per_s_per_decode_node",
                                       "cost_usd_per_million_output_tokens"};

TEST(DayReport, ThePublishedDayStandsBesideItsFigures) {
  const Report report = told([](Told&) {});
  EXPECT_EQ(beside_published(report).size(), 16u);
  EXPECT_EQ(report.title, "The published day, simulated");
  EXPECT_EQ(origin(report, "decode_tokens_per_s_per_user"), Origin::kFit);
  for (const char* name : kOfTheUnits) EXPECT_EQ(origin(report, name), Origin::kInput) << name;
  EXPECT_EQ(origin(report, "nodes_peak"), Origin::kPrediction);
  EXPECT_EQ(origin(report, "ttft_s_p99"), Origin::kPrediction);
  EXPECT_NE(report.lead.find("One constant of the cost model is fitted"), std::string::npos);
  EXPECT_NE(report.lead.find("the first 0.1 % of each hour"), std::string::npos);
}

// What the schedule fixed, the autoscaler chooses: an input becomes a prediction, and is not the published
// day's.
TEST(DayReport, UnderTheAutoscalerUnitsArePredictions) {
  const Report report = told([](Told& t) { t.run.inputs.scale = "autoscale", t.run.budget_nodes = 278; });
  for (const char* name : kOfTheUnits) EXPECT_EQ(origin(report, name), Origin::kPrediction) << name;
  EXPECT_EQ(beside_published(report), kOfTheLoad);
  EXPECT_EQ(origin(report, "decode_tokens_per_s_per_user"), Origin::kPrediction);
  EXPECT_EQ(origin(report, "output_tokens"), Origin::kInput);
  EXPECT_EQ(report.title, "The published day's load, simulated");
  EXPECT_NE(report.lead.find("which the autoscaler starts and stops"), std::string::npos);
  EXPECT_EQ(report.lead.find("is fitted"), std::string::npos);
}

TEST(DayReport, OtherRunsAreNotThePublishedDay) {
  const auto names = [](const std::function<void(Told&)>& change) { return beside_published(told(change)); };
  // Other units: only the load is the published one.
  EXPECT_EQ(names([](Told& t) { t.run.inputs.other_fleet = true; }), kOfTheLoad);
  EXPECT_EQ(names([](Told& t) { t.run.inputs.other_schedule = true; }), kOfTheLoad);
  EXPECT_EQ(names([](Told& t) { t.run.inputs.scale = "none"; }), kOfTheLoad);
  // Another load: nothing is.
  EXPECT_TRUE(names([](Told& t) { t.run.inputs.other_load = true; }).empty());
  EXPECT_TRUE(names([](Told& t) { t.run.options.requests_per_day = 1e6; }).empty());
  EXPECT_TRUE(names([](Told& t) { t.run.options.lengths.output_mean_tokens = 400; }).empty());
  EXPECT_TRUE(names([](Told& t) {
                t.run.options.faults.push_back(parse_fault("flash-crowd@12:00,for=1").value());
              }).empty());
  // Another policy, a fault, another GPU: load and units are, users' speed is not.
  const auto has_speed = [&](const std::function<void(Told&)>& change) {
    const std::vector<std::string> found = names(change);
    EXPECT_GT(found.size(), kOfTheLoad.size());
    return std::find(found.begin(), found.end(), "decode_tokens_per_s_per_user") != found.end();
  };
  EXPECT_FALSE(has_speed([](Told& t) { t.run.options.decode_policy = DecodePolicy::kRandom; }));
  EXPECT_FALSE(has_speed([](Told& t) { t.run.options.prefill_policy = PrefillPolicy::kRoundRobin; }));
  EXPECT_FALSE(has_speed([](Told& t) { t.run.options.perfect_decode_balance = true; }));
  EXPECT_FALSE(has_speed([](Told& t) { t.hw = test_profile("h200"); }));
  EXPECT_FALSE(has_speed(
      [](Told& t) { t.run.options.faults.push_back(parse_fault("unit-loss@12:00,for=1").value()); }));
  // Nothing fitted, or a constant of one's own: beside the published speed, as a prediction.
  for (const auto& change : std::initializer_list<std::function<void(Told&)>>{
           [](Told& t) { t.hw = test_profile("h800"); }, [](Told& t) { t.run.inputs.phi_given = true; },
           [](Told& t) { t.run.options.mtp_acceptance = 0.8; },
           [](Told& t) { t.run.options.decode_expert_imbalance = 1.1; }}) {
    EXPECT_TRUE(has_speed(change));
    EXPECT_EQ(origin(told(change), "decode_tokens_per_s_per_user"), Origin::kPrediction);
  }
}

TEST(DayReport, APriceOfOnesOwnIsNotThePublishedCost) {
  const Report report = told(
      [](Told& t) { ASSERT_TRUE(set_profile_constant(t.hw, "hardware.price_usd_per_gpu_hour", 3).ok()); });
  EXPECT_DOUBLE_EQ(report.find("cost_usd")->value, 87072 * 1.5);
  EXPECT_FALSE(report.find("cost_usd")->published);
  EXPECT_TRUE(report.find("node_hours")->published);
  EXPECT_EQ(report.find("cost_usd")->note, "3 USD per GPU hour, an input");
  const auto price = std::find_if(report.facts.begin(), report.facts.end(),
                                  [](const auto& fact) { return fact.first == "price_usd_per_gpu_hour"; });
  ASSERT_NE(price, report.facts.end());
  EXPECT_EQ(price->second, "3");
}

// What a fleet served of a load that was too much for it is no input.
TEST(DayReport, WhatWasServedOfTooMuchIsAPrediction) {
  const Report refused = told([](Told& t) { t.result.metrics.cells[5].refused_requests = 1; });
  const Report behind = told([](Told& t) { t.result.metrics.hour_ends.back() = {100, 0, 3}; });
  for (const Report* report : {&refused, &behind}) {
    for (const char* name :
         {"output_tokens", "theoretical_income_usd", "output_tokens_per_s_per_decode_node"})
      EXPECT_EQ(origin(*report, name), Origin::kPrediction) << name;
    EXPECT_EQ(origin(*report, "requests"), Origin::kInput);
    EXPECT_EQ(origin(*report, "node_hours"), Origin::kInput);
  }
}

// The saving counts drains on both sides: the schedule's by its closed units, or as a run of it measured
// them.
TEST(DayReport, TheSavingCountsDrainsOnBothSides) {
  const auto report_of = [](std::optional<double> measured) {
    return told([&](Told& t) {
      t.run.inputs.scale = "autoscale", t.run.budget_nodes = 278;
      t.run.clairvoyant.node_hours = 5000;
      t.run.schedule_drain_node_hours = measured;
    });
  };
  const Report estimated = report_of({});
  const auto value = [](const Report& report, const char* name) { return report.find(name)->value; };
  // Seven decode units and 21 prefill units close.
  EXPECT_NEAR(value(estimated, "schedule_drain_node_hours"), (7 * 18 * 1200 + 21 * 4 * 30) / 3600.0, 1e-9);
  const Report measured = report_of(37.5);
  EXPECT_EQ(value(measured, "schedule_drain_node_hours"), 37.5);
  EXPECT_GT(value(measured, "drain_node_hours"), 0);
  EXPECT_NEAR(value(measured, "node_hours_saved_share"),
              1 - (value(measured, "node_hours") + value(measured, "drain_node_hours")) / (5442 + 37.5),
              1e-12);
  EXPECT_NEAR(value(measured, "node_hours_saved_share_clairvoyant_bound"), 1 - 5000 / 5479.5, 1e-12);
}

// The bias of a fraction is a figure: from the same day at half of it, whose transients count twice.
TEST(DayReport, TheBiasOfAFractionIsAFigure) {
  EXPECT_EQ(told([](Told&) {}).find("bias_decode_tokens_per_s_per_user_percent"), nullptr);
  const Report report = told([](Told& t) {
    FleetCell half;
    t.run.options.fraction = 0.1;
    half.tokens = 100, half.tokens_x_speed = 100 * 22.0, half.tokens_x_kv = 100 * 4900.0;
    t.run.half_fraction = half;
    for (FleetCell& cell : t.result.metrics.cells) cell.tokens = cell.tokens_x_speed = cell.tokens_x_kv = 0;
    t.result.metrics.cells[3].tokens = 10, t.result.metrics.cells[3].tokens_x_speed = 10 * 21.0;
    t.result.metrics.cells[3].tokens_x_kv = 10 * 4950.0;
  });
  const Figure* speed = report.find("bias_decode_tokens_per_s_per_user_percent");
  ASSERT_NE(speed, nullptr);
  EXPECT_NEAR(speed->value, 100 * (21 / (21 - 0.9) - 1), 1e-9);
  EXPECT_EQ(speed->note,
            "an estimate: 21.00 here, 22.00 at half the fraction, so about 20.10 over the whole day");
  EXPECT_NEAR(report.find("bias_kv_tokens_per_output_token_percent")->value, 100 * (4950 / (4950 + 45.0) - 1),
              1e-9);
}

// Faults have times of their own, so that half a fraction is another day: then the missing figures are named.
TEST(DayReport, BesideFaultsTheBiasOfSpeedIsSaidToBeMissing) {
  const auto says = [](const Report& report) {
    return std::find(report.facts.begin(), report.facts.end(),
                     std::pair<std::string, std::string>{
                         kBiasNotEstimated, "speed and KV per output token: not estimated beside faults"}) !=
           report.facts.end();
  };
  EXPECT_FALSE(says(told([](Told&) {})));
  EXPECT_TRUE(says(
      told([](Told& t) { t.run.options.faults.push_back(parse_fault("unit-loss@12:00,for=1").value()); })));
}

// Policies side by side over seeds, with the gain over kv-capped and the bound no policy passes.
TEST(DayReport, PoliciesStandBesideTheirBound) {
  Report report = told([](Told&) {});
  const auto policy = [](const char* name, std::initializer_list<double> speeds) {
    PolicyDay out{name, ran().metrics, {}};
    for (const double speed : speeds) {
      FleetCell cell;
      cell.tokens = 10, cell.tokens_x_speed = 10 * speed;
      cell.balanced_steps = 2, cell.kv_ratio_sum = 2.2, cell.requests_ratio_sum = 2.4;
      out.totals.push_back(cell);
    }
    return out;
  };
  add_policy_comparison(report, {policy("kv-capped", {20, 22}), policy("fathom", {22, 23})},
                        policy("perfect-balance", {23, 25}));
  const Table& table = report.tables.back();
  ASSERT_EQ(table.rows.size(), 3u);
  EXPECT_EQ(table.rows[0][4], "+0.0 %");
  EXPECT_EQ(table.rows[1], (std::vector<std::string>{"fathom", "22.50", "22.00", "23.00", "+7.1 %", "1.100",
                                                     "1.200", "0.000", "0.00"}));
  EXPECT_EQ(table.rows[2][0], "perfect-balance");
  EXPECT_EQ(table.rows[2][5], "1.000");
  EXPECT_NEAR(report.find("decode_speed_gain_percent_fathom")->value, 100 * (22.5 / 21 - 1), 1e-9);
  EXPECT_NEAR(report.find("decode_speed_gain_percent_perfect_balance")->value, 100 * (24.0 / 21 - 1), 1e-9);
  EXPECT_EQ(report.csv_files.back().name, "policies.csv");
  EXPECT_EQ(std::count(report.csv_files.back().text.begin(), report.csv_files.back().text.end(), '\n'), 4);
}

}  // namespace
}  // namespace fathom::sim
