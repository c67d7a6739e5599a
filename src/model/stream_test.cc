// Which tiles threads get.
#include "model/stream.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(TileInRuns, is_a_permutation_that_gives_each_thread_neighbours) {
  for (int64_t threads = 1; threads <= 9; ++threads) {
    for (int64_t tiles = 1; tiles <= 40; ++tiles) {
      std::vector<int> seen(static_cast<size_t>(tiles), 0);
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t tile = tile_in_runs(i, tiles, threads);
        ASSERT_TRUE(0 <= tile && tile < tiles) << i << " of " << tiles << " on " << threads;
        ++seen[static_cast<size_t>(tile)];
        if (i >= threads && i < tiles / threads * threads) {
          EXPECT_EQ(tile, tile_in_runs(i - threads, tiles, threads) + 1);
        }
      }
      EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(tiles), 1)) << tiles << " on " << threads;
    }
  }
}

}  // namespace
}  // namespace fathom
