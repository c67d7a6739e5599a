// Errors as OpenAI's error object: {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "serve/api/http_server.h"

namespace fathom::serve {

struct ApiError {
  int http_status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // empty: null
  std::string code;   // empty: null
  int retry_after_s = 0;  // 0: no Retry-After header
};

// 400 about one field.
template <typename... Args>
ApiError bad_request(std::string param, fmt::format_string<Args...> format, Args&&... args) {
  return ApiError{.message = fmt::format(format, std::forward<Args>(args)...), .param = std::move(param)};
}
// What an engine or text Status means to an API client.
ApiError api_error_from(const Status& status);

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
