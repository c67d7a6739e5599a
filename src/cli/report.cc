// One place that escapes, so that no caller has to.
#include "cli/report.h"

#include <cerrno>
#include <cstdio>

#include "base/printable.h"

namespace fathom::cli {

void report(std::string_view command, std::string_view message) {
  const std::string line =
      fmt::format("fathom{}{}: {}\n", command.empty() ? "" : " ", command, printable(message));
  std::fputs(line.c_str(), stderr);
}

int flush_output() {
  static int failure = 0;  // kept: a stream only remembers that something failed
  errno = 0;
  const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (failed && failure == 0) failure = errno != 0 ? errno : EIO;
  return failure;
}

}  // namespace fathom::cli
