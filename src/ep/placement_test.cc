// Shapes that divide and shapes that do not, and versions that move on.
#include "ep/placement.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(Placement, DefaultPutsExpertsInOrderAndCopiesTheFirst) {
  const LayerPlacement placement = default_placement({.num_layers = 1, .num_experts = 4, .num_redundant = 2});
  EXPECT_EQ(placement.num_slots(), 6);
  for (int slot = 0; slot < 6; ++slot) EXPECT_EQ(placement.expert_of(slot), slot % 4);
  EXPECT_EQ(std::vector<int32_t>(placement.slots_of(1).begin(), placement.slots_of(1).end()),
            (std::vector<int32_t>{1, 5}));
  EXPECT_EQ(placement.slots_of(3).size(), 1u);
}

TEST(Placement, ShapesOfThePublishedUnitsDivide) {
  const PlacementShape prefill{.num_layers = 58, .num_experts = 256, .num_redundant = 32, .num_ranks = 32};
  const PlacementShape decode{.num_layers = 58, .num_experts = 256, .num_redundant = 32, .num_ranks = 144};
  EXPECT_TRUE(prefill.validate().ok());
  EXPECT_TRUE(decode.validate().ok());
  EXPECT_EQ(prefill.slots_per_rank(), 9);
  EXPECT_EQ(decode.slots_per_rank(), 2);
  EXPECT_EQ(decode.rank_of(287), 143);
}

TEST(Placement, RefusesSlotsThatDoNotDivideNamingTheNumbers) {
  const Status status =
      PlacementShape{.num_layers = 1, .num_experts = 256, .num_redundant = 30, .num_ranks = 32}.validate();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "256 experts + 30 redundant experts = 286 slots do not divide by 32 ranks (remainder 30)");
}

TEST(Placement, RefusesAnExpertWithoutASlot) {
  EXPECT_EQ(LayerPlacement::from_slots(3, {0, 2, 2}).status().message(), "placement: no slot holds expert 1");
  EXPECT_EQ(LayerPlacement::from_slots(3, {0, 3, 2}).status().message(),
            "placement: slot 1 holds expert 3, experts are 0 to 2");
}

TEST(Placement, AReplacedLayerIsANewVersionAndOldSnapshotsStay) {
  PlacementTable table({.num_layers = 2, .num_experts = 3, .num_redundant = 1, .num_ranks = 2});
  const PlacementSnapshot before = table.snapshot();
  ASSERT_TRUE(table.replace_layer(1, {2, 1, 0, 2}).ok());
  const PlacementSnapshot after = table.snapshot();
  EXPECT_EQ(before[1]->expert_of(0), 0);
  EXPECT_EQ(after[1]->expert_of(0), 2);
  EXPECT_EQ(after[1]->version(), before[1]->version() + 1);
  EXPECT_EQ(after[0], before[0]);
  EXPECT_FALSE(table.replace_layer(0, {0, 1, 2}).ok());
  EXPECT_FALSE(table.replace_layer(0, {0, 1, 1, 1}).ok());
  EXPECT_EQ(table.snapshot()[0], before[0]);
}

}  // namespace
}  // namespace fathom
