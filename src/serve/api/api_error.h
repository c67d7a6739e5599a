// Errors as OpenAI's error object: {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/status.h"
#include "serve/api/http_server.h"

namespace fathom::serve {

struct ApiError {
  int http_status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;      // empty: null
  std::string code;       // empty: null
  int retry_after_s = 0;  // 0: no Retry-After header
};

// What a client sent, short enough to be quoted to it: at most `bytes_max` bytes of whole characters, and "…"
// for the rest.
std::string excerpt(std::string_view text, size_t bytes_max = 100);

namespace detail {
inline std::string quotable(const std::string& text) { return excerpt(text); }
inline std::string quotable(std::string_view text) { return excerpt(text); }
template <typename T>
const T& quotable(const T& value) {
  return value;
}
}  // namespace detail

// 400 about one field. Strings among the arguments, and the field's name, may be the client's: they are
// quoted in excerpts.
template <typename... Args>
ApiError bad_request(const std::string& param, fmt::format_string<Args...> format, Args&&... args) {
  std::string message = std::apply(
      [&](const auto&... quoted) {
        return fmt::vformat(fmt::string_view(format), fmt::make_format_args(quoted...));
      },
      std::make_tuple(detail::quotable(args)...));
  return ApiError{.message = std::move(message), .param = excerpt(param)};
}
// What an engine or text Status means to an API client.
ApiError api_error_from(const Status& status);

// What requests get that come, or are not done, when the server ends.
ApiError shutting_down_error();

std::string error_json(const ApiError& error);
HttpResponse error_response(const ApiError& error);

// A value or the answer that refuses the request.
template <typename T>
class [[nodiscard]] ApiResult {
 public:
  ApiResult(T value) : value_(std::move(value)) {}
  ApiResult(ApiError error) : error_(std::move(error)) {}
  bool ok() const { return value_.has_value(); }
  T& value() { return *value_; }
  const ApiError& error() const { return error_; }

 private:
  std::optional<T> value_;
  ApiError error_;
};

}  // namespace fathom::serve
