// What fits, what does not, and that the arithmetic shown is right.
#include "model/memory_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

namespace fathom {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

TEST(MemoryPlan, refuses_with_the_arithmetic) {
  const MemoryDemand demand{.weights_bytes = 31 * kGib,
                            .kv_bytes = kGib / 2,
                            .activation_bytes = kGib / 4,
                            .tokenizing_bytes = kGib / 8};
  const auto plan = plan_memory(demand, {24 * kGib, "MemAvailable"});
  EXPECT_EQ(plan.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(plan.status().message(),
            "the model does not fit in memory: weights 31.00 GiB + KV 512.0 MiB + activations 256.0 MiB + "
            "tokenizing 128.0 MiB + reserve 491.5 MiB "
            "= 32.35 GiB of 24.00 GiB available (MemAvailable)");
}

TEST(MemoryPlan, a_plan_never_exceeds_what_is_available) {
  EXPECT_TRUE(rc::check(
      "plans fit, have the KV memory that was asked for, and are refused only when they do not fit", [] {
        const auto size = [] { return *rc::gen::inRange<int64_t>(0, 40 * kGib); };
        const MemoryDemand demand{.weights_bytes = size(),
                                  .kv_bytes = size() / 8,
                                  .activation_bytes = size() / 8,
                                  .tokenizing_bytes = size() / 8};
        const AvailableMemory available{size(), "x"};
        const int64_t reserve = std::max(kMemoryReserveMin, available.bytes / 50);
        const int64_t needed = demand.weights_bytes + demand.kv_bytes + demand.activation_bytes +
                               demand.tokenizing_bytes + reserve;
        const auto plan = plan_memory(demand, available);
        RC_ASSERT(plan.ok() == (needed <= available.bytes));
        if (!plan.ok()) return;
        RC_ASSERT(plan->total_bytes() == needed);
        RC_ASSERT(plan->kv_bytes == demand.kv_bytes);
      }));
}

TEST(MemoryPlan, sizes_read_well) {
  EXPECT_EQ(bytes_text(17), "17 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(512 << 20), "512.0 MiB");
}

}  // namespace
}  // namespace fathom
