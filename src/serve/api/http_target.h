// The path of a request line's target.
#pragma once

#include <string>
#include <string_view>

namespace fathom::serve {

// The path without the query, %XX decoded. Takes both forms a server must take: "/path?query" and
// "http://host/path?query" (or https). What is no escape stays as it is.
std::string path_of_target(std::string_view target);

}  // namespace fathom::serve
