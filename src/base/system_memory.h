// How much memory this process may still take: the machine's and its cgroups' limits, whichever is least.
#pragma once

#include <cstdint>
#include <string>

namespace fathom {

struct AvailableMemory {
  int64_t bytes = 0;
  std::string limited_by;  // "MemAvailable" or the cgroup file that is tightest; for messages
};

// Reads /proc and /sys/fs/cgroup (versions 2 and 1) below `root`, which tests set. Page cache that the kernel
// can take back counts as available. With nothing readable: 0 bytes, limited by "unknown".
AvailableMemory available_memory(const std::string& root = "");

}  // namespace fathom
