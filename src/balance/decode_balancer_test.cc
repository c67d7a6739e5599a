// The decode policies against their definitions, one another and the offline optimum; case B11; admission.
#include "balance/decode_balancer.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "balance/decode_unit_testing.h"

namespace fathom {
namespace {

DecodeBalancerOptions with_policy(DecodePolicy policy) {
  DecodeBalancerOptions options;
  options.policy = policy;
  return options;
}
DecodeUnitRun run_unit(DecodePolicy policy, uint64_t seed = 1) {
  DecodeUnitConfig config;
  config.seed = seed;
  return DecodeUnitModel(config, with_policy(policy)).run();
}

TEST(DecodeBalancer, knows_its_policies_by_name) {
  for (const char* name : {"random", "round-robin", "least-requests", "least-requests-kv", "kv-count",
                           "p2c-kv", "kv-capped", "fathom"}) {
    EXPECT_EQ(decode_policy_name(parse_decode_policy(name).value()), name);
  }
  EXPECT_FALSE(parse_decode_policy("fastest").ok());
}

// The published comparison of placements under one barrier, in its order; steady state, so the warm-up is
// half the run.
TEST(DecodeBalancer, policies_order_as_measured_on_the_published_lengths) {
  std::map<DecodePolicy, DecodeUnitRun> runs;
  for (DecodePolicy policy : {DecodePolicy::kRandom, DecodePolicy::kRoundRobin, DecodePolicy::kLeastRequests,
                              DecodePolicy::kLeastRequestsKv, DecodePolicy::kKvCount, DecodePolicy::kP2cKv,
                              DecodePolicy::kKvCapped, DecodePolicy::kFathom}) {
    runs[policy] = run_unit(policy);
  }
  const auto speed = [&](DecodePolicy policy) { return runs[policy].tokens_per_s_per_user; };
  EXPECT_LT(speed(DecodePolicy::kRandom), speed(DecodePolicy::kLeastRequests));
  EXPECT_GT(runs[DecodePolicy::kRandom].count_max_over_mean,
            runs[DecodePolicy::kRoundRobin].count_max_over_mean);
  EXPECT_LT(speed(DecodePolicy::kRoundRobin), speed(DecodePolicy::kLeastRequests));
  EXPECT_LT(speed(DecodePolicy::kLeastRequests), speed(DecodePolicy::kLeastRequestsKv));
  EXPECT_LT(speed(DecodePolicy::kLeastRequestsKv), speed(DecodePolicy::kKvCount));
  EXPECT_LT(speed(DecodePolicy::kLeastRequests), speed(DecodePolicy::kP2cKv));
  EXPECT_LT(speed(DecodePolicy::kP2cKv), speed(DecodePolicy::kKvCapped));
  EXPECT_NEAR(runs[DecodePolicy::kKvCapped].kv_max_over_mean, 1.10, 0.02);
  EXPECT_LE(runs[DecodePolicy::kKvCapped].count_max_over_mean, 1.17);
  EXPECT_NEAR(runs[DecodePolicy::kRandom].kv_max_over_mean, 1.37, 0.04);
  // Filling to a level beats raising the emptiest, on both objectives.
  EXPECT_GT(speed(DecodePolicy::kFathom), 1.03 * speed(DecodePolicy::kKvCapped));
  EXPECT_LE(runs[DecodePolicy::kFathom].kv_max_over_mean, 1.05);
  EXPECT_LE(runs[DecodePolicy::kFathom].count_max_over_mean, 1.06);
}

// The headroom above a cap of 1.15 is small: others from 1.05 to 1.25 change little.
TEST(DecodeBalancer, the_count_cap_matters_little) {
  const auto speed = [](double cap) {
    DecodeBalancerOptions options = with_policy(DecodePolicy::kKvCapped);
    options.count_cap = cap;
    return DecodeUnitModel({}, options).run().tokens_per_s_per_user;
  };
  const double usual = speed(1.15);
  for (const double cap : {1.05, 1.25}) EXPECT_NEAR(speed(cap) / usual, 1, 0.025) << cap;
}

// Starting from balanced ranks hides what a policy does: imbalance must be read after the longest lifetimes.
TEST(DecodeBalancer, imbalance_shows_only_after_warm_up) {
  DecodeUnitConfig early;
  early.num_steps = 300;
  early.warmup_steps = 0;
  const auto options = with_policy(DecodePolicy::kLeastRequests);
  EXPECT_LT(DecodeUnitModel(early, options).run().live_per_rank,
            0.7 * run_unit(DecodePolicy::kLeastRequests).live_per_rank);
}

// One counter over the units beside one over the ranks visits only every gcd-th rank: 9 units of 144 used 16
// ranks each.
TEST(DecodeBalancer, round_robin_does_not_alias) {
  DecodeBalancer balancer(with_policy(DecodePolicy::kRoundRobin));
  for (int u = 0; u < 9; ++u) balancer.add_unit(144);
  for (int i = 0; i < 2 * 9 * 144; ++i) balancer.place({100, 10});
  for (int u = 0; u < 9; ++u) {
    for (const RankLoad& load : balancer.ledger().loads(u)) ASSERT_EQ(load.requests, 2) << "no_aliasing";
  }
}

// Against the definition, by scan, over random streams: unit with fewest requests, least KV under the cap.
TEST(DecodeBalancer, kv_capped_equals_its_definition) {
  DecodeBalancer balancer(with_policy(DecodePolicy::kKvCapped));
  const int sizes[] = {5, 8, 8};
  for (int n : sizes) balancer.add_unit(n);
  Rng rng(3);
  std::vector<std::pair<RankRef, RankLoad>> live;
  for (int i = 0; i < 4000; ++i) {
    if (rng.next_below(100) < 48 && !live.empty()) {
      const size_t at = rng.next_below(live.size());
      balancer.release(live[at].first, live[at].second);
      live.erase(live.begin() + static_cast<ptrdiff_t>(at));
      continue;
    }
    const LoadLedger& ledger = balancer.ledger();
    int unit = 0;
    for (int u = 1; u < 3; ++u) {
      if (double(ledger.total(u).requests) / sizes[u] < double(ledger.total(unit).requests) / sizes[unit])
        unit = u;
    }
    int64_t fewest = INT64_MAX;
    for (const RankLoad& load : ledger.loads(unit)) fewest = std::min(fewest, load.requests);
    const int64_t cap = std::max(
        fewest, static_cast<int64_t>(1.15 * static_cast<double>(ledger.total(unit).requests) / sizes[unit]));
    int rank = -1;
    for (int r = 0; r < sizes[unit]; ++r) {
      const RankLoad& load = ledger.loads(unit)[r];
      if (load.requests <= cap && (rank < 0 || load.tokens < ledger.loads(unit)[rank].tokens)) rank = r;
    }
    const DecodeAsk ask{static_cast<int64_t>(1 + rng.next_below(9000)), 50};
    const auto placed = balancer.place(ask);
    ASSERT_TRUE(placed);
    ASSERT_EQ(placed->rank, (RankRef{unit, rank})) << "count_capped, decision " << i;
    live.emplace_back(placed->rank, ask.load());
  }
}

TEST(DecodeBalancer, fathom_caps_counts_and_prefers_the_fullest_fit) {
  DecodeBalancer balancer(with_policy(DecodePolicy::kFathom));
  balancer.add_unit(4);
  const std::vector<RankLoad> loads{{20, 100000, 0}, {20, 99000, 0}, {20, 90000, 0}, {20, 40000, 0}};
  balancer.report({.unit = 0, .epoch = 1, .sequence = 1, .loads = loads});
  // Mean 82,250, level 83,072: only the last rank leaves room.
  EXPECT_EQ(balancer.pick({1000, 0})->rank, 3);
  const std::vector<RankLoad> near{{20, 101000, 0}, {20, 99000, 0}, {20, 98000, 0}, {20, 102000, 0}};
  balancer.report({.unit = 0, .epoch = 1, .sequence = 2, .loads = near});
  // Mean 100,000, level 101,000: 1,500 fits the second (fullest that holds it), 2,800 the third, 20,000 none.
  EXPECT_EQ(balancer.pick({1500, 0})->rank, 1);
  EXPECT_EQ(balancer.pick({2800, 0})->rank, 2);
  EXPECT_EQ(balancer.pick({20000, 0})->rank, 2);
  const std::vector<RankLoad> crowded{{20, 101000, 0}, {30, 99000, 0}, {20, 98000, 0}, {20, 102000, 0}};
  balancer.report({.unit = 0, .epoch = 1, .sequence = 3, .loads = crowded});
  EXPECT_EQ(balancer.pick({1500, 0})->rank, 2);  // the second is above the count cap
}

// Counts first where a request's traffic outweighs its attention, and only there: the automatic choice is the
// better one of the two on either side.
TEST(DecodeBalancer, counts_go_first_when_expert_traffic_dominates) {
  struct Runs {
    DecodeUnitRun by_kv, by_count, automatic;
  };
  const auto run = [](double input_mean_tokens) {
    DecodeUnitConfig config;
    config.input_mean_tokens = input_mean_tokens;
    config.output_mean_tokens = 500;
    config.arrivals_per_s *= 0.8;
    config.num_steps = 6000, config.warmup_steps = 3000;
    config.us_per_request = 6;  // a slow network, and ranks that wait for their own transfers
    DecodeBalancerOptions options = with_policy(DecodePolicy::kFathom);
    const auto with = [&](int64_t request_kv_tokens) {
      options.request_kv_tokens = request_kv_tokens;
      return DecodeUnitModel(config, options).run();
    };
    const Runs runs{with(0), with(1 << 30), with(static_cast<int64_t>(6 / 0.48e-3))};
    std::printf(
        "prompts of %.0f: KV first %.2f tok/s (counts %.3f, KV %.3f), counts first %.2f (%.3f, %.3f)\n",
        input_mean_tokens, runs.by_kv.tokens_per_s_per_user, runs.by_kv.count_max_over_mean,
        runs.by_kv.kv_max_over_mean, runs.by_count.tokens_per_s_per_user, runs.by_count.count_max_over_mean,
        runs.by_count.kv_max_over_mean);
    EXPECT_LT(runs.by_count.count_max_over_mean, runs.by_kv.count_max_over_mean);
    EXPECT_GT(runs.by_count.kv_max_over_mean, runs.by_kv.kv_max_over_mean);
    return runs;
  };
  const Runs few = run(300), many = run(3619);
  EXPECT_GT(few.by_count.tokens_per_s_per_user, few.by_kv.tokens_per_s_per_user);
  EXPECT_EQ(few.automatic.tokens_per_s_per_user, few.by_count.tokens_per_s_per_user);
  EXPECT_LT(many.by_count.tokens_per_s_per_user, many.by_kv.tokens_per_s_per_user);
  EXPECT_EQ(many.automatic.tokens_per_s_per_user, many.by_kv.tokens_per_s_per_user);
}

// At hundreds of ranks, against what no placement can beat: KV that divides freely has the mean everywhere,
// and a request does not divide. Counts never pass their cap.
TEST(DecodeBalancer, the_busiest_of_many_ranks_is_within_one_request_of_the_mean) {
  for (DecodePolicy policy : {DecodePolicy::kKvCapped, DecodePolicy::kFathom}) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      Rng rng(seed);
      DecodeBalancerOptions options = with_policy(policy);
      options.horizon_tokens = 0;
      DecodeBalancer balancer(options);
      balancer.add_unit(144);
      int64_t longest = 0;
      for (int i = 0; i < 144 * 90; ++i) {
        const auto kv =
            static_cast<int64_t>(std::min(131072.0, 16 + 2289 * std::exp(0.957 * test_normal(rng))));
        longest = std::max(longest, kv);
        balancer.place({kv, 1000});
      }
      const DecodeBalance balance = balancer.balance(0);
      std::printf("%s: KV max/mean %.4f, counts %.4f\n", std::string(decode_policy_name(policy)).c_str(),
                  balance.kv.max_over_mean(), balance.requests.max_over_mean());
      EXPECT_LE(balance.kv.max_load, balance.kv.mean_load + static_cast<double>(longest))
          << "list_scheduling, seed " << seed;
      const double cap = policy == DecodePolicy::kFathom ? options.fit_count_cap : options.count_cap;
      EXPECT_LE(balance.requests.max_load, std::floor(cap * balance.requests.mean_load) + 1)
          << "count_capped, seed " << seed;
    }
  }
}

// The busiest rank of an online placement against the best offline one, by exhaustion: list scheduling's
// bound.
TEST(DecodeBalancer, stays_within_the_list_scheduling_bound_of_the_offline_optimum) {
  for (DecodePolicy policy : {DecodePolicy::kKvCapped, DecodePolicy::kFathom}) {
    for (uint64_t seed = 0; seed < 15; ++seed) {
      Rng rng(seed);
      constexpr int kRanks = 3, kRequests = 9;
      DecodeBalancerOptions options = with_policy(policy);
      options.count_cap = options.fit_count_cap = kRanks;  // KV alone decides
      options.horizon_tokens = 0;
      DecodeBalancer balancer(options);
      balancer.add_unit(kRanks);
      std::vector<int64_t> sizes(kRequests);
      for (int64_t& size : sizes) size = 1 + static_cast<int64_t>(rng.next_below(1000));
      for (int64_t size : sizes) balancer.place({size, 0});
      int64_t optimum = INT64_MAX;
      std::vector<int64_t> held(kRanks, 0);
      std::function<void(int)> assign = [&](int i) {
        if (i == kRequests) {
          optimum = std::min(optimum, *std::max_element(held.begin(), held.end()));
          return;
        }
        for (int64_t& rank : held) {
          rank += sizes[i];
          assign(i + 1);
          rank -= sizes[i];
        }
      };
      assign(0);
      const double busiest = balancer.balance(0).kv.max_load;
      EXPECT_GE(busiest, static_cast<double>(optimum));
      EXPECT_LE(busiest, (2.0 - 1.0 / kRanks) * static_cast<double>(optimum))
          << "list_scheduling, seed " << seed;
    }
  }
}

// Case B11: a burst while the only load data is a second old. Own dispatches count at once, so nothing piles
// up.
TEST(DecodeBalancer, B11_stale_reports_do_not_herd) {
  for (DecodePolicy policy : {DecodePolicy::kLeastRequests, DecodePolicy::kKvCapped, DecodePolicy::kFathom}) {
    for (int num_balancers : {1, 2, 4}) {
      constexpr int kRanks = 16;
      const std::vector<RankLoad> old(kRanks, RankLoad{5, 20000, 0});
      std::vector<DecodeBalancer> balancers;
      for (int b = 0; b < num_balancers; ++b) {
        DecodeBalancerOptions options = with_policy(policy);
        options.balancer_idx = b, options.num_balancers = num_balancers;
        balancers.emplace_back(options).add_unit(kRanks);
        balancers.back().report({.unit = 0, .epoch = 1, .sequence = 1, .loads = old});
      }
      std::vector<int64_t> placed(kRanks, 5);
      for (int i = 0; i < 21 * kRanks; ++i) {  // no report in all that time
        ++placed[balancers[i % num_balancers].place({4000, 500})->rank.rank];
      }
      const double mean = 26;
      EXPECT_LE(static_cast<double>(*std::max_element(placed.begin(), placed.end())) / mean, 1.2)
          << "charged_at_once, " << decode_policy_name(policy) << ", " << num_balancers << " balancers";
    }
  }
}

TEST(DecodeBalancer, closed_units_rest_and_a_full_fleet_says_so) {
  DecodeBalancerOptions options = with_policy(DecodePolicy::kFathom);
  options.admission.capacity_tokens = 10000;
  DecodeBalancer balancer(options);
  balancer.add_unit(2);
  balancer.add_unit(2);
  balancer.set_accepting(0, false);
  for (int i = 0; i < 3; ++i) {
    const auto placed = balancer.place({6000, 0});
    ASSERT_EQ(placed.has_value(), i < 2);
    if (placed) {
      EXPECT_EQ(placed->rank.unit, 1) << "closed_units_rest";
    }
  }
  balancer.set_accepting(0, true);
  EXPECT_EQ(balancer.place({6000, 0})->rank.unit, 0);
  EXPECT_FALSE(balancer.place({10001, 0}).has_value());
  for (DecodePolicy policy : {DecodePolicy::kRandom, DecodePolicy::kRoundRobin, DecodePolicy::kP2cKv}) {
    options.policy = policy;
    DecodeBalancer other(options);
    other.add_unit(4);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(other.place({6000, 0}).has_value()) << decode_policy_name(policy);
    EXPECT_FALSE(other.place({6000, 0}).has_value());
  }
}

// Random fleets under every policy, by the rules that hold for each single decision.
TEST(DecodeBalancer, every_placement_keeps_the_rules) {
  int placed_requests = 0, counts_decided = 0;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    DecodeBalancerOptions options = with_policy(static_cast<DecodePolicy>(seed % 8));
    const bool counts_first = options.policy == DecodePolicy::kFathom && rng.next_below(2) == 0;
    if (counts_first) options.request_kv_tokens = int64_t{1} << 30;
    options.admission = {.capacity_tokens = 60'000, .overflow_probability = 1e-3};
    const KvAdmission admission(options.admission);
    DecodeBalancer balancer(options);
    const int num_units = 1 + static_cast<int>(rng.next_below(3));
    std::vector<bool> open;
    for (int u = 0; u < num_units; ++u) {
      balancer.add_unit(2 + static_cast<int>(rng.next_below(6)));
      open.push_back(rng.next_below(4) > 0);
      balancer.set_accepting(u, open.back());
    }
    for (int i = 0; i < 60; ++i) {
      const DecodeAsk ask{1 + static_cast<int64_t>(rng.next_below(9000)),
                          static_cast<int64_t>(rng.next_below(1000))};
      std::vector<std::vector<RankLoad>> before;
      for (int u = 0; u < num_units; ++u) {
        const auto loads = balancer.ledger().loads(u);
        before.emplace_back(loads.begin(), loads.end());
      }
      const auto placed = balancer.place(ask);
      if (!placed) continue;
      ++placed_requests;
      const auto [unit, rank] = placed->rank;
      const std::vector<RankLoad>& ranks = before[static_cast<size_t>(unit)];
      const RankLoad& load = ranks[static_cast<size_t>(rank)];
      EXPECT_TRUE(open[static_cast<size_t>(unit)]) << "closed_units_rest";
      EXPECT_TRUE(admission.admits(load, ask.load())) << "within_capacity";
      RankLoad after = load;
      after += ask.load();
      EXPECT_EQ(balancer.ledger().loads(unit)[rank], after) << "charged_at_once";
      if (!counts_first) continue;
      int64_t sum = 0;
      bool a_lower_one_is_full = false;
      for (const RankLoad& other : ranks) sum += other.requests;
      const auto mean = static_cast<double>(sum) / static_cast<double>(ranks.size());
      for (const RankLoad& other : ranks) {
        a_lower_one_is_full |=
            static_cast<double>(other.requests) <= mean && !admission.admits(other, ask.load());
      }
      if (a_lower_one_is_full) continue;  // room comes before counts
      EXPECT_LE(static_cast<double>(load.requests), mean) << "counts_first";
      ++counts_decided;
    }
  }
  EXPECT_GT(placed_requests, 2000);
  EXPECT_GT(counts_decided, 100);
}

// ---- admission ----

// The reserve against the process it was derived from: a rank filled to the brim, then left to run.
double overflow_share(const RankLoad& start, int64_t capacity, uint64_t seed) {
  Rng rng(seed);
  int overflows = 0;
  constexpr int kRuns = 2000;
  for (int run = 0; run < kRuns; ++run) {
    double kv = static_cast<double>(start.tokens);
    double count = static_cast<double>(start.requests);
    const double mean_left = static_cast<double>(start.cost) / count;
    while (count >= 1) {
      const double steps = -mean_left / count * std::log(1 - rng.next_double());
      kv += count * steps;
      if (kv > static_cast<double>(capacity)) {
        ++overflows;
        break;
      }
      kv -= kv / count;
      count -= 1;
    }
  }
  return static_cast<double>(overflows) / kRuns;
}

TEST(KvAdmission, keeps_overflow_near_its_target_without_wasting_room) {
  for (double probability : {0.1, 0.01}) {
    const KvAdmission admission({.capacity_tokens = 1 << 20, .overflow_probability = probability});
    for (const RankLoad load :
         {RankLoad{100, 500000, 100000}, RankLoad{40, 400000, 80000}, RankLoad{100, 150000, 100000}}) {
      const int64_t reserve = admission.reserve_tokens(load);
      EXPECT_LE(overflow_share(load, load.tokens + reserve, 7), 1.5 * probability) << "overflow_is_rare";
      EXPECT_LE(reserve, load.cost);
      EXPECT_GT(overflow_share(load, load.tokens + reserve / 5, 7), 2 * probability) << "reserve_is_used";
    }
    // Long answers after short prompts: everything still to come is ahead.
    const RankLoad climbing{100, 10000, 200000};
    EXPECT_GT(admission.reserve_tokens(climbing), 60000);
    EXPECT_LE(overflow_share(climbing, climbing.tokens + admission.reserve_tokens(climbing), 7),
              1.5 * probability)
        << "overflow_is_rare";
  }
}

TEST(KvAdmission, admits_what_fits_and_reserves_no_more_than_growth) {
  const KvAdmission limited({.capacity_tokens = 100'000, .overflow_probability = 1e-3});
  const KvAdmission unlimited({});
  int admitted = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Rng rng(seed);
    RankLoad rank;
    rank.requests = seed % 10 == 0 ? 0 : static_cast<int64_t>(rng.next_below(60));
    rank.tokens = rank.requests * static_cast<int64_t>(rng.next_below(3000));
    rank.cost = rank.requests * static_cast<int64_t>(rng.next_below(1000));
    const RankLoad ask{1, 1 + static_cast<int64_t>(rng.next_below(20'000)),
                       static_cast<int64_t>(rng.next_below(2000))};
    RankLoad after = rank;
    after += ask;
    EXPECT_TRUE(unlimited.admits(rank, ask)) << "no_limit_admits_all";
    const bool fits = limited.admits(rank, ask);
    admitted += fits;
    if (fits) {
      EXPECT_LE(after.tokens, 100'000) << "held_fits, seed " << seed;
    }
    if (rank.requests == 0) {
      EXPECT_TRUE(fits) << "empty_rank_admits, seed " << seed;
    }
    const int64_t reserve = limited.reserve_tokens(after);
    if (rank.requests > 0) {
      EXPECT_EQ(fits, after.tokens + reserve <= 100'000) << "seed " << seed;
    }
    EXPECT_GE(reserve, 0);
    const double spread = std::sqrt(std::log(1000) / static_cast<double>(after.requests));
    EXPECT_LE(static_cast<double>(reserve), static_cast<double>(after.cost) * (1 + spread) + 1)
        << "reserve_within_growth, seed " << seed;
  }
  EXPECT_GT(admitted, 200);
  EXPECT_LT(admitted, 1800);
}

TEST(KvAdmission, makes_retraction_rare_where_filling_to_the_brim_does_not) {
  DecodeUnitConfig config;
  DecodeBalancerOptions options = with_policy(DecodePolicy::kFathom);
  options.admission = {.capacity_tokens = 400000, .overflow_probability = 1e-4};
  const DecodeUnitRun careful = DecodeUnitModel(config, options).run();
  options.admission.overflow_probability = 0.999;
  const DecodeUnitRun brim = DecodeUnitModel(config, options).run();
  EXPECT_GT(brim.num_overflows, 10000);
  EXPECT_LT(careful.num_overflows, brim.num_overflows / 1000);
  EXPECT_GT(careful.kv_fill, 0.94);
}

}  // namespace
}  // namespace fathom
