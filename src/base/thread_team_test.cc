// Every tile of a job runs exactly once on some thread of the team, and its writes are visible afterwards.
#include "base/thread_team.h"

#include <gtest/gtest.h>

#include <numeric>

namespace fathom {
namespace {

class ThreadTeamSizes : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(ThreadTeamSizes, every_tile_runs_exactly_once_and_is_visible_to_the_caller) {
  ThreadTeam team({.num_threads = GetParam().first, .spin_iterations = GetParam().second});
  for (int round = 0; round < 2000; ++round) {
    const int num_tiles = round % 37;
    std::vector<int> runs(num_tiles, 0);  // plain ints: the team must order these writes before our reads
    team.run(num_tiles, [&](int64_t tile, int thread) {
      ASSERT_GE(thread, 0);
      ASSERT_LT(thread, team.num_threads());
      ++runs[tile];
    });
    for (int tile = 0; tile < num_tiles; ++tile)
      ASSERT_EQ(runs[tile], 1) << "round " << round << " tile " << tile;
  }
}

INSTANTIATE_TEST_SUITE_P(all, ThreadTeamSizes,
                         testing::Values(std::pair{1, 0}, std::pair{2, 0}, std::pair{2, 2000},
                                         std::pair{5, 0}, std::pair{5, 100}));

// Both threads must take a tile before either goes on, so each begins with its own run.
TEST(ThreadTeam, threads_begin_with_runs_of_their_own_and_go_forward) {
  ThreadTeam team(2);
  for (int num_tiles : {2, 3, 8, 17, 64}) {
    std::atomic<int> begun{0};
    std::vector<int64_t> taken[2];
    team.run(num_tiles, [&](int64_t tile, int thread) {
      if (taken[thread].empty()) begun.fetch_add(1);
      taken[thread].push_back(tile);
      const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (begun.load() < 2 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
    });
    const int64_t half = num_tiles / 2;
    ASSERT_EQ(begun.load(), 2) << num_tiles;
    EXPECT_EQ(taken[0].front(), 0) << num_tiles;
    EXPECT_EQ(taken[1].front(), half) << num_tiles;
    for (const auto& tiles : taken) {
      for (size_t i = 1; i < tiles.size(); ++i) {
        const bool same_run = (tiles[i] < half) == (tiles[i - 1] < half);
        EXPECT_TRUE(!same_run || tiles[i] > tiles[i - 1]) << num_tiles;
      }
    }
  }
}

TEST(ThreadTeam, jobs_alternate_quickly_between_sizes) {
  ThreadTeam team({.num_threads = 3, .spin_iterations = 50});
  int64_t total = 0;
  for (int round = 0; round < 20000; ++round) {
    std::atomic<int64_t> sum{0};
    const int n = 1 + round % 4;
    team.run(n, [&](int64_t tile, int) { sum.fetch_add(tile + 1, std::memory_order_relaxed); });
    ASSERT_EQ(sum.load(), n * (n + 1) / 2);
    total += sum.load();
  }
  EXPECT_GT(total, 0);
}

}  // namespace
}  // namespace fathom
