// Placements follow what tokens choose: hot experts get the copies, one layer after a step, and only for a
// gain.
#include "engine/expert_rebalancer.h"

#include <gtest/gtest.h>

#include <vector>

#include "balance/eplb_refine.h"
#include "base/rng.h"
#include "model/forward.h"
#include "model/testing.h"

namespace fathom {
namespace {

constexpr int kLayers = 3, kExperts = 16, kRanks = 4;
constexpr PlacementShape kShape{kLayers, kExperts, 8, kRanks};

// One step's counts: in each layer 4,096 choices by popularity.
std::vector<int64_t> counts_of(const std::vector<double>& popularity, Rng& rng) {
  std::vector<int64_t> counts(popularity.size());
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto first = popularity.begin() + layer * kExperts;
    double sum = 0;
    for (int e = 0; e < kExperts; ++e) sum += first[e];
    for (int i = 0; i < 4096; ++i) {
      double at = rng.next_double() * sum;
      int e = 0;
      while (e + 1 < kExperts && at >= first[e]) at -= first[e++];
      ++counts[static_cast<size_t>(layer * kExperts + e)];
    }
  }
  return counts;
}

// The busiest rank over the mean, when tokens split evenly over an expert's slots.
double max_over_mean(const PlacementTable& table, int layer, const std::vector<double>& popularity) {
  const LayerPlacement& placement = *table.snapshot()[static_cast<size_t>(layer)];
  std::vector<double> ranks(kRanks);
  for (int e = 0; e < kExperts; ++e) {
    const auto slots = placement.slots_of(e);
    for (const int32_t slot : slots) {
      ranks[static_cast<size_t>(kShape.rank_of(slot))] +=
          popularity[static_cast<size_t>(layer * kExperts + e)] / static_cast<double>(slots.size());
    }
  }
  return summarize_loads(ranks).max_over_mean();
}

std::vector<double> one_hot_expert(int hot) {
  std::vector<double> popularity(kLayers * kExperts, 1);
  for (int layer = 0; layer < kLayers; ++layer) {
    popularity[static_cast<size_t>(layer * kExperts + (hot + layer) % kExperts)] = 8;
  }
  return popularity;
}

TEST(ExpertRebalancer, GivesTheCopiesToWhatTokensChoose) {
  PlacementTable table(kShape);
  ExpertRebalancer rebalancer(table);
  Rng rng(1);
  const std::vector<double> popularity = one_hot_expert(11);
  for (int layer = 0; layer < kLayers; ++layer)
    EXPECT_GT(max_over_mean(table, layer, popularity), 1.5) << layer;
  std::vector<uint64_t> versions(kLayers, 0);
  for (int step = 0; step < 20; ++step) {
    rebalancer.after_step(counts_of(popularity, rng));
    const PlacementSnapshot now = table.snapshot();
    int changed = 0;
    for (size_t layer = 0; layer < kLayers; ++layer) {
      changed += now[layer]->version() != versions[layer];
      versions[layer] = now[layer]->version();
    }
    EXPECT_LE(changed, 1) << "one_layer_a_step";
  }
  EXPECT_GE(rebalancer.num_replaced(), kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_LT(max_over_mean(table, layer, popularity), 1.1) << layer;
    EXPECT_GT(table.snapshot()[static_cast<size_t>(layer)]->slots_of((11 + layer) % kExperts).size(), 3u)
        << layer;
  }
}

TEST(ExpertRebalancer, LeavesWhatIsLevel) {
  PlacementTable table(kShape);
  ExpertRebalancer rebalancer(table);
  Rng rng(2);
  std::vector<double> popularity = one_hot_expert(5);
  for (int step = 0; step < 40; ++step) rebalancer.after_step(counts_of(popularity, rng));
  const int64_t settled = rebalancer.num_replaced();
  for (int step = 0; step < 200; ++step) rebalancer.after_step(counts_of(popularity, rng));
  // Looked at 200 times; chance alone seldom shows so much to gain.
  EXPECT_LE(rebalancer.num_replaced() - settled, kLayers) << "worth_it";
  // Other experts become hot: a few windows later they have the copies.
  popularity = one_hot_expert(12);
  EXPECT_GT(max_over_mean(table, 0, popularity), 1.5);
  for (int step = 0; step < 40; ++step) rebalancer.after_step(counts_of(popularity, rng));
  for (int layer = 0; layer < kLayers; ++layer)
    EXPECT_LT(max_over_mean(table, layer, popularity), 1.1) << "fresh";
}

TEST(ExpertRebalancer, WaitsForEnoughTokens) {
  PlacementTable table(kShape);
  ExpertRebalancer rebalancer(table);
  std::vector<int64_t> one(kLayers * kExperts);
  one[3] = one[3 + kExperts] = one[3 + 2 * kExperts] = 1;
  for (int step = 0; step < 128 * kExperts - 1; ++step) rebalancer.after_step(one);
  EXPECT_EQ(rebalancer.num_replaced(), 0);
  rebalancer.after_step(one);
  EXPECT_EQ(rebalancer.num_replaced(), 1);
}

// A real group: with every step placed anew where it can be, a deterministic group gives the same bits, those
// of one rank.
TEST(ExpertRebalancer, ADeterministicGroupsLogitsStayTheSame) {
  const auto model = testing::random_model(testing::tiny_config(), WeightFormat::kF32, 4);
  const testing::TestSequence s = testing::test_sequence({7, 8, 9, 10, 7, 7, 3}, 0, 64);
  const auto logits_of = [&](Phase phase, int num_ranks, int redundant, int64_t* replaced) {
    KvStorage storage(testing::kv_layout(*model), 4);
    ForwardOptions options{.phase = phase, .num_ranks = num_ranks, .redundant_experts = redundant};
    options.deterministic = true;
    auto group = ForwardGroup::create(*model, storage, options).value();
    ExpertRebalancer rebalancer(group->placement(), {.window_tokens_per_expert = 1, .gain_min = 0.01});
    std::vector<float> all;
    for (int step = 0; step < 12; ++step) {
      std::vector<RankBatch> ranks(static_cast<size_t>(num_ranks));
      ranks[static_cast<size_t>(step % num_ranks)].chunks = {testing::next_chunk(s, 7, true)};
      MatrixView<const float> logits;
      EXPECT_TRUE(group->step(ranks, &logits).ok());
      all.insert(all.end(), logits.row(0), logits.row(0) + logits.cols);
      rebalancer.after_step(group->last_stats().expert_tokens);
    }
    if (replaced != nullptr) *replaced = rebalancer.num_replaced();
    return all;
  };
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    int64_t replaced = 0;
    EXPECT_EQ(logits_of(phase, 3, 3, &replaced), logits_of(phase, 1, 0, nullptr));
    EXPECT_GT(replaced, 0);
  }
}

}  // namespace
}  // namespace fathom
