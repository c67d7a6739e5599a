// Errors as OpenAI's error object, with their HTTP status.
#include "serve/api/api_error.h"

#include "serve/api/json.h"

namespace fathom::serve {

namespace {

// Of any message, whoever wrote it.
constexpr size_t kMessageBytesMax = 1000;

}  // namespace

std::string excerpt(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  // Not in the middle of a character: back over UTF-8's continuation bytes.
  size_t end = bytes_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "…";
}

ApiError api_error_from(const Status& status) {
  ApiError error{.message = status.message()};
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnimplemented:
      break;
    case StatusCode::kNotFound:
      error.http_status = 404;
      break;
    case StatusCode::kResourceExhausted:
    case StatusCode::kUnavailable:
      error.http_status = 503;
      error.type = "server_error";
      error.code = "overloaded";
      error.retry_after_s = 1;
      break;
    case StatusCode::kDeadlineExceeded:
      error.http_status = 504;
      error.type = "server_error";
      error.code = "deadline_exceeded";
      break;
    default:
      error.http_status = 500;
      error.type = "server_error";
      error.code = "internal_error";
      break;
  }
  return error;
}

ApiError shutting_down_error() {
  return ApiError{.http_status = 503,
                  .message = "the server is shutting down",
                  .type = "server_error",
                  .code = "shutting_down",
                  .retry_after_s = 5};
}

std::string error_json(const ApiError& error) {
  const auto text_or_null = [](const std::string& s) { return s.empty() ? Json(nullptr) : Json(s); };
  return dump_json(Json{{"error",
                         {{"message", excerpt(error.message, kMessageBytesMax)},
                          {"type", error.type},
                          {"param", text_or_null(error.param)},
                          {"code", text_or_null(error.code)}}}});
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response{.status = error.http_status, .body = error_json(error)};
  if (error.retry_after_s > 0)
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  if (error.http_status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace fathom::serve
