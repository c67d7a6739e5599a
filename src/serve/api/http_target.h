// The target of a request line: where it points, decoded.
#pragma once

#include <string>
#include <string_view>

namespace fathom::serve {

struct HttpTarget {
  std::string path;   // without the query; %XX decoded
  std::string query;  // as it was written
};

// Takes both forms a server must take: "/path?query" and "http://host/path?query" (or https). What is no
// escape stays as it is.
HttpTarget parse_target(std::string_view target);

}  // namespace fathom::serve
