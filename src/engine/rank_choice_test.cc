// Which rank takes the next sequence: the shortest prefill queue, level decode ranks within their slots.
#include "engine/rank_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"

namespace fathom {
namespace {

TEST(RankChoice, prefill_goes_to_the_shortest_queue) {
  const ChooseRank choose = make_prefill_choice(3, {});
  const std::vector<RankLoad> loads = {{1, 900, 1'600'000}, {4, 100, 180'000}, {2, 500, 900'000}};
  EXPECT_EQ(choose(loads, {1, 300, 530'000}), 1);
  const std::vector<RankLoad> later = {{0, 0, 0}, {4, 100, 180'000}, {2, 500, 900'000}};
  EXPECT_EQ(choose(later, {1, 300, 530'000}), 0) << "the loads are those of this call";
}

TEST(RankChoice, decode_never_passes_the_slots_and_stays_level) {
  Rng rng(1);
  for (const int32_t num_ranks : {1, 4, 9}) {
    const int32_t slots = 8;
    const ChooseRank choose = make_decode_choice({num_ranks, slots});
    std::vector<RankLoad> loads(static_cast<size_t>(num_ranks));
    for (int i = 0; i < num_ranks * slots; ++i) {
      const RankLoad request{1, 100 + static_cast<int64_t>(rng.next_below(900)), 200};
      const int32_t rank = choose(loads, request);
      ASSERT_GE(rank, 0);
      ASSERT_LT(loads[static_cast<size_t>(rank)].requests, slots);
      loads[static_cast<size_t>(rank)] += request;
      const auto [low, high] = std::minmax_element(
          loads.begin(), loads.end(), [](const auto& a, const auto& b) { return a.requests < b.requests; });
      EXPECT_LE(high->requests - low->requests, 2);
    }
    EXPECT_EQ(choose(loads, {1, 100, 100}), kNoRank);
  }
}

}  // namespace
}  // namespace fathom
