// Splits at the first question mark, then decodes the path: an escaped one is part of it.
#include "serve/api/http_target.h"

#include <cctype>

#include "serve/api/http_head.h"

namespace fathom::serve {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string percent_decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0;
    out += escape ? static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2])) : text[i];
    if (escape) i += 2;
  }
  return out;
}

bool starts_with_ignoring_case(std::string_view text, std::string_view start) {
  return equal_ignoring_case(text.substr(0, start.size()), start);
}

}  // namespace

std::string path_of_target(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!starts_with_ignoring_case(target, scheme)) continue;
    const size_t host_end = target.find_first_of("/?", scheme.size());
    target = host_end == std::string_view::npos ? "/" : target.substr(host_end);
    break;
  }
  const size_t question = target.find('?');
  // Without a path: "http://host?query".
  return question == 0 ? "/" : percent_decode(target.substr(0, question));
}

}  // namespace fathom::serve
