// The prefill balancer against exhaustive search: every decision by its own objective, and whole placements
// of a few prompts by the work of their busiest rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "balance/prefill_balancer.h"
#include "balance/testing.h"

namespace fathom {
namespace {

// What of each prompt lies in each rank's memory, and what the prompt then costs there.
struct Instance {
  int num_ranks = 1;
  std::vector<int64_t> prompts;                     // tokens
  std::vector<std::vector<PrefillChoice>> choices;  // [prompts][ranks]
};

Instance draw(Rng& rng, const PrefillBalancer& balancer, bool cached) {
  Instance in;
  in.num_ranks = balancer.ledger().num_ranks(0);
  in.prompts.resize(2 + rng.next_below(5));
  for (int64_t& prompt : in.prompts) {
    prompt = static_cast<int64_t>(16 + 2289 * std::exp(0.957 * test_normal(rng)));
    auto& choices = in.choices.emplace_back();
    for (int r = 0; r < in.num_ranks; ++r) {
      const bool hit = cached && rng.next_below(3) == 0;
      const int64_t matched = hit ? static_cast<int64_t>(rng.next_below(prompt)) / 64 * 64 : 0;
      choices.push_back(balancer.choice_at({0, r}, prompt, 0, matched));
    }
  }
  return in;
}

// Places the prompts one after another; the work of the busiest rank.
int64_t place_all(PrefillBalancer& balancer, const Instance& in) {
  for (size_t p = 0; p < in.prompts.size(); ++p) {
    std::vector<PrefixMatch> matches;
    for (const PrefillChoice& choice : in.choices[p]) {
      if (choice.cached_tokens > 0) matches.push_back({choice.rank, choice.cached_tokens});
    }
    balancer.place({in.prompts[p], 0, matches});
  }
  return static_cast<int64_t>(balancer.balance(0).cost_ns.max_load);
}

// The least that any assignment leaves on its busiest rank.
int64_t optimum(const Instance& in) {
  int64_t best = INT64_MAX;
  std::vector<int64_t> work(static_cast<size_t>(in.num_ranks), 0);
  std::function<void(size_t)> assign = [&](size_t p) {
    const int64_t busiest = *std::max_element(work.begin(), work.end());
    if (busiest >= best) return;
    if (p == in.prompts.size()) {
      best = busiest;
      return;
    }
    for (size_t r = 0; r < work.size(); ++r) {
      work[r] += in.choices[p][r].load.cost;
      assign(p + 1);
      work[r] -= in.choices[p][r].load.cost;
    }
  };
  assign(0);
  return best;
}

struct Ratios {
  double mean = 0, worst = 0;
  void add(double ratio, int count) {
    mean += ratio / count;
    worst = std::max(worst, ratio);
  }
};

// Each decision is the best of all ranks by what it minimises, the predicted end of the prompt: units of
// unequal size, some closed, some in a forward, prefixes in memory and in the store.
TEST(PrefillOracle, EveryDecisionIsTheBestOfAllRanks) {
  int by_affinity = 0, from_store = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    PrefillBalancer balancer({});
    const int num_units = 1 + static_cast<int>(rng.next_below(4));
    for (int u = 0; u < num_units; ++u) {
      balancer.add_unit(1 + static_cast<int>(rng.next_below(4)));
      balancer.set_residual(u, static_cast<int64_t>(rng.next_below(3) * 4'000'000));
      if (u > 0) balancer.set_accepting(u, rng.next_below(4) > 0);
    }
    for (int i = 0; i < 12; ++i) {
      const int64_t prompt = 1 + static_cast<int64_t>(rng.next_below(12'000));
      const int64_t stored = rng.next_below(2) == 0 ? static_cast<int64_t>(rng.next_below(prompt)) : 0;
      std::vector<PrefixMatch> matches;
      int64_t best = INT64_MAX;
      for (int u = 0; u < num_units; ++u) {
        for (int r = 0; r < balancer.ledger().num_ranks(u); ++r) {
          const bool hit = rng.next_below(3) == 0;
          const int64_t matched = hit ? static_cast<int64_t>(rng.next_below(prompt)) : 0;
          if (hit) matches.push_back({{u, r}, matched});
          if (!balancer.accepting(u)) continue;
          best = std::min(best, balancer.finish_ns(balancer.choice_at({u, r}, prompt, stored, matched)));
        }
      }
      const PrefillAsk ask{prompt, stored, matches};
      const PrefillChoice choice = *balancer.pick(ask);
      ASSERT_EQ(balancer.finish_ns(choice), best) << "least_finish";
      by_affinity += choice.cached_tokens > stored;
      from_store += choice.loaded_tokens > 0;
      balancer.charge(choice);
    }
  }
  EXPECT_GT(by_affinity, 200);
  EXPECT_GT(from_store, 200);
}

// Nothing cached: list scheduling, so at most 2 - 1/m times the optimum for m ranks in any order, and
// 4/3 - 1/(3m) when the longest come first.
TEST(PrefillOracle, PlacementsAreWithinTheListSchedulingBounds) {
  constexpr int kSeeds = 150;
  Ratios any_order, longest_first;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const int num_ranks = 2 + static_cast<int>(rng.next_below(3));
    const double m = num_ranks;
    const auto placed_over_optimum = [&](const Instance& in) {
      PrefillBalancer balancer({});
      balancer.add_unit(num_ranks);
      return static_cast<double>(place_all(balancer, in)) / static_cast<double>(optimum(in));
    };
    PrefillBalancer shape({});
    shape.add_unit(num_ranks);
    Instance in = draw(rng, shape, false);
    const double ratio = placed_over_optimum(in);
    EXPECT_GE(ratio, 1);
    EXPECT_LE(ratio, 2 - 1 / m) << "list_scheduling";
    any_order.add(ratio, kSeeds);
    const auto longer = [](const PrefillChoice& a, const PrefillChoice& b) {
      return a.load.cost > b.load.cost;
    };
    std::sort(in.prompts.rbegin(), in.prompts.rend());
    std::sort(in.choices.begin(), in.choices.end(),
              [&](const auto& a, const auto& b) { return longer(a[0], b[0]); });
    const double sorted = placed_over_optimum(in);
    EXPECT_GE(sorted, 1);
    EXPECT_LE(sorted, 4.0 / 3 - 1 / (3 * m)) << "list_scheduling";
    longest_first.add(sorted, kSeeds);
  }
  std::printf("over the optimum: as they come %.3f (worst %.3f), longest first %.3f (worst %.3f)\n",
              any_order.mean, any_order.worst, longest_first.mean, longest_first.worst);
  EXPECT_LE(any_order.mean, 1.15);
  EXPECT_LE(longest_first.mean, 1.02);
}

// With prefixes in some ranks' memory a prompt costs differently from rank to rank. Each decision ends no
// later than where the prompt costs least, so the busiest rank has at most the sum of the least costs, which
// is at most m times the optimum; on average it is far from that.
TEST(PrefillOracle, PlacementsWithPrefixesAreWithinTheSumOfLeastCosts) {
  constexpr int kSeeds = 150;
  Ratios ratios;
  for (uint64_t seed = 1000; seed < 1000 + kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    PrefillBalancer balancer({});
    balancer.add_unit(2 + static_cast<int>(rng.next_below(3)));
    const Instance in = draw(rng, balancer, true);
    int64_t least = 0;
    for (const auto& choices : in.choices) {
      least += std::min_element(choices.begin(), choices.end(), [](const auto& a, const auto& b) {
                 return a.load.cost < b.load.cost;
               })->load.cost;
    }
    const int64_t busiest = place_all(balancer, in), best = optimum(in);
    EXPECT_GE(busiest, best);
    EXPECT_LE(busiest, least) << "list_scheduling";
    EXPECT_LE(least, best * in.num_ranks);
    ratios.add(static_cast<double>(busiest) / static_cast<double>(best), kSeeds);
  }
  std::printf("with prefixes, over the optimum: %.3f (worst %.3f)\n", ratios.mean, ratios.worst);
  EXPECT_LE(ratios.mean, 1.2);
}

}  // namespace
}  // namespace fathom
