// What finds no memory is given up, with room to unwind in; what may not be given up goes on with that room.
#include "serve/api/memory_reserve.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

namespace fathom::serve {
namespace {

constexpr size_t kPieceBytes = size_t{8} << 20;

// Leaves the process `bytes` beyond what it has mapped.
void leave_address_space(size_t bytes) {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + bytes;
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  setrlimit(RLIMIT_AS, &limit);
}

// Asks for memory until there is none, and for some more on the way out.
struct Glutton {
  ~Glutton() { std::vector<char>(2 * kPieceBytes).swap(last); }
  void eat() {
    for (;;) pieces.emplace_back(kPieceBytes);
  }
  std::vector<char> last;
  std::vector<std::vector<char>> pieces;
};

int run_out_of_memory() {
  refill_memory_reserve();
  leave_address_space(4 * kPieceBytes);
  for (int round = 0; round < 3; ++round) {
    if (has_memory_for([] { Glutton().eat(); })) return 1;
  }
  if (!has_memory_for([] { std::vector<char> piece(kPieceBytes); })) return 2;
  // Not expendable: goes on.
  std::vector<std::vector<char>> pieces;
  for (int i = 0; i < 6; ++i) pieces.emplace_back(kPieceBytes);
  return 0;
}

TEST(MemoryReserve, a_request_without_memory_is_given_up_and_the_process_goes_on) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's memory is not new's";
#endif
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(run_out_of_memory());
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  ASSERT_TRUE(WIFEXITED(state)) << "signal " << WTERMSIG(state);
  EXPECT_EQ(WEXITSTATUS(state), 0);
}

}  // namespace
}  // namespace fathom::serve
