// Cells that grow with a run, and the shares of requests within an objective.
#include "sim/fleet_metrics.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

namespace fathom::sim {
namespace {

// Whatever comes when: nothing is lost, the order of time is kept, and there are never too many cells.
RC_GTEST_PROP(GrowingCells, LoseNothing, ()) {
  const auto times_ms = *rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, 200'000));
  GrowingCells cells;
  int64_t end_ns = 0;
  for (const int64_t ms : times_ms) {
    ++cells.at(ms * 1'000'000).arrived_requests;
    end_ns = std::max(end_ns, ms * 1'000'000 + 1);
  }
  const std::vector<FleetCell> taken = cells.take(end_ns);
  RC_ASSERT(taken.size() <= GrowingCells::kCellsMax);
  std::vector<int64_t> expected(taken.size());
  for (const int64_t ms : times_ms) ++expected.at(static_cast<size_t>(ms * 1'000'000 / cells.cell_ns()));
  for (size_t i = 0; i < taken.size(); ++i) RC_ASSERT(taken[i].arrived_requests == expected[i]);
}

// A stretch of time is shared out to the last nanosecond, also where the cells become longer meanwhile.
RC_GTEST_PROP(GrowingCells, SpreadAllTime, ()) {
  const auto parts_ms = *rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, 2'000));
  GrowingCells cells;
  int64_t at_ns = 0;
  for (const int64_t ms : parts_ms) {
    const int64_t end_ns = at_ns + ms * 1'000'000;
    cells.spread(at_ns, end_ns, [](FleetCell& c, double seconds) { c.seconds += seconds; });
    at_ns = end_ns;
  }
  const std::vector<FleetCell> taken = cells.take(at_ns);
  const double cell_s = static_cast<double>(cells.cell_ns()) / 1e9;
  double sum = 0;
  for (size_t i = 0; i + 1 < taken.size(); ++i) RC_ASSERT(std::abs(taken[i].seconds - cell_s) < 1e-6);
  for (const FleetCell& c : taken) sum += c.seconds;
  RC_ASSERT(std::abs(sum - static_cast<double>(at_ns) / 1e9) < 1e-6);
}

TEST(GrowingCells, WhatComesAfterTheEndCountsInTheLast) {
  GrowingCells cells;
  ++cells.at(0).steps;
  ++cells.at(900'000'000).steps;
  const std::vector<FleetCell> taken = cells.take(GrowingCells::kFirstCellNs + 1);
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].steps, 1);
  EXPECT_EQ(taken[1].steps, 1);
}

// A request that was told no before its first token did not meet the objective.
TEST(FleetCell, AttainmentCountsWhoNeverGotAToken) {
  FleetCell cell;
  EXPECT_EQ(cell.ttft_attainment(1), 1);
  cell.ttft_ms.add(500, 2);
  cell.ttft_ms.add(4000);
  cell.expired_without_token = 1;
  EXPECT_DOUBLE_EQ(cell.ttft_attainment(1), 0.5);
  EXPECT_DOUBLE_EQ(cell.ttft_attainment(10), 0.75);
  cell.speed_milli.add(30'000);
  cell.speed_milli.add(10'000, 3);
  EXPECT_DOUBLE_EQ(cell.speed_attainment(15), 0.25);
}

}  // namespace
}  // namespace fathom::sim
