// The autoscaler at work in the simulated day: budget, flips, starts that fail; cases G4, G6 and G7.
#include "sim/day_autoscaler.h"

#include <gtest/gtest.h>

#include "sim/fleet_file.h"
#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

constexpr int kPrefill = 0, kDecode = 1;

DayFiles published_day() {
  return parse_day_files("day_load.csv", read_file_for_test(source_path("data/day_load.csv")).value(),
                         "day_schedule.csv", read_file_for_test(source_path("data/day_schedule.csv")).value())
      .value();
}

// A quarter of the published day's requests, so that a part of each hour takes a second.
FleetOptions quarter_day(double fraction) {
  FleetOptions options;
  options.requests_per_day /= 4;
  options.fraction = fraction;
  return options;
}

struct Scaled {
  FleetResult result;
  std::vector<std::string> log;

  bool tells(std::string_view what) const {
    return std::any_of(log.begin(), log.end(),
                       [&](const std::string& line) { return line.find(what) != std::string::npos; });
  }
};

Scaled run_scaled(FleetOptions options, const DayFiles& day, UnitCounts initial,
                  const DayAutoscaleOptions& scaling) {
  const HardwareProfile hw = test_profile("h800-day");
  const AutoscaleOptions autoscale = autoscale_options(hw, {}, options, scaling).value();
  options.scale_initial = initial_units(initial, autoscale);
  DayAutoscaler autoscaler(autoscale, options, day.load, scaling.knows_yesterday, options.scale_initial,
                           day.start_hour);
  options.scale = [&](const ScaleInput& in) { return autoscaler.decide(in); };
  options.scale_interval_s = autoscale.interval_s;
  options.scale_units_max = {autoscale.budget_nodes / autoscale.unit[kDecode].nodes,
                             autoscale.budget_nodes / autoscale.unit[kPrefill].nodes};
  Scaled out{run_day(hw, {}, day, options, {}), {}};
  out.log = autoscaler.log();
  return out;
}

// A tenth of each hour: serving, starting and draining nodes together at every instant, once with room and
// once under less than the day wants.
TEST(DayAutoscaler, TheBudgetHoldsAtEveryInstant) {
  const Scaled roomy = run_scaled(quarter_day(0.1), published_day(), {3, 9}, {.budget_nodes = 100});
  std::printf("budget of 100: at most %d nodes at once\n", roomy.result.nodes_peak);
  EXPECT_GT(roomy.result.nodes_peak, 70);
  EXPECT_LE(roomy.result.nodes_peak, 100);
  const int tight_budget = roomy.result.nodes_peak - 12;
  const Scaled tight = run_scaled(quarter_day(0.1), published_day(), {3, 9}, {.budget_nodes = tight_budget});
  EXPECT_LE(tight.result.nodes_peak, tight_budget);
  EXPECT_GT(tight.result.nodes_peak, tight_budget - 18);
  EXPECT_TRUE(tight.tells("budget"));
  EXPECT_GT(tight.result.metrics.total().decode_drain_node_seconds, 0);
  EXPECT_EQ(tight.result.lost_requests, 0);
  EXPECT_EQ(tight.result.kv_over_room_steps, 0);
}

// Decisions fed by hand.
class ByHand {
 public:
  ByHand(int budget_nodes, UnitCounts initial)
      : options_(autoscale_options(test_profile("h800-day"), {}, {}, {.budget_nodes = budget_nodes}).value()),
        autoscaler_(options_, {}, published_day().load, false, initial, 0) {}

  // One interval on; demand in units' capacities.
  ScaleOutput decide(double prefill_units, double decode_units, UnitCounts draining, bool blocked = false) {
    now_s_ += options_.interval_s;
    ScaleInput in;
    in.day_second = now_s_;
    in.arrived_computed_tokens_per_s = prefill_units * options_.unit[kPrefill].tokens_per_s;
    in.arrived_output_tokens_per_s = decode_units * options_.unit[kDecode].tokens_per_s;
    in.draining = draining;
    in.starts_blocked = blocked;
    const ScaleOutput out = autoscaler_.decide(in);
    EXPECT_LE((out.held.prefill + draining.prefill) * options_.unit[kPrefill].nodes +
                  (out.held.decode + draining.decode) * options_.unit[kDecode].nodes,
              options_.budget_nodes);
    return out;
  }
  // As above, and what waits, in seconds of so many units' work.
  ScaleOutput decide_queued(double prefill_units, double decode_units, double queued_prefill_s,
                            double queued_decode_s) {
    now_s_ += options_.interval_s;
    ScaleInput in;
    in.day_second = now_s_;
    in.arrived_computed_tokens_per_s = prefill_units * options_.unit[kPrefill].tokens_per_s;
    in.arrived_output_tokens_per_s = decode_units * options_.unit[kDecode].tokens_per_s;
    in.queued_computed_tokens = queued_prefill_s * in.arrived_computed_tokens_per_s;
    in.queued_output_tokens = queued_decode_s * in.arrived_output_tokens_per_s;
    return autoscaler_.decide(in);
  }
  const std::string& last_line() const { return autoscaler_.log().back(); }

 private:
  const AutoscaleOptions options_;
  DayAutoscaler autoscaler_;
  double now_s_ = 0;
};

// A queue of a forward or two is a busy unit's; what is beyond is worked off in two minutes.
TEST(DayAutoscaler, AQueueIsDemand) {
  ByHand fleet(278, {4, 10});
  EXPECT_EQ(fleet.decide_queued(9.4, 3.7, 4, 0).held, (UnitCounts{4, 10}));
  const UnitCounts grown = fleet.decide_queued(9.4, 3.7, 60, 40).held;
  EXPECT_GE(grown.prefill, 14);  // half a minute's work in a quarter of the time
  EXPECT_EQ(grown.decode, 6);
}

// A flash crowd in the simulated day leaves a queue that rates alone do not tell of: an autoscaler that sees
// it has more units for it, and the crowd waits less.
TEST(DayAutoscaler, AFlashCrowdsQueueBringsUnits) {
  struct Seen {
    int prefill_units = 0;
    double ttft_p99_s = 0;
  };
  const auto run = [](bool sees_queue) {
    std::array<double, 24> shape;
    shape.fill(0.01);
    shape[1] = shape[2] = 1;
    const DayFiles day{DayLoad(shape), DaySchedule({{0, 3 * 18 + 5 * 4, {3, 5}}}), 0, 0};
    FleetOptions options;
    options.requests_per_day = 2.5e6;
    options.faults.push_back(parse_fault("flash-crowd@02:00,for=600,factor=2").value());
    const HardwareProfile hw = test_profile("h800-day");
    const AutoscaleOptions autoscale = autoscale_options(hw, {}, options, {.budget_nodes = 240}).value();
    options.scale_initial = {3, 5};
    DayAutoscaler autoscaler(autoscale, options, day.load, false, options.scale_initial, day.start_hour);
    double queued_max = 0;
    options.scale = [&](ScaleInput in) {
      queued_max = std::max(queued_max, in.queued_computed_tokens);
      if (!sees_queue) in.queued_computed_tokens = in.queued_output_tokens = 0;
      return autoscaler.decide(in);
    };
    options.scale_interval_s = autoscale.interval_s;
    options.scale_units_max = {autoscale.budget_nodes / autoscale.unit[kDecode].nodes,
                               autoscale.budget_nodes / autoscale.unit[kPrefill].nodes};
    const FleetResult result = run_day(hw, {}, day, options, {});
    EXPECT_LE(result.nodes_peak, 240);
    EXPECT_EQ(result.lost_requests, 0);
    Seen seen;
    for (const DaySchedule::Change& change : result.units)
      seen.prefill_units = std::max(seen.prefill_units, change.units.prefill);
    seen.ttft_p99_s = result.metrics.total().ttft_ms.percentile(0.99) / 1e3;
    std::printf("flash crowd, queue %s: up to %.0f tokens queued, %d prefill units, first token p99 %.2f s\n",
                sees_queue ? "seen" : "unseen", queued_max, seen.prefill_units, seen.ttft_p99_s);
    return seen;
  };
  const Seen with = run(true), without = run(false);
  EXPECT_GT(with.prefill_units, without.prefill_units);
  EXPECT_LT(with.ttft_p99_s, without.ttft_p99_s);
}

// Two decode units are nine prefill units, which start as the drains free their nodes.
TEST(DayAutoscaler, FlipsRolesAsDrainsFreeTheirNodes) {
  ByHand fleet(10 * 4 + 6 * 18, {6, 10});
  ScaleOutput out = fleet.decide(17.5, 3.3, {});
  EXPECT_EQ(out.serving, (UnitCounts{4, 10}));
  EXPECT_NE(fleet.last_line().find("flip 2 decode -> 9 prefill"), std::string::npos) << fleet.last_line();
  out = fleet.decide(17.5, 3.3, {2, 0});
  EXPECT_EQ(out.held, (UnitCounts{4, 10}));
  out = fleet.decide(17.5, 3.3, {1, 0});  // 18 nodes are free: four units start
  EXPECT_EQ(out.held, (UnitCounts{4, 14}));
  EXPECT_EQ(out.serving, (UnitCounts{4, 10}));
  out = fleet.decide(17.5, 3.3, {0, 0});
  EXPECT_EQ(out.held, (UnitCounts{4, 19}));
  out = fleet.decide(17.5, 3.3, {});
  EXPECT_EQ(out.serving, (UnitCounts{4, 14}));
  out = fleet.decide(17.5, 3.3, {});
  EXPECT_EQ(out.serving, (UnitCounts{4, 19}));
}

// What drained at the end of one part has freed its nodes long before the next, and so have the units that
// left in between: the morning's growth finds the whole budget.
TEST(DayAutoscaler, DrainsEndBetweenTheSimulatedParts) {
  const AutoscaleOptions options =
      autoscale_options(test_profile("h800-day"), {}, {}, {.budget_nodes = 200}).value();
  std::array<double, 24> shape;
  shape.fill(0.1);
  DayAutoscaler autoscaler(options, {}, DayLoad(shape), false, {6, 10}, 0);
  ScaleInput in;
  in.day_second = 60;
  in.arrived_computed_tokens_per_s = 9 * options.unit[kPrefill].tokens_per_s;
  in.arrived_output_tokens_per_s = 2.2 * options.unit[kDecode].tokens_per_s;
  const UnitCounts first = autoscaler.decide(in).serving;
  ASSERT_LT(first.decode, 6);
  in.day_second = 3600;
  in.draining = {6 - first.decode, 10 - first.prefill};
  const ScaleOutput next = autoscaler.decide(in);
  EXPECT_GE(next.drained.decode, in.draining.decode);
  EXPECT_GE(next.drained.prefill, in.draining.prefill);
  in.day_second = 3660;  // no part in between: what drains keeps its nodes
  EXPECT_EQ(autoscaler.decide(in).drained, UnitCounts{});
}

// A part of each hour under the published budget: nights that drain do not take the morning's nodes.
TEST(DayAutoscaler, AFractionDoesNotStarveTheMorning) {
  FleetOptions options = quarter_day(0.02);
  const DayAutoscaleOptions scaling{.budget_nodes = 80};
  const Scaled scaled = run_scaled(options, published_day(), {3, 9}, scaling);
  const FleetCell total = scaled.result.metrics.total();
  std::printf("first token p99 %.2f s, at most %d nodes\n", total.ttft_ms.percentile(0.99) / 1e3,
              scaled.result.nodes_peak);
  EXPECT_LT(total.ttft_ms.percentile(0.99) / 1e3, 9);
  EXPECT_LE(scaled.result.nodes_peak, 80);
  EXPECT_EQ(scaled.result.lost_requests, 0);
}

// One decode unit is four prefill units and two nodes freed.
TEST(DayAutoscaler, WhatDoesNotDivideIsFreed) {
  ByHand fleet(10 * 4 + 6 * 18, {6, 10});
  fleet.decide(12.5, 4.1, {});
  EXPECT_NE(fleet.last_line().find("flip 1 decode -> 4 prefill"), std::string::npos) << fleet.last_line();
  const ScaleOutput out = fleet.decide(12.5, 4.1, {});
  EXPECT_EQ(out.held, (UnitCounts{5, 14}));
}

// Case G6 by hand: the start is given up after a quarter of an hour, nothing is paid for during the back-off,
// and the next one comes up.
TEST(DayAutoscaler, G6_AStartThatNeverComesUpIsGivenUp) {
  ByHand fleet(278, {3, 10});
  EXPECT_EQ(fleet.decide(9, 4.5, {}, true).held.decode, 5);
  ScaleOutput out;
  for (int i = 0; i < 14; ++i) out = fleet.decide(9, 4.5, {}, true);
  EXPECT_EQ(out.held.decode, 5);
  EXPECT_EQ(out.serving.decode, 3);
  out = fleet.decide(9, 4.5, {}, true);
  EXPECT_EQ(out.held.decode, 3);
  EXPECT_NE(fleet.last_line().find("start timed out"), std::string::npos) << fleet.last_line();
  for (int i = 0; i < 9; ++i) out = fleet.decide(9, 4.5, {}, true);
  EXPECT_EQ(out.held.decode, 3);
  EXPECT_NE(fleet.last_line().find("back-off"), std::string::npos) << fleet.last_line();
  for (int i = 0; i < 4; ++i) out = fleet.decide(9, 4.5, {}, false);
  EXPECT_EQ(out.serving.decode, 5);
}

// Case G6 in the day: no nodes to be had while the morning's load grows.
TEST(DayAutoscaler, G6_NoNodesInTheMorning) {
  FleetOptions options = quarter_day(0.05);
  Fault fault = parse_fault("no-nodes@00:00,for=10800").value();
  fault.at_s = 19 * 3600;  // 07:00 to 10:00 of a day from 12:00
  options.faults.push_back(fault);
  const Scaled scaled = run_scaled(options, published_day(), {3, 9}, {.budget_nodes = 100});
  EXPECT_TRUE(scaled.tells("start timed out"));
  EXPECT_TRUE(scaled.tells("back-off"));
  UnitCounts before, during, after;
  for (const DaySchedule::Change& change : scaled.result.units) {
    if (change.second < 19 * 3600) before = during = change.units;
    if (change.second < 22 * 3600) during = change.units;
    after = change.units;
  }
  EXPECT_LE(during.decode, before.decode);
  EXPECT_GT(after.decode, during.decode);
  EXPECT_EQ(scaled.result.lost_requests, 0);
}

// Case G4 in the simulator: a flat load on the line between two fleets, with the noise of its arrivals.
TEST(DayAutoscaler, G4_DoesNotOscillateNearAThreshold) {
  std::array<double, 24> flat;
  flat.fill(1);
  const DayFiles day{DayLoad(flat), DaySchedule({{0, 36 + 32, {2, 8}}}), 0, 0};
  FleetOptions options;
  options.fraction = 0.05;
  const AutoscaleOptions units = autoscale_options(test_profile("h800-day"), {}, options, {}).value();
  options.requests_per_day = units.unit[kDecode].tokens_per_s * (1 - units.headroom) * kDaySeconds /
                             options.lengths.output_mean_tokens;
  const Scaled scaled = run_scaled(options, day, {1, 6}, {.budget_nodes = 100});
  int decode_changes = 0, prefill_turns = 0, direction = 0;
  for (size_t i = 1; i < scaled.result.units.size(); ++i) {
    const UnitCounts from = scaled.result.units[i - 1].units, to = scaled.result.units[i].units;
    decode_changes += from.decode != to.decode;
    const int step = to.prefill - from.prefill;
    prefill_turns += step * direction < 0;
    if (step != 0) direction = step;
  }
  EXPECT_LE(decode_changes, 1);
  EXPECT_LE(prefill_turns, 1);
  EXPECT_EQ(scaled.result.lost_requests, 0);
}

// Case G7 in the simulator: objectives below what an idle unit can do are said, and the fleet is that of the
// load alone.
TEST(DayAutoscaler, G7_AnUnreachableSloIsReportedNotChased) {
  const FleetOptions plain = quarter_day(0.02);
  FleetOptions strict = plain;
  strict.slo_tokens_per_s_per_user = 500;
  strict.slo_ttft_s = 0.01;
  const DayAutoscaleOptions scaling{.budget_nodes = 200};
  const Scaled usual = run_scaled(plain, published_day(), {3, 9}, scaling);
  const Scaled chased = run_scaled(strict, published_day(), {3, 9}, scaling);
  EXPECT_FALSE(usual.tells("slo unreachable"));
  EXPECT_TRUE(chased.tells("decode 3 (slo unreachable"));
  EXPECT_TRUE(chased.tells("(slo unreachable, wants"));
  EXPECT_EQ(chased.result.nodes_peak, usual.result.nodes_peak);
}

// Tied, every step of the day is a whole group: one decode unit and three prefill units, above two.
TEST(DayAutoscaler, TiedUnitsMoveInGroups) {
  const DayAutoscaleOptions scaling{.budget_nodes = 140, .tied = true};
  const Scaled tied = run_scaled(quarter_day(0.01), published_day(), {3, 11}, scaling);
  EXPECT_GT(tied.result.units.size(), 3u);
  for (const DaySchedule::Change& change : tied.result.units)
    EXPECT_EQ(change.units.prefill, 3 * change.units.decode + 2) << change.second;
  const auto small = autoscale_options(test_profile("h800-day"), {}, {}, {.budget_nodes = 37, .tied = true});
  EXPECT_EQ(small.status().message(),
            "--tied: a budget of 37 nodes, one decode unit and five prefill units take 38");
}

// Where the budget does not carry the day, the clairvoyant fleet stays within it and says what it leaves.
TEST(DayAutoscaler, TheBoundKnowsTheBudget) {
  const DayLoad load = published_day().load;
  AutoscaleOptions options = autoscale_options(test_profile("h800-day"), {}, {}, {}).value();
  options.budget_nodes = 400;
  const Clairvoyant roomy = clairvoyant_day(load, options, {});
  EXPECT_EQ(roomy.not_carried_share[kPrefill], 0);
  EXPECT_EQ(roomy.not_carried_share[kDecode], 0);
  options.budget_nodes = 150;
  const Clairvoyant tight = clairvoyant_day(load, options, {});
  EXPECT_LT(tight.node_hours, 24 * 150);
  EXPECT_LT(tight.node_hours, roomy.node_hours);
  EXPECT_GT(tight.not_carried_share[kPrefill], 0.1);
  EXPECT_GT(tight.not_carried_share[kDecode], 0.1);
  options.budget_nodes = 400;
  options.units_max[kDecode] = 2;
  EXPECT_GT(clairvoyant_day(load, options, {}).not_carried_share[kDecode], 0.5);
}

// Without MTP the fleet runs the model its units are sized for: a decode unit at its capacity reads at the
// speed asked for.
TEST(DayAutoscaler, WithoutMtpFleetAndCapacityAreOfOneModel) {
  const HardwareProfile hw = test_profile("h800-day");
  FleetOptions options;
  options.fraction = 0.02;
  options.mtp_acceptance = 0;
  EXPECT_GT(decode_room_tokens(hw, {}, options), decode_room_tokens(hw, {}, FleetOptions{}));
  const AutoscaleOptions units = autoscale_options(hw, {}, options, {}).value();
  std::array<double, 24> flat;
  flat.fill(1);
  const DayFiles day{DayLoad(flat), DaySchedule({{0, 18 + 20, {1, 5}}}), 0, 0};
  options.requests_per_day =
      units.unit[kDecode].tokens_per_s * kDaySeconds / options.lengths.output_mean_tokens;
  const FleetResult result = run_day(hw, {}, day, options, {});
  FleetCell warm;
  for (int h = 8; h < 24; ++h) warm.merge(result.metrics.hour(h));
  EXPECT_NEAR(warm.tokens_x_speed / warm.tokens, 18, 1.2);
}

TEST(DayAutoscaler, StartsWithinItsBudget) {
  AutoscaleOptions options = autoscale_options(test_profile("h800-day"), {}, {}, {}).value();
  EXPECT_EQ(initial_units({9, 29}, options), (UnitCounts{9, 29}));
  options.budget_nodes = 200;
  const UnitCounts fewer = initial_units({9, 29}, options);
  EXPECT_LE(fewer.decode * 18 + fewer.prefill * 4, 200);
  EXPECT_GT(fewer.decode * 18 + fewer.prefill * 4, 200 - 18);
  options.budget_nodes = 22;
  EXPECT_EQ(initial_units({9, 29}, options), (UnitCounts{1, 1}));
}

// Tied units start in whole groups, and a fleet that holds none is refused.
TEST(DayAutoscaler, TiedUnitsStartInGroups) {
  const HardwareProfile hw = test_profile("h800-day");
  DayAutoscaleOptions wanted;
  wanted.tied = true;
  AutoscaleOptions options = autoscale_options(hw, {}, {}, wanted).value();
  EXPECT_EQ(starting_units({9, 29}, options), (UnitCounts{9, 29}));
  EXPECT_EQ(starting_units({2, 3}, options), (UnitCounts{2, 8}));
  EXPECT_EQ(starting_units({2, 9}, options), (UnitCounts{3, 11}));
  options.budget_nodes = 50;
  EXPECT_EQ(starting_units({2, 3}, options), (UnitCounts{1, 5}));
  wanted.units_max = {4, 9};
  options = autoscale_options(hw, {}, {}, wanted).value();
  EXPECT_EQ(options.units_max[kDecode], 2);
  EXPECT_EQ(options.units_max[kPrefill], 8);
  EXPECT_EQ(starting_units({4, 9}, options), (UnitCounts{2, 8}));
  wanted.units_max = {2, 3};
  EXPECT_EQ(autoscale_options(hw, {}, {}, wanted).status().message(),
            "--tied: one decode unit and five prefill units go together, the fleet has 2 and 3");
}

}  // namespace
}  // namespace fathom::sim
