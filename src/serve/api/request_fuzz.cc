// Any bytes as the body of any endpoint: parsing ends in a typed request or in a 4xx with a message.
#include <cstdint>
#include <cstdlib>

#include "base/check.h"
#include "serve/api/request.h"

namespace {

template <typename T>
void check_result(const fathom::serve::ApiResult<T>& result) {
  if (result.ok()) return;
  CHECK(result.error().http_status >= 400 && result.error().http_status < 500);
  CHECK(!result.error().message.empty());
  // The error itself must be expressible as JSON whatever the body held.
  CHECK(!fathom::serve::error_json(result.error()).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const fathom::serve::RequestLimits limits{.vocab_size = 1000, .context_max = 4096};
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      check_result(fathom::serve::parse_chat_request(body, limits));
      break;
    case 1:
      check_result(fathom::serve::parse_completion_request(body, limits));
      break;
    case 2:
      check_result(fathom::serve::parse_tokenize_request(body, limits));
      break;
    default:
      check_result(fathom::serve::parse_detokenize_request(body, limits));
      break;
  }
  return 0;
}
