// RFC 9112, 3.2 (Host), 6.1 and 6.3 (framing); RFC 9110, 8.4 (content coding) and 10.1.1 (Expect).
#include "serve/api/http_head.h"

#include <algorithm>
#include <cctype>

namespace fathom::serve {

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

namespace {

// How often a field occurs, and its last value.
struct Field {
  int count = 0;
  std::string_view value;
};

Field find_field(const HttpRequest& head, std::string_view lower_name) {
  Field field;
  for (const auto& [name, value] : head.headers) {
    if (name != lower_name) continue;
    ++field.count;
    field.value = value;
  }
  return field;
}

std::optional<HttpRefusal> check_framing(const HttpRequest& head, int version) {
  const Field length = find_field(head, "content-length");
  const Field coding = find_field(head, "transfer-encoding");
  if (length.count > 1) return HttpRefusal{400, "more than one Content-Length", "bad_http"};
  if (coding.count == 0) return std::nullopt;
  if (length.count > 0) return HttpRefusal{400, "Content-Length together with Transfer-Encoding", "bad_http"};
  if (version < 11) return HttpRefusal{400, "Transfer-Encoding in HTTP/1.0", "bad_http"};
  if (coding.count > 1 || !equal_ignoring_case(coding.value, "chunked")) {
    return HttpRefusal{501, "a Transfer-Encoding other than chunked is not supported",
                       "unsupported_transfer_encoding"};
  }
  return std::nullopt;
}

}  // namespace

std::optional<HttpRefusal> check_head(const HttpRequest& head, int version) {
  const Field host = find_field(head, "host");
  if (host.count > 1 || (host.count == 0 && version >= 11)) {
    return HttpRefusal{400, "a request has one Host header", "bad_http"};
  }
  if (auto refusal = check_framing(head, version)) return refusal;
  const Field expect = find_field(head, "expect");
  if (version >= 11 && expect.count > 0 && !equal_ignoring_case(expect.value, "100-continue")) {
    return HttpRefusal{417, "an Expect other than 100-continue is not supported", "expectation_failed"};
  }
  const Field encoding = find_field(head, "content-encoding");
  if (encoding.count > 0 && !equal_ignoring_case(encoding.value, "identity")) {
    return HttpRefusal{415, "a Content-Encoding other than identity is not supported",
                       "unsupported_content_encoding"};
  }
  return std::nullopt;
}

}  // namespace fathom::serve
