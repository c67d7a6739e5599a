// What fits, what does not, and that the arithmetic shown is right.
#include "model/memory_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace fathom {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

TEST(MemoryPlan, refuses_with_the_arithmetic) {
  const MemoryDemand demand{.weights_bytes = 31 * kGib,
                            .kv_bytes_min = kGib / 2,
                            .kv_bytes_max = 8 * kGib,
                            .activation_bytes = kGib / 4};
  const auto plan = plan_memory(demand, {24 * kGib, "MemAvailable"});
  EXPECT_EQ(plan.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(plan.status().message(),
            "the model does not fit in memory: weights 31.00 GiB + KV 512.0 MiB + activations 256.0 MiB + "
            "reserve 491.5 MiB "
            "= 32.23 GiB of 24.00 GiB available (MemAvailable)");
}

TEST(MemoryPlan, kv_takes_its_share_of_the_rest_within_its_limits) {
  MemoryDemand demand{
      .weights_bytes = 9 * kGib, .kv_bytes_min = kGib, .kv_bytes_max = 100 * kGib, .activation_bytes = 0};
  const AvailableMemory available{25 * kGib, "MemAvailable"};
  const MemoryPlan chosen = plan_memory(demand, available).value();
  EXPECT_GT(chosen.kv_bytes, 12 * kGib);
  EXPECT_LE(chosen.total_bytes(), available.bytes);
  demand.kv_bytes_max = 2 * kGib;
  EXPECT_EQ(plan_memory(demand, available)->kv_bytes, 2 * kGib);
  demand.kv_bytes = 3 * kGib;
  EXPECT_EQ(plan_memory(demand, available)->kv_bytes, 3 * kGib) << "what was asked for";
  demand.kv_bytes = 16 * kGib;
  EXPECT_FALSE(plan_memory(demand, available).ok());
}

TEST(MemoryPlan, a_plan_never_exceeds_what_is_available) {
  EXPECT_TRUE(rc::check("plans fit and respect kv_bytes_min", [] {
    const auto size = [] { return *rc::gen::inRange<int64_t>(0, 40 * kGib); };
    MemoryDemand demand{.weights_bytes = size(),
                        .kv_bytes_min = size() / 8,
                        .kv_bytes_max = size(),
                        .activation_bytes = size() / 8};
    if (*rc::gen::arbitrary<bool>()) demand.kv_bytes = size();
    const AvailableMemory available{size(), "x"};
    const auto plan = plan_memory(demand, available);
    if (!plan.ok()) return;
    RC_ASSERT(plan->total_bytes() <= available.bytes);
    RC_ASSERT(plan->kv_bytes >= (demand.kv_bytes != 0 ? demand.kv_bytes : demand.kv_bytes_min));
  }));
}

TEST(MemoryPlan, sizes_read_well) {
  EXPECT_EQ(bytes_text(17), "17 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(512 << 20), "512.0 MiB");
}

}  // namespace
}  // namespace fathom
