// CHECK: for what only a bug can make false. It stops the process, in release builds too.
#pragma once

#include <string_view>

namespace fathom {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, std::string_view message);
}

#define CHECK(condition)                                          \
  do {                                                            \
    if (!(condition)) [[unlikely]]                                \
      ::fathom::check_failed(__FILE__, __LINE__, #condition, {}); \
  } while (0)

#define CHECK_MSG(condition, message)                                    \
  do {                                                                   \
    if (!(condition)) [[unlikely]]                                       \
      ::fathom::check_failed(__FILE__, __LINE__, #condition, (message)); \
  } while (0)
