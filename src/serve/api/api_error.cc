// Errors as OpenAI's error object, with their HTTP status.
#include "serve/api/api_error.h"

#include "serve/api/json.h"

namespace fathom::serve {

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

std::string error_json(const ApiError& error) {
  const auto text_or_null = [](const std::string& s) { return s.empty() ? Json(nullptr) : Json(s); };
  return dump_json(Json{{"error",
                         {{"message", error.message},
                          {"type", error.type},
                          {"param", text_or_null(error.param)},
                          {"code", text_or_null(error.code)}}}});
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response{.status = error.http_status, .body = error_json(error)};
  if (error.retry_after_s > 0) response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  if (error.http_status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace fathom::serve
