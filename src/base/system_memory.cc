// MemAvailable, and for every cgroup from the process's own up to the root: limit − use + inactive page
// cache.
#include "base/system_memory.h"

#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

namespace fathom {
namespace {

std::optional<int64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (!(file >> value) || value < 0) return std::nullopt;  // "max" is no number: no limit
  return value;
}

// The value after `key` at the start of a line of "key value" pairs.
std::optional<int64_t> read_field(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, key.size(), key) != 0) continue;
    std::istringstream rest(line.substr(key.size()));
    int64_t value = 0;
    if (rest >> value) return value;
  }
  return std::nullopt;
}

struct CgroupVersion {
  const char* mount;  // below root
  const char* limit;
  const char* usage;
  const char* reclaimable;  // in memory.stat
};
constexpr CgroupVersion kVersion2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};
constexpr CgroupVersion kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                     "memory.usage_in_bytes", "total_inactive_file "};

// The process's cgroup path: the "0::/path" line (version 2) or the one with the memory controller (version
// 1).
std::string cgroup_path(const std::string& root, bool version2) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool match = version2 ? controllers == ",," : controllers.find(",memory,") != std::string::npos;
    if (match) return line.substr(second + 1);
  }
  return "";
}

void consider_cgroups(const std::string& root, const CgroupVersion& version, std::string path,
                      AvailableMemory& least) {
  while (true) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    const std::string folder = root + version.mount + path;
    const auto limit = read_number(folder + "/" + version.limit);
    if (limit) {
      const int64_t used = read_number(folder + "/" + version.usage).value_or(0);
      const int64_t cache = read_field(folder + "/memory.stat", version.reclaimable).value_or(0);
      const int64_t left = *limit > used - cache ? *limit - (used - cache) : 0;
      if (left < least.bytes) least = {left, folder.substr(root.size()) + "/" + version.limit};
    }
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

AvailableMemory available_memory(const std::string& root) {
  AvailableMemory least{std::numeric_limits<int64_t>::max(), "unknown"};
  if (const auto kib = read_field(root + "/proc/meminfo", "MemAvailable:"))
    least = {*kib * 1024, "MemAvailable"};
  consider_cgroups(root, kVersion2, cgroup_path(root, true), least);
  consider_cgroups(root, kVersion1, cgroup_path(root, false), least);
  if (least.limited_by == "unknown") least.bytes = 0;
  return least;
}

}  // namespace fathom
