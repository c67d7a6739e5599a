// The layers between micro-benchmarks and production: user speed at the published batch, KV length and unit.
#include "sim/fluid.h"

#include <gtest/gtest.h>

#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

constexpr double kRequestsPerRank = 88, kKvTokens = 4989;
constexpr double kRanks = 144, kSlots = 288;

double user_speed(bool mtp, double expert_imbalance, double kv_imbalance, double requests_imbalance) {
  const DecodeUnitShape unit{kRanks, kSlots, mtp ? 2.0 : 1.0, expert_imbalance, mtp};
  FluidLoad load;
  load.kv_tokens_per_request = kKvTokens;
  load.kv_imbalance = kv_imbalance;
  load.requests_imbalance = requests_imbalance;
  return decode_point(test_profile("h800"), {}, unit, load, kRequestsPerRank).tokens_per_s_per_user;
}

// Values of an independent prototype of the same constants; ours adds what it leaves out (MTP's layer,
// hosts).
TEST(Fluid, EveryLayerOfRealismCostsWhatThePrototypeSays) {
  EXPECT_NEAR(user_speed(true, 1, 1, 1) / 24.0, 1, 0.02);
  EXPECT_NEAR(user_speed(false, 1, 1, 1) / 18.9, 1, 0.02);
  EXPECT_NEAR(user_speed(true, 1.15, 1.05, 1.03) / 22.7, 1, 0.02);
}

}  // namespace
}  // namespace fathom::sim
