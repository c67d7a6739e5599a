// POST /tokenize and /detokenize.
#include "serve/api/encode_check.h"
#include "serve/api/json.h"
#include "serve/api/routes.h"

namespace fathom::serve {

void handle_tokenize(ApiContext& context, ApiCall call) {
  auto parsed = parse_tokenize_request(call.http->request().body, context.limits);
  call.http->drop_body();
  if (!parsed.ok()) return call.http->respond(error_response(parsed.error()));
  TokenizeRequest& request = parsed.value();
  if (auto error = check_model(context, request.model)) return call.http->respond(error_response(*error));

  const EncodeCheck check = make_encode_check(context, call, kAnyNumTokens);
  std::vector<int32_t> ids;
  if (request.prompt) {
    auto encoded = request.add_special_tokens ? encode_plain_prompt(context, *request.prompt, check)
                                              : context.tokenizer.encode(*request.prompt, check);
    if (!encoded.ok()) return answer_encode_error(context, call, "prompt", encoded.status());
    ids = std::move(encoded.value());
  } else {
    auto rendered = context.chat_template.render(request.messages,
                                                 {.add_generation_prompt = request.add_generation_prompt,
                                                  .thinking = request.template_arguments.thinking,
                                                  .extra_json = request.template_arguments.kwargs_json,
                                                  .now_unix_s = context.clock.unix_seconds()},
                                                 check);
    if (!rendered.ok()) return answer_encode_error(context, call, "messages", rendered.status());
    ids = std::move(rendered->ids);
  }
  call.http->respond(
      {.body = dump_json(
           Json{{"count", ids.size()}, {"max_model_len", context.limits.context_max}, {"tokens", ids}})});
}

void handle_detokenize(ApiContext& context, ApiCall call) {
  auto parsed = parse_detokenize_request(call.http->request().body, context.limits);
  call.http->drop_body();
  if (!parsed.ok()) return call.http->respond(error_response(parsed.error()));
  if (auto error = check_model(context, parsed.value().model))
    return call.http->respond(error_response(*error));
  call.http->respond(
      {.body = dump_json(Json{{"prompt", context.tokenizer.decode(parsed.value().tokens, false)}})});
}

}  // namespace fathom::serve
