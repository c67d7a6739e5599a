// The autoscaler on single snapshots, on the published day, and under arbitrary histories; cases G4, G6 and
// G7.
#include "balance/autoscale.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>

#include "balance/fleet_ledger.h"
#include "base/rng.h"

namespace fathom {
namespace {

constexpr int kPrefill = 0, kDecode = 1;

// The published fleet: 278 nodes, units of 4 and 18; capacities a little above the busiest hour's load per
// node.
AutoscaleOptions published_options() {
  AutoscaleOptions options;
  options.unit[kPrefill] = {.nodes = 4, .tokens_per_s = 39'000.0 * 4, .start_s = 120, .drain_s = 30};
  options.unit[kDecode] = {.nodes = 18, .tokens_per_s = 16'800.0 * 18, .start_s = 120, .drain_s = 600};
  options.budget_nodes = 278;
  return options;
}

AutoscaleSnapshot running(int prefill, int decode, double prefill_demand, double decode_demand) {
  AutoscaleSnapshot snapshot;
  snapshot.now_s = 1e6;
  snapshot.units[kPrefill].serving = prefill;
  snapshot.units[kDecode].serving = decode;
  snapshot.tokens_per_s[kPrefill] = prefill_demand;
  snapshot.tokens_per_s[kDecode] = decode_demand;
  return snapshot;
}

// Share of the published day's load per hour from 12:00 (UTC+8), percent.
constexpr double kDayShare[24] = {4.81, 5.08, 5.43, 5.51, 5.43, 4.96, 4.77, 5.26, 5.46, 5.48, 5.53, 5.30,
                                  3.87, 3.19, 2.33, 1.41, 1.12, 1.12, 1.41, 2.43, 4.11, 5.24, 5.42, 5.32};
// Linear between the hours' middles, any number of days.
double day_load(double time_s, double tokens_per_day) {
  const double hour = std::fmod(time_s / 3600 + 23.5, 24.0);
  const int h = static_cast<int>(hour);
  const double share = kDayShare[h] + (hour - h) * (kDayShare[(h + 1) % 24] - kDayShare[h]);
  return tokens_per_day * share / 100 / 3600;
}
std::vector<LoadPoint> day_history(double from_s, double to_s) {
  std::vector<LoadPoint> history;
  for (double t = from_s; t < to_s; t += 60) history.push_back({t, {day_load(t, 266e9), day_load(t, 168e9)}});
  return history;
}

TEST(Autoscale, names_the_field_of_bad_options) {
  AutoscaleOptions options = published_options();
  EXPECT_TRUE(validate_autoscale(options).ok());
  options.budget_nodes = 21;
  EXPECT_EQ(validate_autoscale(options).message(),
            "budget_nodes: 21 is below the 22 nodes of the smallest fleet");
  options = published_options();
  options.unit[kDecode].tokens_per_s = 0;
  EXPECT_EQ(validate_autoscale(options).message(), "decode.tokens_per_s: 0 is not above 0");
  const auto error = [](double AutoscaleRules::* field, double value) {
    AutoscaleOptions bad = published_options();
    bad.*field = value;
    return validate_autoscale(bad).message();
  };
  EXPECT_EQ(error(&AutoscaleRules::hysteresis, 0.95),
            "headroom 0.05 and hysteresis 0.95 must be shares that leave capacity");
  EXPECT_EQ(error(&AutoscaleRules::catch_up_s, 0), "catch_up_s: 0 is not above 0");
  EXPECT_EQ(error(&AutoscaleRules::minimum_stay_s, -1), "minimum_stay_s: -1 is negative");
  EXPECT_EQ(error(&AutoscaleRules::backoff_s_max, 10), "backoff_s_max: 10 is below backoff_s 600");
  EXPECT_EQ(error(&AutoscaleRules::level_max, 0.9),
            "level_min 0.5 and level_max 0.9 must lie on either side of 1");
}

// How full the target makes either kind, and how far apart they are.
TEST(Autoscale, a_decision_states_the_use_it_leads_to) {
  const AutoscaleOptions options = published_options();
  const AutoscaleDecision decision = autoscale(running(20, 6, 2.5e6, 1.2e6), options);
  for (int k = 0; k < kNumUnitKinds; ++k) {
    const double capacity = decision.target[k] * options.unit[k].tokens_per_s;
    EXPECT_DOUBLE_EQ(decision.use[k], decision.forecast_tokens_per_s[k] / capacity);
  }
  EXPECT_DOUBLE_EQ(decision.use_summary().max_load, std::max(decision.use[0], decision.use[1]));
  EXPECT_GE(decision.use_summary().max_over_mean(), 1);
}

TEST(Autoscale, missing_data_holds_and_zero_is_zero) {
  AutoscaleSnapshot snapshot = running(20, 6, 0, 0);
  snapshot.tokens_per_s[kDecode].reset();
  const AutoscaleDecision decision = autoscale(snapshot, published_options());
  EXPECT_EQ(decision.target[kDecode], 6);
  EXPECT_EQ(decision.reason[kDecode], ScaleReason::kNoData);
  EXPECT_EQ(decision.target[kPrefill], 1);
  EXPECT_EQ(decision.reason[kPrefill], ScaleReason::kShrink);
}

// Tied, either kind's demand decides both, so one that is not reported holds both; a lowered budget ends,
// too.
TEST(Autoscale, missing_data_holds_a_tied_fleet) {
  AutoscaleOptions options = published_options();
  options.tied_prefill_per_decode = 3, options.tied_prefill_base = 2;
  for (const int missing : {kPrefill, kDecode}) {
    for (const double demand : {0.0, 1e9}) {
      AutoscaleSnapshot snapshot = running(20, 4, demand, demand);
      snapshot.tokens_per_s[missing].reset();
      const AutoscaleDecision decision = autoscale(snapshot, options);
      EXPECT_EQ(decision.target[kPrefill], 20);
      EXPECT_EQ(decision.target[kDecode], 4);
      EXPECT_EQ(decision.reason[kPrefill], ScaleReason::kNoData);
      EXPECT_EQ(decision.reason[kDecode], ScaleReason::kNoData);
    }
  }
  options.budget_nodes = 100;
  const AutoscaleDecision over = autoscale(running(20, 6, 2.7e6, 1.6e6), options);
  EXPECT_LE(over.target[kPrefill], 20);
  EXPECT_LE(over.target[kDecode], 6);
}

// Case G4: load around the line between 1 and 2 units, noisy, for a day. One change at most, not one per
// wobble.
TEST(Autoscale, G4_does_not_oscillate_near_a_threshold) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    AutoscaleOptions options = published_options();
    const int start[] = {2, 1};
    FleetLedger fleet(options, start, 0);
    Rng rng(seed);
    int changes_decode = 0, last = 1;
    const double line = options.unit[kDecode].tokens_per_s * (1 - options.headroom);
    for (double t = 0; t < 86400; t += options.interval_s) {
      fleet.advance(t);
      AutoscaleSnapshot snapshot;
      snapshot.now_s = t;
      snapshot.units[kPrefill] = fleet.counts(UnitKind::kPrefill);
      snapshot.units[kDecode] = fleet.counts(UnitKind::kDecode);
      snapshot.tokens_per_s[kPrefill] = 1e5;
      snapshot.tokens_per_s[kDecode] = line * (0.97 + 0.06 * rng.next_double());
      const AutoscaleDecision decision = autoscale(snapshot, options);
      changes_decode += decision.target[kDecode] != last;
      last = decision.target[kDecode];
      fleet.apply(decision);
    }
    EXPECT_LE(changes_decode, 1) << "no_oscillation, seed " << seed;
  }
}

// The post-scale load is looked at first: N units' load on N-1.
TEST(Autoscale, a_unit_leaves_only_if_it_would_not_be_missed) {
  const AutoscaleOptions options = published_options();
  const double unit = options.unit[kDecode].tokens_per_s;
  const auto decide = [&](double units_of_load) {
    return autoscale(running(20, 6, 2.7e6, units_of_load * unit), options);
  };
  EXPECT_EQ(decide(4.70).target[kDecode], 6);  // fits 5 at 5 % headroom, not with 8 % more to spare
  EXPECT_EQ(decide(4.70).reason[kDecode], ScaleReason::kHysteresis);
  EXPECT_EQ(decide(4.30).target[kDecode], 5);
  EXPECT_EQ(decide(4.30).reason[kDecode], ScaleReason::kShrink);
  AutoscaleSnapshot young = running(20, 6, 2.7e6, 4.3 * unit);
  young.units[kDecode].changed_s = young.now_s - 100;
  young.units[kDecode].last_change_grew = true;
  EXPECT_EQ(autoscale(young, options).reason[kDecode], ScaleReason::kMinimumStay);
}

// Case G6: no nodes to be had. The start is given up after its time-out, with back-off, and the reason is
// visible.
TEST(Autoscale, G6_a_start_that_never_comes_up_is_given_up) {
  AutoscaleOptions options = published_options();
  const int start[] = {10, 3};
  FleetLedger fleet(options, start, 0);
  fleet.set_starts_blocked(true);
  std::vector<ScaleReason> seen;
  for (double t = 0; t < 4 * 3600; t += options.interval_s) {
    fleet.advance(t);
    AutoscaleSnapshot snapshot = running(0, 0, 1.4e6, 4.5 * options.unit[kDecode].tokens_per_s);
    snapshot.now_s = t;
    snapshot.units[kPrefill] = fleet.counts(UnitKind::kPrefill);
    snapshot.units[kDecode] = fleet.counts(UnitKind::kDecode);
    const AutoscaleDecision decision = autoscale(snapshot, options);
    fleet.apply(decision);
    if (seen.empty() || seen.back() != decision.reason[kDecode]) seen.push_back(decision.reason[kDecode]);
    if (t == 2 * 3600) fleet.set_starts_blocked(false);
  }
  const std::vector<ScaleReason> expected = {ScaleReason::kGrow, ScaleReason::kSteady,
                                             ScaleReason::kStartTimedOut, ScaleReason::kBackOff,
                                             ScaleReason::kGrow};
  ASSERT_GE(seen.size(), expected.size());
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), seen.begin())) << "starts_end";
  EXPECT_EQ(fleet.counts(UnitKind::kDecode).serving, 5);  // the blockade over, the fleet comes up
  EXPECT_EQ(fleet.counts(UnitKind::kDecode).failed_starts, 0);
}

// Case G7: an SLO below what an idle unit can do. Said, not chased.
TEST(Autoscale, G7_an_unreachable_slo_is_reported_not_chased) {
  AutoscaleOptions options = published_options();
  options.unit[kPrefill].best_slo = 0.9, options.unit[kPrefill].wanted_slo = 0.2;  // seconds to first token
  options.unit[kDecode].best_slo = 67, options.unit[kDecode].wanted_slo = 100;     // tokens/s per user
  const AutoscaleDecision decision =
      autoscale(running(12, 4, 10 * 39'000.0 * 4, 3.5 * options.unit[kDecode].tokens_per_s), options);
  EXPECT_EQ(decision.reason[kPrefill], ScaleReason::kSloUnreachable);
  EXPECT_EQ(decision.reason[kDecode], ScaleReason::kSloUnreachable);
  EXPECT_LE(decision.target[kPrefill], 12) << "never_chase";
  EXPECT_EQ(decision.target[kDecode], 4) << "never_chase";
}

TEST(Autoscale, flips_spare_decode_units_into_prefill_units) {
  AutoscaleOptions options = published_options();
  options.budget_nodes = 4 * 10 + 18 * 6;  // all in use
  const double unit_p = options.unit[kPrefill].tokens_per_s, unit_d = options.unit[kDecode].tokens_per_s;
  AutoscaleDecision decision = autoscale(running(10, 6, 17.5 * unit_p, 3.3 * unit_d), options);
  EXPECT_EQ(decision.target[kDecode], 4);
  EXPECT_EQ(decision.target[kPrefill], 10);  // nothing is free until the drain is over
  EXPECT_EQ(decision.flip.units_from, 2);
  EXPECT_EQ(decision.flip.units_to, 9);
  EXPECT_EQ(decision.flip.nodes_freed, 0);
  EXPECT_EQ(decision.reason[kPrefill], ScaleReason::kFlip);
  EXPECT_EQ(decision.nodes_in_use, options.budget_nodes);
  // One decode unit is four prefill units and two nodes freed.
  decision = autoscale(running(10, 6, 12.5 * unit_p, 4.1 * unit_d), options);
  EXPECT_EQ(decision.flip.units_from, 1);
  EXPECT_EQ(decision.flip.units_to, 4);
  EXPECT_EQ(decision.flip.nodes_freed, 2);

  // Carried out: the budget holds throughout, and the prefill units come up after drain and start.
  const int start[] = {10, 6};
  FleetLedger fleet(options, start, 0);
  fleet.apply(autoscale(running(10, 6, 17.5 * unit_p, 3.3 * unit_d), options));
  for (double t = 0; t < 2000; t += 10) {
    fleet.advance(t);
    ASSERT_LE(fleet.nodes_in_use(), options.budget_nodes);
  }
  EXPECT_EQ(fleet.counts(UnitKind::kPrefill).serving, 19);
  EXPECT_EQ(fleet.counts(UnitKind::kDecode).serving, 4);
}

// The mirror: nine spare prefill units are two decode units exactly.
TEST(Autoscale, flips_spare_prefill_units_into_decode_units) {
  AutoscaleOptions options = published_options();
  options.budget_nodes = 4 * 20 + 18 * 4;  // all in use
  const double unit_p = options.unit[kPrefill].tokens_per_s, unit_d = options.unit[kDecode].tokens_per_s;
  const AutoscaleSnapshot before = running(20, 4, 9.5 * unit_p, 5.5 * unit_d);
  const AutoscaleDecision decision = autoscale(before, options);
  EXPECT_EQ(decision.target[kPrefill], 11);
  EXPECT_EQ(decision.target[kDecode], 4);  // nothing is free until the drains are over
  EXPECT_EQ(decision.flip.from, UnitKind::kPrefill);
  EXPECT_EQ(decision.flip.units_from, 9);
  EXPECT_EQ(decision.flip.units_to, 2);
  EXPECT_EQ(decision.flip.nodes_freed, 0);
  EXPECT_EQ(decision.reason[kDecode], ScaleReason::kFlip);
  EXPECT_EQ(decision.nodes_in_use, options.budget_nodes);

  const int start[] = {20, 4};
  FleetLedger fleet(options, start, 0);
  fleet.apply(decision);
  for (double t = 0; t < 2000; t += 10) {
    fleet.advance(t);
    ASSERT_LE(fleet.nodes_in_use(), options.budget_nodes);
  }
  EXPECT_EQ(fleet.counts(UnitKind::kPrefill).serving, 11);
  EXPECT_EQ(fleet.counts(UnitKind::kDecode).serving, 6);
}

// Queued work counts as demand that is to be gone within catch_up_s, of its own kind only.
TEST(Autoscale, a_backlog_is_worked_off_within_catch_up_s) {
  const AutoscaleOptions options = published_options();
  const double unit_p = options.unit[kPrefill].tokens_per_s, unit_d = options.unit[kDecode].tokens_per_s;
  AutoscaleSnapshot snapshot = running(10, 5, 9.2 * unit_p, 4.5 * unit_d);
  EXPECT_EQ(autoscale(snapshot, options).target[kPrefill], 10);
  snapshot.backlog_tokens[kPrefill] = 3 * unit_p * options.catch_up_s;
  AutoscaleDecision decision = autoscale(snapshot, options);
  EXPECT_EQ(decision.target[kPrefill], 13);  // 12.2 units of work and 5 % to spare
  EXPECT_EQ(decision.target[kDecode], 5);
  EXPECT_EQ(decision.reason[kPrefill], ScaleReason::kGrow);
  EXPECT_NEAR(decision.forecast_tokens_per_s[kPrefill], 12.2 * unit_p, 1);
  AutoscaleOptions patient = options;
  patient.catch_up_s *= 3;
  EXPECT_EQ(autoscale(snapshot, patient).target[kPrefill], 11);
  snapshot.backlog_tokens[kPrefill] = 0;
  snapshot.backlog_tokens[kDecode] = 1.5 * unit_d * options.catch_up_s;
  decision = autoscale(snapshot, options);
  EXPECT_EQ(decision.target[kPrefill], 10);
  EXPECT_EQ(decision.target[kDecode], 7);
  // Without it the same load would let a unit go; with it none leaves.
  snapshot = running(10, 6, 9.2 * unit_p, 4.3 * unit_d);
  EXPECT_EQ(autoscale(snapshot, options).target[kDecode], 5);
  snapshot.backlog_tokens[kDecode] = unit_d * options.catch_up_s;
  EXPECT_EQ(autoscale(snapshot, options).target[kDecode], 6);
}

TEST(Autoscale, tied_units_move_in_whole_groups) {
  AutoscaleOptions options = published_options();
  options.tied_prefill_per_decode = 3, options.tied_prefill_base = 2;
  const double unit_p = options.unit[kPrefill].tokens_per_s, unit_d = options.unit[kDecode].tokens_per_s;
  // Prefill asks for 24 units: 8 groups; decode alone would do with 5.
  AutoscaleDecision decision = autoscale(running(20, 6, 22.5 * unit_p, 4.5 * unit_d), options);
  EXPECT_EQ(decision.target[kDecode], 8);
  EXPECT_EQ(decision.target[kPrefill], 26);
  options.budget_nodes = 20 * 4 + 6 * 18 + 45;  // room for one more group
  decision = autoscale(running(20, 6, 22.5 * unit_p, 4.5 * unit_d), options);
  EXPECT_EQ(decision.target[kDecode], 7);
  EXPECT_EQ(decision.target[kPrefill], 23);
  EXPECT_EQ(decision.reason[kDecode], ScaleReason::kBudget);
}

TEST(Autoscale, forecasts_from_yesterday_scaled_to_today_or_from_the_trend) {
  std::vector<LoadPoint> history;
  for (double t = 0; t <= 86400; t += 600) {
    history.push_back({t, {t < 43200 ? 100.0 : 200.0, 0}});
  }
  // Now is 11:30 on the next day at a tenth above yesterday: in half an hour the load doubles.
  EXPECT_NEAR(forecast_max(history, {UnitKind::kPrefill, 86400 + 41400, 110, 3600}), 220, 1e-9);
  EXPECT_NEAR(forecast_max(history, {UnitKind::kPrefill, 86400 + 20000, 110, 3600}), 110, 1e-9);
  const std::vector<LoadPoint> rising = {{0, {10, 0}}, {600, {16, 0}}, {1200, {22, 0}}};
  EXPECT_NEAR(forecast_max(rising, {UnitKind::kPrefill, 1200, 22, 600}), 28, 1e-9);
  EXPECT_NEAR(forecast_max(rising, {UnitKind::kPrefill, 1200, 22, 1e6}), 44, 1e-9);  // a trend is a guess
  // How far to believe either is the caller's.
  AutoscaleRules rules;
  rules.level_max = 1.05;
  EXPECT_NEAR(forecast_max(rising, {UnitKind::kPrefill, 1200, 22, 1e6}, rules), 1.05 * 22, 1e-9);
  EXPECT_NEAR(forecast_max(history, {UnitKind::kPrefill, 86400 + 41400, 110, 3600}, rules), 210, 1e-9);
  const std::vector<LoadPoint> turning = {
      {0, {90, 0}}, {600, {50, 0}}, {1200, {20, 0}}, {1800, {22, 0}}, {2400, {24, 0}}};
  rules = {};
  EXPECT_NEAR(forecast_max(turning, {UnitKind::kPrefill, 2400, 24, 600}), 24, 1e-9);  // falls, over all
  rules.trend_window_s = 1200;
  EXPECT_NEAR(forecast_max(turning, {UnitKind::kPrefill, 2400, 24, 600}, rules), 26, 1e-9);
}

// The schedule as published: 226.75 nodes on average, exactly.
TEST(Autoscale, the_published_schedule_integrates_to_5442_node_hours) {
  constexpr ScheduleRow kRows[] = {{0, {23, 7}},     {4500, {20, 6}},  {7200, {17, 5}},  {9900, {14, 4}},
                                   {10800, {11, 3}}, {12600, {8, 2}},  {23400, {11, 3}}, {25200, {14, 4}},
                                   {27000, {20, 6}}, {28800, {23, 7}}, {30600, {29, 9}}};
  AutoscaleOptions options = published_options();
  options.unit[kPrefill].start_s = options.unit[kDecode].start_s = 0;
  const int start[] = {29, 9};
  FleetLedger fleet(options, start, 12 * 3600);
  for (double t = 12 * 3600; t < 36 * 3600; t += 900) {
    fleet.advance(t);
    AutoscaleSnapshot snapshot;
    snapshot.now_s = t;
    for (UnitKind kind : {UnitKind::kPrefill, UnitKind::kDecode})
      snapshot.units[static_cast<int>(kind)] = fleet.counts(kind);
    fleet.apply(schedule_units(kRows, snapshot, options));
  }
  fleet.advance(36 * 3600);
  EXPECT_NEAR(fleet.hours().node_hours, 5442, 1e-6);
  EXPECT_GT(fleet.hours().drain_node_hours, 0);
  EXPECT_NEAR(fleet.hours().hours, 24, 1e-9);
  EXPECT_NEAR(fleet.hours().max_over_mean(), 278 * 24 / (5442 + fleet.hours().drain_node_hours), 1e-9);
  EXPECT_NEAR(fleet.hours().node_hours + fleet.hours().drain_node_hours + fleet.hours().freed_node_hours,
              24 * 278, 1e-6);
}

// The published day scaled by the autoscaler: fewer node-hours than the clock table's, drains counted, and
// never short.
TEST(Autoscale, the_published_day_needs_fewer_node_hours_than_the_schedule) {
  const AutoscaleOptions options = published_options();
  const int start[] = {29, 9};
  FleetLedger fleet(options, start, 86400);
  double short_s = 0;
  std::vector<LoadPoint> history = day_history(0, 86400);
  for (double t = 86400; t < 2 * 86400; t += options.interval_s) {
    fleet.advance(t);
    AutoscaleSnapshot snapshot = running(0, 0, day_load(t, 266e9), day_load(t, 168e9));
    snapshot.now_s = t;
    snapshot.history = history;
    for (UnitKind kind : {UnitKind::kPrefill, UnitKind::kDecode}) {
      const int k = static_cast<int>(kind);
      snapshot.units[k] = fleet.counts(kind);
      if (*snapshot.tokens_per_s[k] > snapshot.units[k].serving * options.unit[k].tokens_per_s)
        short_s += options.interval_s;
    }
    fleet.apply(autoscale(snapshot, options));
    history.push_back({t, {*snapshot.tokens_per_s[0], *snapshot.tokens_per_s[1]}});
  }
  fleet.advance(2 * 86400);
  EXPECT_LT(fleet.hours().node_hours + fleet.hours().drain_node_hours, 5442);
  EXPECT_EQ(short_s, 0);
  EXPECT_LE(fleet.hours().nodes_max, 278);
  EXPECT_LE(fleet.hours().num_changes, 80);
  // The clairvoyant bound: whole units for each minute's load, no headroom, no drains.
  double bound = 0;
  for (double t = 86400; t < 2 * 86400; t += 60) {
    for (int k = 0; k < 2; ++k) {
      bound += options.unit[k].nodes *
               units_for(day_load(t, k == 0 ? 266e9 : 168e9), options.unit[k].tokens_per_s, 0) / 60.0;
    }
  }
  EXPECT_GT(fleet.hours().node_hours, bound);
  EXPECT_LT(fleet.hours().node_hours, 1.15 * bound);
}

// The invariants under arbitrary demand, gaps in the data, blocked starts and drains.
TEST(Autoscale, keeps_its_invariants_for_any_history) {
  EXPECT_TRUE(rc::check("budget_never_exceeded, whole_units, missing_holds, minimum_stay", [] {
    AutoscaleOptions options = published_options();
    options.budget_nodes = *rc::gen::inRange(22, 300);
    options.units_max[kPrefill] = *rc::gen::inRange(1, 40);
    options.unit[kDecode].drain_s = *rc::gen::inRange(0, 3000);
    const bool tied = *rc::gen::inRange(0, 4) == 0;
    if (tied) options.tied_prefill_per_decode = 3, options.tied_prefill_base = 2;
    const int start[] = {1, 1};
    FleetLedger fleet(options, start, 0);
    double changed[2] = {-1e18, -1e18};
    bool grew[2] = {false, false};
    for (int step = 0; step < 60; ++step) {
      const double t = step * 300.0;
      fleet.advance(t);
      fleet.set_starts_blocked(*rc::gen::inRange(0, 8) == 0);
      RC_ASSERT(fleet.nodes_in_use() <= options.budget_nodes);
      AutoscaleSnapshot snapshot =
          running(0, 0, *rc::gen::inRange(0, 5'000'000), *rc::gen::inRange(0, 3'000'000));
      snapshot.now_s = t;
      if (*rc::gen::inRange(0, 6) == 0) snapshot.tokens_per_s[kDecode].reset();
      for (UnitKind kind : {UnitKind::kPrefill, UnitKind::kDecode}) {
        snapshot.units[static_cast<int>(kind)] = fleet.counts(kind);
      }
      const AutoscaleDecision decision = autoscale(snapshot, options);
      RC_ASSERT(decision.nodes_in_use <= options.budget_nodes);
      for (int k = 0; k < 2; ++k) {
        const int before = snapshot.units[k].target();
        RC_ASSERT(decision.target[k] >= std::min(before, options.units_min[k]));
        RC_ASSERT(decision.target[k] <= std::max(before, options.units_max[k]));
        const bool unknown = !snapshot.tokens_per_s[k] || (tied && !snapshot.tokens_per_s[1 - k]);
        if (unknown && decision.give_up_starting[k] == 0) RC_ASSERT(decision.target[k] == before);
        if (decision.target[k] < before && decision.give_up_starting[k] == 0) {
          RC_ASSERT(!grew[k] || t - changed[k] >= options.minimum_stay_s);
        }
        if (decision.target[k] != before) changed[k] = t, grew[k] = decision.target[k] > before;
      }
      fleet.apply(decision);
      RC_ASSERT(fleet.nodes_in_use() == decision.nodes_in_use);
      for (int k = 0; k < 2; ++k) {
        const UnitCounts counts = fleet.counts(static_cast<UnitKind>(k));
        RC_ASSERT(counts.target() == decision.target[k]);
      }
    }
  }));
}

// Demand only ever raises targets: with everything else equal, more load never means fewer units.
TEST(Autoscale, more_load_never_means_fewer_units) {
  const AutoscaleOptions options = published_options();
  int last = 0;
  for (int step = 0; step < 200; ++step) {
    const AutoscaleDecision decision = autoscale(running(10, 5, 1e6, step * 20000.0), options);
    EXPECT_GE(decision.target[kDecode], last);
    last = decision.target[kDecode];
  }
}

}  // namespace
}  // namespace fathom
