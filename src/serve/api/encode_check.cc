// The reasons are kept apart by their codes, which the tokenizer hands through.
#include "serve/api/encode_check.h"

namespace fathom::serve {
namespace {

constexpr StatusCode kClientLeft = StatusCode::kCancelled;
constexpr StatusCode kShuttingDown = StatusCode::kFailedPrecondition;
constexpr StatusCode kTooManyTokens = StatusCode::kResourceExhausted;

}  // namespace

EncodeCheck make_encode_check(const ApiContext& context, const ApiCall& call, size_t tokens_max) {
  const HttpExchange& http = *call.http;
  const TimePoint deadline = http.request().arrived + context.options.queue_wait_max;
  return [&context, &http, deadline, tokens_max](size_t num_tokens) -> Status {
    if (http.gone()) return Status(kClientLeft, "the client has left");
    if (!context.ready.load()) return Status(kShuttingDown, "the server is shutting down");
    if (num_tokens > tokens_max) return Status(kTooManyTokens, "the text has too many tokens");
    if (context.clock.now() > deadline) {
      return make_status(StatusCode::kUnavailable, "the request waited {} s until its text was read",
                         to_seconds(context.options.queue_wait_max));
    }
    return ok_status();
  };
}

void answer_encode_error(const ApiContext& context, const ApiCall& call, const std::string& param,
                         const Status& status) {
  if (status.code() == kClientLeft) return;
  ApiError error = api_error_from(status);
  if (status.code() == kShuttingDown) {
    error = shutting_down_error();
  } else if (status.code() == kTooManyTokens) {
    error =
        bad_request(param,
                    "This model's maximum context length is {} tokens. However, your prompt has more than "
                    "that.",
                    context.limits.context_max);
    error.code = "context_length_exceeded";
  }
  call.http->respond(error_response(error));
}

}  // namespace fathom::serve
