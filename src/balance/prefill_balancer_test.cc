// Prefill placement, prefix index and cuts; cases B11, C1, C3, C5 and C11.
#include "balance/prefill_balancer.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <utility>

#include "balance/prefill_router.h"
#include "balance/testing.h"

namespace fathom {
namespace {

PrefillBalancerOptions with_policy(PrefillPolicy policy) {
  PrefillBalancerOptions options;
  options.policy = policy;
  return options;
}

// Chained block hashes of a made-up prompt: equal ids give equal prefixes.
std::vector<uint64_t> chain(std::span<const uint64_t> ids) {
  std::vector<uint64_t> blocks;
  uint64_t hash = 7;
  for (uint64_t id : ids) blocks.push_back(hash = hash_u64(hash, id));
  return blocks;
}
std::vector<uint64_t> distinct_prompt(uint64_t seed, int num_blocks) {
  std::vector<uint64_t> ids(num_blocks);
  for (int i = 0; i < num_blocks; ++i) ids[i] = hash_u64(seed, i);
  return chain(ids);
}

TEST(PrefillBalancer, knows_its_policies_by_name) {
  for (const char* name : {"random", "round-robin", "least-requests", "least-tokens", "fathom"}) {
    EXPECT_EQ(prefill_policy_name(parse_prefill_policy(name).value()), name);
  }
  EXPECT_FALSE(parse_prefill_policy("kv-capped").ok());
}

// Case C1: nothing is cached anywhere, one rank's cache is empty and new. Misses go by load, not by tree
// size.
TEST(PrefillBalancer, C1_distinct_prompts_do_not_herd) {
  const int units[] = {8};
  PrefillRouter router({}, units);
  for (int r = 0; r < 7; ++r)
    router.index().insert(r, distinct_prompt(1000 + r, 200));  // rank 7 is the newest
  std::vector<int> placed(8, 0);
  for (int i = 0; i < 800; ++i) {
    const auto blocks = distinct_prompt(i, 16);
    const auto placement = router.route(16 * 64, blocks, 0);
    ++placed[placement->choice.rank.rank];
    EXPECT_EQ(placement->choice.cached_tokens, 0);
  }
  EXPECT_EQ(placed, std::vector<int>(8, 100)) << "misses_by_load";
}

// Case C3: a burst of 32k-in, 1-out prompts before anything finishes. Tokens are charged at dispatch.
TEST(PrefillBalancer, C3_a_burst_of_long_prompts_spreads_at_once) {
  for (PrefillPolicy policy : {PrefillPolicy::kLeastTokens, PrefillPolicy::kFathom}) {
    PrefillBalancer balancer(with_policy(policy));
    for (int u = 0; u < 4; ++u) balancer.add_unit(1);
    for (int i = 0; i < 12; ++i) balancer.place({32768, 0, {}});
    for (int u = 0; u < 4; ++u)
      EXPECT_EQ(balancer.ledger().loads(u)[0].tokens, 3 * 32768) << "charged_at_once";
  }
  // One long prompt keeps short ones away: they are not counted as equals.
  PrefillBalancer balancer(with_policy(PrefillPolicy::kFathom));
  balancer.add_unit(2);
  balancer.place({32768, 0, {}});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(balancer.place({1000, 0, {}})->choice.rank.rank, 1);
}

// Case C5: ratios in whole numbers made 99 % and 0 % equal. By any margin, at equal loads, the longer prefix
// wins.
TEST(PrefillBalancer, C5_the_longer_prefix_wins_at_equal_loads) {
  PrefillBalancer balancer(with_policy(PrefillPolicy::kFathom));
  balancer.add_unit(4);
  const auto rank_for = [&](std::vector<PrefixMatch> matches) {
    return balancer.pick({10000, 0, matches})->rank.rank;
  };
  EXPECT_EQ(rank_for({{{0, 3}, 9900}}), 3) << "hits_win_ties";
  EXPECT_EQ(rank_for({{{0, 2}, 64}, {{0, 1}, 128}}), 1) << "hits_win_ties";
  EXPECT_EQ(rank_for({{{0, 1}, 9800}, {{0, 3}, 9900}}), 3) << "hits_win_ties";
  // And affinity is worth the work it saves, no more: a queue longer than that sends the prompt elsewhere.
  balancer.charge(balancer.choice_at({0, 3}, 9000, 0, 0));
  EXPECT_EQ(rank_for({{{0, 3}, 9900}}), 3);
  balancer.charge(balancer.choice_at({0, 3}, 9000, 0, 0));
  EXPECT_NE(rank_for({{{0, 3}, 9900}}), 3);
}

// A shared store makes every rank able to read a prefix, so memory is worth only the load time.
TEST(PrefillBalancer, affinity_shrinks_to_the_load_time_when_the_store_has_the_prefix) {
  PrefillBalancer balancer(with_policy(PrefillPolicy::kFathom));
  balancer.add_unit(2);
  const PrefixMatch match{{0, 1}, 9900};
  balancer.charge(balancer.choice_at({0, 1}, 4000, 0, 0));
  EXPECT_EQ(balancer.pick({10000, 0, {&match, 1}})->rank.rank, 1);
  const PrefillChoice elsewhere = *balancer.pick({10000, 9900, {&match, 1}});
  EXPECT_EQ(elsewhere.rank.rank, 0);
  EXPECT_EQ(elsewhere.loaded_tokens, 9900);
  EXPECT_EQ(elsewhere.load.tokens, 100);
  // A slow store is not read where computing is faster.
  PrefillBalancerOptions slow;
  slow.cost.load_ns_per_token = 1e5;
  PrefillBalancer recompute(slow);
  recompute.add_unit(1);
  EXPECT_EQ(recompute.pick({10000, 9900, {}})->cached_tokens, 0);
}

// Case B11: the only reports are old; own dispatches count.
TEST(PrefillBalancer, B11_stale_reports_do_not_herd) {
  for (int num_balancers : {1, 2, 4}) {
    constexpr int kRanks = 16;
    const std::vector<RankLoad> old(kRanks, RankLoad{2, 4000, 7'000'000});
    std::vector<PrefillBalancer> balancers;
    for (int b = 0; b < num_balancers; ++b) {
      PrefillBalancerOptions options;
      options.balancer_idx = b, options.num_balancers = num_balancers;
      balancers.emplace_back(options).add_unit(kRanks);
      balancers.back().report({.unit = 0, .sequence = 1, .loads = old});
    }
    std::vector<double> placed(kRanks, 2);
    for (int i = 0; i < 21 * kRanks; ++i)
      ++placed[balancers[i % num_balancers].place({2000, 0, {}})->choice.rank.rank];
    EXPECT_LE(summarize_loads(placed).max_over_mean(), 1.2) << num_balancers << " balancers";
  }
}

// Case C11: two routers share the ranks. Fed by the ranks' events they lose almost no hits against a single
// one; each with only its own view, they do.
int64_t replay_sessions(int num_routers, bool share_events) {
  const int units[] = {1, 1, 1, 1, 1, 1, 1, 1};
  std::vector<PrefillRouter> routers(num_routers, PrefillRouter({}, units));
  std::vector<std::set<uint64_t>> caches(8);  // what the ranks really hold
  std::deque<std::pair<int, std::vector<uint64_t>>> events;
  std::deque<std::tuple<PrefillRouter*, RankRef, RankLoad>> running;
  Rng rng(11);
  std::map<uint64_t, int> turns;
  int64_t hits = 0;
  for (int i = 0; i < 4000; ++i) {
    const uint64_t session = rng.next_below(600);
    const auto blocks = distinct_prompt(session, 8 + 4 * std::min(turns[session]++, 20));
    PrefillRouter& router = routers[rng.next_below(num_routers)];
    const auto placed = router.route(static_cast<int64_t>(blocks.size()) * 64 + 10, blocks, 0);
    const int rank = placed->choice.rank.unit;
    for (uint64_t block : blocks) hits += caches[rank].count(block) != 0;
    caches[rank].insert(blocks.begin(), blocks.end());
    running.emplace_back(&router, placed->choice.rank, placed->choice.load);
    if (running.size() > 16) {
      const auto& [owner, at, load] = running.front();
      owner->balancer().release(at, load);
      running.pop_front();
    }
    events.emplace_back(rank, blocks);
    if (events.size() > 20) {  // events arrive late
      for (PrefillRouter& other : routers) {
        if (share_events) other.index().insert(events.front().first, events.front().second);
      }
      events.pop_front();
    }
  }
  return hits;
}

TEST(PrefillRouter, C11_two_routers_lose_less_than_two_percent_of_the_hits) {
  const double one = static_cast<double>(replay_sessions(1, true));
  EXPECT_GT(static_cast<double>(replay_sessions(2, true)), 0.98 * one) << "same_view_same_hits";
  EXPECT_LT(static_cast<double>(replay_sessions(2, false)), 0.98 * one);
}

// The router's level search against looking at every rank's exact match.
TEST(PrefillRouter, finds_the_best_holder) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    std::vector<int> units(20, 2);
    PrefillRouter router({}, units);
    const auto blocks = distinct_prompt(seed, 80);
    std::vector<PrefixMatch> matches;
    std::map<int, int> held_by;  // blocks, by global rank
    for (int u = 0; u < 20; ++u) {
      for (int r = 0; r < 2; ++r) {
        const RankRef rank{u, r};
        const int held = rng.next_below(3) == 0 ? static_cast<int>(rng.next_below(81)) : 0;
        router.index().insert(router.global_rank(rank), std::span(blocks).first(held));
        held_by[router.global_rank(rank)] = held;
        if (held > 0) matches.push_back({rank, held * 64});
        if (rng.next_below(2) == 0) {
          router.balancer().charge(
              router.balancer().choice_at(rank, 1 + static_cast<int64_t>(rng.next_below(6000)), 0, 0));
        }
      }
    }
    const PrefillChoice exact = *router.balancer().pick({80 * 64 + 1, 0, matches});
    const int64_t exact_finish = router.balancer().finish_ns(exact);
    PrefillBalancer before = router.balancer();
    const PrefillChoice found = router.route(80 * 64 + 1, blocks, 0)->choice;
    // Levels are eighths, so up to an eighth of the deepest match may go unseen when ranks are compared.
    EXPECT_LE(before.finish_ns(found), exact_finish + before.cost().cost_ns(10 * 64, 4480)) << "best_holder";
    const int rank = router.global_rank(found.rank);
    EXPECT_EQ(found.cached_tokens, 64 * held_by[rank]) << "hits_to_the_block";
    EXPECT_EQ(router.index().depth_of(rank, blocks, 0), 80) << "noted_at_once";
  }
}

TEST(PrefixIndex, agrees_with_sets_under_inserts_evictions_and_losses) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    constexpr int kRanks = 70;
    PrefixIndex index({.num_ranks = kRanks}), again({.num_ranks = kRanks});
    std::map<uint64_t, std::set<int>> model;
    for (int step = 0; step < 3000; ++step) {
      const int rank = static_cast<int>(rng.next_below(seed % 2 == 0 ? kRanks : 6));
      const uint64_t block = rng.next_below(400);
      const uint64_t kind = rng.next_below(200);
      if (kind == 0) {
        index.clear_rank(rank), again.clear_rank(rank);
        for (uint64_t b = 1; b < 400; ++b) ASSERT_FALSE(index.holds(rank, b)) << "forgotten_with_the_rank";
        for (auto it = model.begin(); it != model.end();) {
          it->second.erase(rank);
          it = it->second.empty() ? model.erase(it) : std::next(it);
        }
      } else if (kind < 110) {
        index.insert(rank, {&block, 1}), again.insert(rank, {&block, 1});
        model[block == 0 ? 1 : block].insert(rank);
      } else {
        index.evict(rank, {&block, 1}), again.evict(rank, {&block, 1});
        const auto it = model.find(block == 0 ? 1 : block);
        if (it != model.end()) {
          it->second.erase(rank);
          if (it->second.empty()) model.erase(it);
        }
      }
      ASSERT_EQ(index.num_entries(), model.size());
    }
    for (uint64_t block = 1; block < 400; ++block) {
      std::vector<int> order, other_order;
      index.for_each_holder(block, [&](int rank) { order.push_back(rank); });
      again.for_each_holder(block, [&](int rank) { other_order.push_back(rank); });
      ASSERT_EQ(order, other_order) << "fixed_order";
      const std::set<int> holders(order.begin(), order.end());
      ASSERT_EQ(holders, model.count(block) ? model[block] : std::set<int>{}) << "exact_holders";
      for (int rank = 0; rank < kRanks; ++rank) ASSERT_EQ(index.holds(rank, block), holders.count(rank) != 0);
    }
  }
}

TEST(PrefixIndex, drops_what_exceeds_its_limit) {
  PrefixIndex index({.num_ranks = 2, .entries_max = 10});
  const auto blocks = distinct_prompt(1, 12);
  index.insert(0, blocks);
  EXPECT_EQ(index.num_entries(), 10u) << "bounded";
  EXPECT_EQ(index.num_dropped(), 1u) << "bounded";
  EXPECT_EQ(index.depth(blocks), 10) << "bounded";
}

// ---- cutting forwards ----

TEST(PrefillCut, keeps_its_invariants) {
  int cut_for_tokens = 0, shared = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const PrefillCost cost;
    PrefillBudget budget;
    budget.cost_ns = 1 + static_cast<int64_t>(rng.next_below(50'000'000));
    if (rng.next_below(3) == 0) budget.tokens_max = static_cast<int64_t>(1 + rng.next_below(100)) * 64;
    std::vector<PrefillQueued> prompts(rng.next_below(8));
    for (PrefillQueued& next : prompts) {
      const uint64_t most = rng.next_below(2) == 0 ? 30000 : 500;
      next = {static_cast<int64_t>(rng.next_below(40) * 64), 1 + static_cast<int64_t>(rng.next_below(most))};
    }
    std::vector<PrefillChunk> chunks;
    const RankLoad used = cut_forward(prompts, cost, budget, chunks);
    ASSERT_EQ(chunks.empty(), prompts.empty()) << "always_advances";
    std::vector<int64_t> tokens_of(prompts.size());
    int64_t tokens = 0, cost_ns = 0;
    int32_t last = -1;
    for (const auto& [prompt, n] : chunks) {
      const PrefillQueued& p = prompts[static_cast<size_t>(prompt)];
      ASSERT_GT(prompt, std::exchange(last, prompt));
      ASSERT_GT(n, 0);
      ASSERT_LE(n, p.left_tokens);
      ASSERT_TRUE(n == p.left_tokens || (p.done_tokens + n) % 64 == 0);
      tokens_of[static_cast<size_t>(prompt)] = n;
      tokens += n, cost_ns += cost.cost_ns(n, p.done_tokens);
    }
    EXPECT_EQ(used, (RankLoad{static_cast<int64_t>(chunks.size()), tokens, cost_ns}));
    const bool forced = chunks.size() == 1 && chunks[0].tokens <= 64;
    EXPECT_TRUE(cost_ns <= budget.cost_ns || forced) << "within_budget";
    EXPECT_LE(tokens, budget.tokens_max) << "within_budget";
    if (prompts.empty()) continue;
    const auto whole = [&](size_t i) { return tokens_of[i] == prompts[i].left_tokens; };
    // A block more would pass one of the halves.
    const int64_t more = tokens_of[0] + 64;
    const bool half =
        cost.cost_ns(more, prompts[0].done_tokens) > budget.cost_ns / 2 || more > budget.tokens_max / 2;
    EXPECT_TRUE(tokens_of[0] > 0 && (whole(0) || half)) << "oldest_gets_half";
    const bool tokens_bind = tokens > budget.tokens_max - 64;
    cut_for_tokens += tokens_bind;
    shared += chunks.size() > 2;
    for (size_t i = 1; i < prompts.size() && !tokens_bind; ++i) {
      for (size_t j = 1; j < prompts.size(); ++j) {
        const auto work = [&](size_t k) {
          return cost.cost_ns(prompts[k].left_tokens, prompts[k].done_tokens);
        };
        EXPECT_TRUE(whole(i) || !whole(j) || work(i) >= work(j)) << "least_next, " << i << " " << j;
      }
    }
  }
  EXPECT_GT(cut_for_tokens, 50);
  EXPECT_GT(shared, 200);
}

// Nothing that fits is left out: while a prompt waits, less than a block's cost of it is left of the budget.
TEST(PrefillCut, fills_the_forward) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    const PrefillCost cost;
    PrefillBudget budget;
    budget.cost_ns = 5'000'000 + static_cast<int64_t>(rng.next_below(40'000'000));
    std::vector<PrefillQueued> prompts(1 + rng.next_below(12));
    for (PrefillQueued& next : prompts)
      next = {static_cast<int64_t>(rng.next_below(40) * 64), 1 + static_cast<int64_t>(rng.next_below(9000))};
    std::vector<PrefillChunk> chunks;
    const RankLoad used = cut_forward(prompts, cost, budget, chunks);
    std::vector<int64_t> tokens_of(prompts.size());
    for (const auto& [prompt, n] : chunks) tokens_of[static_cast<size_t>(prompt)] = n;
    for (size_t i = 0; i < prompts.size() && used.tokens <= budget.tokens_max - 64; ++i) {
      if (tokens_of[i] == prompts[i].left_tokens) continue;
      const int64_t block = cost.cost_ns(64, prompts[i].done_tokens + tokens_of[i]);
      EXPECT_LT(budget.cost_ns - used.cost, 2 * block) << "seed " << seed << " prompt " << i;
    }
  }
}

// Prompts as long as the published ones, with the two hit classes; ranks with enough in the queue are
// saturated.
struct EfficiencyRun {
  double efficiency = 0;  // mean over ranks of a forward's cost, over the largest: what the barrier leaves
  double queued = 0;      // mean over forwards of the queues' cost, largest over mean of the ranks
};
EfficiencyRun run_forwards(PrefillPolicy policy, uint64_t seed) {
  constexpr int kRanks = 32, kForwards = 60;
  PrefillBalancer balancer(with_policy(policy));
  balancer.add_unit(kRanks);
  const PrefillCost cost;
  const PrefillBudget budget;
  std::vector<std::deque<PrefillQueued>> queues(kRanks);
  Rng rng(seed);
  EfficiencyRun run;
  std::vector<PrefillChunk> chunks;
  for (int forward = 0; forward < kForwards + 10; ++forward) {
    while (balancer.ledger().total(0).cost < 3 * kRanks * budget.cost_ns) {
      const double length = std::min(65536.0, std::max(16.0, 2289 * std::exp(0.957 * test_normal(rng))));
      const int64_t prompt = static_cast<int64_t>(length);
      const int64_t cached = static_cast<int64_t>(length * (rng.next_double() < 0.623 ? 0.85 : 0.09));
      const auto placed = balancer.place({prompt, cached, {}});
      queues[placed->choice.rank.rank].push_back({placed->choice.cached_tokens, placed->choice.load.tokens});
    }
    double sum = 0, max = 0;
    for (int r = 0; r < kRanks; ++r) {
      const std::vector<PrefillQueued> queue(queues[r].begin(), queues[r].end());
      RankLoad used = cut_forward(queue, cost, budget, chunks);
      sum += static_cast<double>(used.cost), max = std::max(max, static_cast<double>(used.cost));
      for (const PrefillChunk& chunk : chunks) {
        PrefillQueued& prompt = queues[r][static_cast<size_t>(chunk.prompt)];
        prompt.done_tokens += chunk.tokens, prompt.left_tokens -= chunk.tokens;
      }
      used.requests = static_cast<int64_t>(
          std::erase_if(queues[r], [](const PrefillQueued& prompt) { return prompt.left_tokens == 0; }));
      balancer.release({0, r}, used);
    }
    if (forward < 10) continue;
    run.efficiency += sum / kRanks / max / kForwards;
    run.queued += balancer.balance(0).cost_ns.max_over_mean() / kForwards;
  }
  return run;
}

TEST(PrefillCut, saturated_forwards_are_more_than_95_percent_efficient) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const EfficiencyRun fathom = run_forwards(PrefillPolicy::kFathom, seed);
    // Counting requests leaves ranks empty beside full ones, even with cuts.
    const EfficiencyRun by_requests = run_forwards(PrefillPolicy::kLeastRequests, seed);
    const EfficiencyRun by_turn = run_forwards(PrefillPolicy::kRoundRobin, seed);
    std::printf(
        "seed %d: %.1f %% efficient, queues max/mean %.2f; least-requests %.1f %%, %.2f; round-robin %.1f "
        "%%\n",
        static_cast<int>(seed), 100 * fathom.efficiency, fathom.queued, 100 * by_requests.efficiency,
        by_requests.queued, 100 * by_turn.efficiency);
    EXPECT_GE(fathom.efficiency, 0.97) << "seed " << seed;
    EXPECT_LT(by_turn.efficiency, by_requests.efficiency) << "seed " << seed;
    EXPECT_GT(by_requests.queued, fathom.queued) << "seed " << seed;
  }
}

// The busiest rank against the LP bound (work divides freely, a prompt does not): list scheduling stays
// within one prompt.
TEST(PrefillBalancer, the_busiest_rank_is_within_one_prompt_of_the_mean) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Rng rng(seed);
    PrefillBalancer balancer(with_policy(PrefillPolicy::kFathom));
    balancer.add_unit(32);
    int64_t longest = 0;
    for (int i = 0; i < 2000; ++i) {
      const int64_t prompt =
          static_cast<int64_t>(std::min(65536.0, 16 + 2289 * std::exp(0.957 * test_normal(rng))));
      longest = std::max(longest, balancer.place({prompt, 0, {}})->choice.load.cost);
    }
    const PrefillBalance balance = balancer.balance(0);
    EXPECT_LE(balance.cost_ns.max_load, balance.cost_ns.mean_load + static_cast<double>(longest));
    EXPECT_GE(balance.tokens.max_over_mean(), 1);
    EXPECT_GE(balance.attention_pairs.max_over_mean(), 1);
  }
}

TEST(PrefillBalancer, closed_units_rest_and_residuals_count) {
  PrefillBalancer balancer(with_policy(PrefillPolicy::kFathom));
  balancer.add_unit(2);
  balancer.add_unit(2);
  balancer.set_residual(0, 10'000'000);
  EXPECT_EQ(balancer.pick({1000, 0, {}})->rank.unit, 1);
  balancer.set_accepting(1, false);
  EXPECT_EQ(balancer.pick({1000, 0, {}})->rank.unit, 0) << "closed_units_rest";
  balancer.set_accepting(0, false);
  EXPECT_FALSE(balancer.place({1000, 0, {}}).has_value()) << "closed_units_rest";
}

}  // namespace
}  // namespace fathom
