// Memory limits read from made-up /proc and /sys trees.
#include "base/system_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace fathom {
namespace {

class SystemMemory : public ::testing::Test {
 protected:
  SystemMemory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "fathom-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    put("/proc/meminfo", "MemTotal:       32000 kB\nMemFree:          100 kB\nMemAvailable:   20000 kB\n");
  }
  ~SystemMemory() override { std::filesystem::remove_all(root_); }
  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(SystemMemory, without_cgroups_the_machine_limits) {
  EXPECT_EQ(available_memory(root_).bytes, 20000 * 1024);
  EXPECT_EQ(available_memory(root_).limited_by, "MemAvailable");
  EXPECT_EQ(available_memory(root_ + "/nowhere").bytes, 0);
  EXPECT_EQ(available_memory(root_ + "/nowhere").limited_by, "unknown");
}

TEST_F(SystemMemory, the_tightest_cgroup_limits) {
  put("/proc/self/cgroup", "0::/service/fathom\n");
  put("/sys/fs/cgroup/service/fathom/memory.max", "max\n");
  put("/sys/fs/cgroup/service/memory.max", "9000000\n");
  put("/sys/fs/cgroup/service/memory.current", "5000000\n");
  put("/sys/fs/cgroup/service/memory.stat", "anon 1\nactive_file 7\ninactive_file 1000000\n");
  EXPECT_EQ(available_memory(root_).bytes, 5000000);
  EXPECT_EQ(available_memory(root_).limited_by, "/sys/fs/cgroup/service/memory.max");
  put("/sys/fs/cgroup/service/memory.current", "99000000\n");
  EXPECT_EQ(available_memory(root_).bytes, 0);
  put("/sys/fs/cgroup/service/memory.max", "900000000000\n");
  EXPECT_EQ(available_memory(root_).limited_by, "MemAvailable");
}

TEST_F(SystemMemory, inside_a_container_the_mount_itself_counts) {
  put("/proc/self/cgroup", "0::/not/visible/here\n");
  put("/sys/fs/cgroup/memory.max", "4000\n");
  EXPECT_EQ(available_memory(root_).bytes, 4000);
  EXPECT_EQ(available_memory(root_).limited_by, "/sys/fs/cgroup/memory.max");
}

TEST_F(SystemMemory, version_1) {
  put("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/box\n");
  put("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "70000\n");
  put("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "60000\n");
  put("/sys/fs/cgroup/memory/box/memory.stat", "inactive_file 1\ntotal_inactive_file 5000\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(available_memory(root_).bytes, 15000);
}

}  // namespace
}  // namespace fathom
