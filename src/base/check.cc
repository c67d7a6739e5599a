// Prints the condition, the place and the message, then aborts.
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace fathom {

void check_failed(const char* file, int line, const char* condition, std::string_view message) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s%s%.*s\n", file, line, condition, message.empty() ? "" : ": ",
               static_cast<int>(message.size()), message.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace fathom
