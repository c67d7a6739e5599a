// The sum, and the one sentence it becomes.
#include "model/memory_plan.h"

#include <algorithm>

namespace fathom {

std::string bytes_text(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.2f} GiB", value / 0x1p30);
  if (bytes >= int64_t{1} << 20) return fmt::format("{:.1f} MiB", value / 0x1p20);
  if (bytes >= int64_t{1} << 10) return fmt::format("{:.1f} KiB", value / 0x1p10);
  return fmt::format("{} B", bytes);
}

std::string MemoryPlan::text() const {
  return fmt::format("weights {} + KV {} + activations {} + tokenizing {} + reserve {} = {} of {} available",
                     bytes_text(weights_bytes), bytes_text(kv_bytes), bytes_text(activation_bytes),
                     bytes_text(tokenizing_bytes), bytes_text(reserve_bytes), bytes_text(total_bytes()),
                     bytes_text(available.bytes));
}

Result<MemoryPlan> plan_memory(const MemoryDemand& demand, const AvailableMemory& available) {
  MemoryPlan plan{.weights_bytes = demand.weights_bytes,
                  .kv_bytes = demand.kv_bytes,
                  .activation_bytes = demand.activation_bytes,
                  .tokenizing_bytes = demand.tokenizing_bytes,
                  .reserve_bytes = std::max(kMemoryReserveMin, available.bytes / 50),
                  .available = available};
  if (plan.total_bytes() > available.bytes) {
    return make_status(StatusCode::kResourceExhausted, "the model does not fit in memory: {} ({})",
                       plan.text(), available.limited_by);
  }
  return plan;
}

}  // namespace fathom
