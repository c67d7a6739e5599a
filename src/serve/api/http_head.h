// What a request's header alone decides: refusals before a body is read, so that no body is taken for
// something else than its sender, or a proxy on the way, meant it to be.
#pragma once

#include <optional>
#include <string_view>

#include "serve/api/http_server.h"

namespace fathom::serve {

struct HttpRefusal {
  int status = 400;
  std::string_view message;
  std::string_view code;
};

// `version` is 10 or 11. Nothing: the request may go on.
std::optional<HttpRefusal> check_head(const HttpRequest& head, int version);

// Of ASCII letters, as field values, schemes and codings are compared.
bool equal_ignoring_case(std::string_view a, std::string_view b);

}  // namespace fathom::serve
