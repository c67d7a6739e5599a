// The published expert balancer against its golden cases, and the refinement against exhaustive search.
#include "balance/eplb.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "balance/eplb_refine.h"
#include "balance/testing.h"

namespace fathom {
namespace {

struct GoldenCase {
  std::string name;
  std::vector<float> weight;
  RebalanceShape shape;
  std::vector<int32_t> phy2log, log2phy, logcnt;
  double max_load, mean_load;
  ExpertWeights view() const { return {1, static_cast<int>(weight.size()), weight}; }
};

std::vector<GoldenCase> golden_cases() {
  std::ifstream in(FATHOM_SOURCE_DIR "/tests/fixtures/eplb/eplb_golden.json");
  std::vector<GoldenCase> cases;
  for (const auto& j : nlohmann::json::parse(in)) {
    GoldenCase c{j["name"],
                 j["weight"],
                 {j["num_replicas"], j["num_groups"], j["num_nodes"], j["num_gpus"]},
                 j["phy2log"],
                 {},
                 j["logcnt"],
                 j["max_load"],
                 j["mean_load"]};
    for (const auto& row : j["log2phy"]) c.log2phy.insert(c.log2phy.end(), row.begin(), row.end());
    cases.push_back(std::move(c));
  }
  return cases;
}

TEST(Eplb, equals_the_published_algorithm_on_every_golden_case) {
  const auto cases = golden_cases();
  ASSERT_EQ(cases.size(), 8u);
  for (const GoldenCase& c : cases) {
    SCOPED_TRACE(c.name);
    const ExpertPlacement placement = rebalance_experts(c.view(), c.shape).value();
    EXPECT_EQ(placement.phy2log, c.phy2log) << "as_published";
    EXPECT_EQ(placement.log2phy, c.log2phy) << "as_published";
    EXPECT_EQ(placement.logcnt, c.logcnt) << "as_published";
    const LoadSummary summary = gpu_load_summary(c.weight, placement, 0, c.shape.num_gpus);
    EXPECT_EQ(summary.max_load, c.max_load);
    EXPECT_EQ(summary.mean_load, c.mean_load);
  }
}

TEST(Eplb, layers_do_not_touch_one_another) {
  const auto cases = golden_cases();
  std::vector<float> both = cases[0].weight;
  both.insert(both.end(), cases[1].weight.begin(), cases[1].weight.end());
  const ExpertPlacement placement = rebalance_experts({2, 12, both}, cases[0].shape).value();
  for (int l = 0; l < 2; ++l) {
    EXPECT_TRUE(std::ranges::equal(placement.slots(l), cases[l].phy2log)) << "layers_apart";
    EXPECT_TRUE(std::ranges::equal(placement.counts(l), cases[l].logcnt)) << "layers_apart";
  }
}

// The two tie rules, where every weight is equal: lowest expert first, lowest pack first.
TEST(Eplb, ties_go_to_the_lowest_index) {
  const std::vector<float> weight(4, 1.0f);
  const ExpertPlacement placement = rebalance_experts({1, 4, weight}, {6, 1, 1, 3}).value();
  // Copies go to experts 0 and 1. Singles 2 and 3 are packed first; the first halves share GPU 2, the copies
  // fill up.
  EXPECT_EQ(placement.logcnt, (std::vector<int32_t>{2, 2, 1, 1})) << "lowest_index_wins_ties";
  EXPECT_EQ(placement.phy2log, (std::vector<int32_t>{2, 0, 3, 1, 0, 1})) << "lowest_index_wins_ties";
}

TEST(Eplb, says_which_field_is_wrong) {
  const std::vector<float> weight(12, 1.0f);
  const auto message = [&](RebalanceShape shape, std::span<const float> values) {
    return rebalance_experts({1, static_cast<int>(values.size()), values}, shape).status().message();
  };
  EXPECT_EQ(message({15, 4, 2, 8}, weight), "num_replicas: 15 does not divide by num_gpus = 8");
  EXPECT_EQ(message({16, 6, 3, 8}, weight), "num_gpus: 8 does not divide by num_nodes = 3");
  EXPECT_EQ(message({16, 5, 2, 8}, weight), "weight: 12 does not divide by num_groups = 5");
  EXPECT_EQ(message({8, 4, 2, 8}, weight), "num_replicas: 8 slots cannot hold 12 experts");
  EXPECT_EQ(message({16, 4, 0, 8}, weight), "num_nodes: 0 is not between 1 and 65536");
  EXPECT_EQ(message({16, 4, 2, 8}, std::vector<float>{}), "weight: 0 is not between 1 and 65536");
  std::vector<float> negative = weight;
  negative[3] = -1;
  EXPECT_EQ(message({16, 4, 2, 8}, negative), "weight[3]: -1 is not a finite number >= 0");
}

// Named invariants on random shapes: every expert has a slot, log2phy and phy2log are inverse, hierarchical
// placements keep a group on one node.
TEST(Eplb, placements_are_consistent_on_random_shapes) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const int nodes = 1 + rng.next_below(3), gpus = nodes * (1 + rng.next_below(3));
    const int groups = nodes * (1 + rng.next_below(3)), experts = groups * (1 + rng.next_below(4));
    const int slots = gpus * ((experts + gpus - 1) / gpus + rng.next_below(2));
    const auto weight = lognormal_weights(rng, 2 * experts, 0.8, 100);
    const RebalanceShape shape{slots, groups, nodes, gpus};
    const ExpertPlacement p = rebalance_experts({2, experts, weight}, shape).value();
    for (int l = 0; l < 2; ++l) {
      int listed = 0;
      for (int e = 0; e < experts; ++e) {
        std::set<int> on_nodes;
        ASSERT_FALSE(p.replicas(l, e).empty()) << "every_expert_has_a_slot";
        ASSERT_EQ(p.counts(l)[e], static_cast<int>(p.replicas(l, e).size())) << "tables_agree";
        for (int32_t slot : p.replicas(l, e)) {
          ASSERT_EQ(p.slots(l)[slot], e) << "tables_agree";
          on_nodes.insert(slot / (slots / nodes));
          ++listed;
        }
        EXPECT_EQ(on_nodes.size(), 1u) << "groups_stay_on_a_node";
        EXPECT_EQ(*on_nodes.begin(),
                  p.replicas(l, e / (experts / groups) * (experts / groups))[0] / (slots / nodes))
            << "groups_stay_on_a_node";
      }
      EXPECT_EQ(listed, slots) << "every_expert_has_a_slot";
    }
  }
}

// ---- the refinement ----

TEST(EplbRefine, never_worse_on_every_golden_case) {
  for (const GoldenCase& c : golden_cases()) {
    const ExpertPlacement refined = rebalance_and_refine(c.view(), c.shape).value();
    const LoadSummary summary = gpu_load_summary(c.weight, refined, 0, c.shape.num_gpus);
    EXPECT_LE(summary.max_load, c.max_load) << "never_worse, " << c.name;
    EXPECT_GE(summary.max_load, placement_lower_bound(c.weight, c.shape) * (1 - 1e-12)) << c.name;
  }
}

TEST(EplbRefine, keeps_its_invariants_on_random_layers) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const bool hierarchical = seed % 2 == 0;
    const RebalanceShape shape = hierarchical ? RebalanceShape{72, 8, 2, 8} : RebalanceShape{72, 1, 1, 12};
    const auto weight = lognormal_weights(rng, 64, 0.2 * (seed % 5), 300);
    const ExpertWeights view{1, 64, weight};
    const ExpertPlacement start = rebalance_experts(view, shape).value();
    const ExpertPlacement refined = refine_experts(view, shape, start).value();
    const double before = gpu_load_summary(weight, start, 0, shape.num_gpus).max_load;
    const double after = gpu_load_summary(weight, refined, 0, shape.num_gpus).max_load;
    EXPECT_LE(after, before) << "never_worse";
    EXPECT_TRUE(after < before || refined == start) << "untouched";
    ASSERT_EQ(refined.slots(0).size(), start.slots(0).size()) << "same_shape";
    for (int e = 0; e < 64; ++e) {
      ASSERT_FALSE(refined.replicas(0, e).empty()) << "same_shape";
      if (!hierarchical) continue;
      std::set<int> nodes;
      for (int32_t slot : refined.replicas(0, e)) nodes.insert(slot / 36);
      EXPECT_EQ(nodes.size(), 1u) << "stays_on_node";
    }
  }
}

// The optimum by trying every assignment of experts to slots (GPUs are interchangeable, so the first holds
// expert 0).
double exhaustive_optimum(std::span<const float> weights, int num_slots, int num_gpus) {
  const int n = static_cast<int>(weights.size()), per_gpu = num_slots / num_gpus;
  std::vector<int32_t> slots(num_slots), count(n, 0);
  double best = 1e30;
  std::function<void(int)> place = [&](int s) {
    if (s == num_slots) {
      if (std::ranges::find(count, 0) != count.end()) return;
      double max = 0;
      for (int g = 0; g < num_gpus; ++g) {
        double load = 0;
        for (int i = 0; i < per_gpu; ++i)
          load += weights[slots[g * per_gpu + i]] / double(count[slots[g * per_gpu + i]]);
        max = std::max(max, load);
      }
      best = std::min(best, max);
      return;
    }
    // Within a GPU slots are interchangeable too: rising experts only.
    for (int e = s % per_gpu == 0 ? 0 : slots[s - 1]; e < n; ++e) {
      slots[s] = e;
      ++count[e];
      place(s + 1);
      --count[e];
    }
  };
  place(0);
  return best;
}

TEST(EplbRefine, is_near_the_exhaustive_optimum_on_small_cases) {
  double published_sum = 0, refined_sum = 0, optimum_sum = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Rng rng(seed);
    const auto weight = lognormal_weights(rng, 5, 0.8, 100);
    const RebalanceShape shape{8, 1, 1, 4};
    const ExpertWeights view{1, 5, weight};
    const double optimum = exhaustive_optimum(weight, 8, 4);
    const double published = gpu_load_summary(weight, rebalance_experts(view, shape).value(), 0, 4).max_load;
    const double refined = gpu_load_summary(weight, rebalance_and_refine(view, shape).value(), 0, 4).max_load;
    EXPECT_GE(refined, optimum * (1 - 1e-9)) << "seed " << seed;
    EXPECT_LE(refined, optimum * 1.06) << "seed " << seed;
    published_sum += published, refined_sum += refined, optimum_sum += optimum;
  }
  EXPECT_LT(refined_sum, published_sum);
  EXPECT_LE(refined_sum, optimum_sum * 1.01);
}

// Fresh statistics are the bigger gain: refining yesterday's placement on today's loads beats keeping it.
TEST(EplbRefine, follows_drifting_statistics) {
  Rng rng(5);
  auto yesterday = lognormal_weights(rng, 256, 0.6, 1000);
  std::vector<float> today = yesterday;
  for (float& w : today) w *= static_cast<float>(std::exp(0.3 * test_normal(rng)));
  const RebalanceShape shape{288, 8, 18, 144};
  const ExpertPlacement stale = rebalance_experts({1, 256, yesterday}, shape).value();
  const ExpertPlacement fresh = refine_experts({1, 256, today}, shape, stale, {.repack_trials = 0}).value();
  EXPECT_LT(gpu_load_summary(today, fresh, 0, 144).max_over_mean(),
            0.95 * gpu_load_summary(today, stale, 0, 144).max_over_mean());

  std::vector<float> folded(2, 8.0f);
  const std::vector<int64_t> counts{4, 0};
  fold_statistics(folded, counts, 0.5f);
  EXPECT_EQ(folded, (std::vector<float>{8, 4}));
}

}  // namespace
}  // namespace fathom
