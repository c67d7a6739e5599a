// Whether a model fits, as arithmetic that can be shown. Pure: the caller says what is there.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/system_memory.h"

namespace fathom {

struct MemoryDemand {
  int64_t weights_bytes = 0;
  int64_t kv_bytes = 0;  // what was asked for (--kv-memory)
  int64_t activation_bytes = 0;
  int64_t tokenizing_bytes = 0;  // while the largest text is turned into tokens
};

struct MemoryPlan {
  int64_t weights_bytes = 0;
  int64_t kv_bytes = 0;
  int64_t activation_bytes = 0;
  int64_t tokenizing_bytes = 0;
  int64_t reserve_bytes = 0;  // left for the process itself and its connections
  AvailableMemory available;

  int64_t total_bytes() const {
    return weights_bytes + kv_bytes + activation_bytes + tokenizing_bytes + reserve_bytes;
  }
  // "weights 9.12 GiB + KV 2.00 GiB + activations 0.31 GiB + tokenizing 0.03 GiB + reserve 0.25 GiB =
  // 11.71 GiB of 21.50 GiB available"
  std::string text() const;
};

// At least this, and a fiftieth of what is available.
inline constexpr int64_t kMemoryReserveMin = int64_t{128} << 20;

// kResourceExhausted with the arithmetic when it does not fit.
Result<MemoryPlan> plan_memory(const MemoryDemand& demand, const AvailableMemory& available);

// "9.12 GiB", "512 MiB", "17 B".
std::string bytes_text(int64_t bytes);

}  // namespace fathom
