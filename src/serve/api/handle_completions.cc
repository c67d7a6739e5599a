// POST /v1/completions: text or token ids in, text out, no template.
#include "serve/api/encode_check.h"
#include "serve/api/generation.h"
#include "serve/api/routes.h"

namespace fathom::serve {

void handle_completions(ApiContext& context, ApiCall call) {
  auto parsed = parse_completion_request(call.http->request().body, context.limits);
  call.http->drop_body();
  if (!parsed.ok()) return call.http->respond(error_response(parsed.error()));
  CompletionRequest& request = parsed.value();
  if (auto error = check_model(context, request.model)) return call.http->respond(error_response(*error));

  auto ticket = Generation::admit(context, call.tenant);
  if (!ticket.ok()) return call.http->respond(error_response(ticket.error()));
  const EncodeCheck check = make_encode_check(context, call, static_cast<size_t>(context.limits.context_max));

  GenerationPlan plan;
  plan.prompt_param = "prompt";
  plan.options = std::move(request.options);
  choose_seed(context, plan.options);
  for (CompletionPrompt& prompt : request.prompts) {
    if (auto* text = std::get_if<std::string>(&prompt)) {
      // A completion's text is the operator's own prompt, tags and all: special tokens in it are meant.
      auto ids = encode_plain_prompt(context, *text, check);
      if (!ids.ok()) return answer_encode_error(context, call, plan.prompt_param, ids.status());
      plan.prompts.push_back(std::move(ids.value()));
    } else {
      plan.prompts.push_back(std::move(std::get<std::vector<int32_t>>(prompt)));
    }
    if (request.echo) plan.echo.push_back(context.tokenizer.decode(plan.prompts.back(), true));
  }
  plan.pipeline = OutputOptions{.stop = plan.options.stop};
  plan.tenant = tenant_of(call, plan.options);
  plan.format =
      make_completion_format(context.tokenizer, {.logprobs = plan.options.sampling.num_logprobs >= 0,
                                                 .return_token_ids = plan.options.return_token_ids,
                                                 .include_usage = plan.options.include_usage});
  Generation::start(context, std::move(call.http), std::move(ticket.value()), std::move(plan));
}

}  // namespace fathom::serve
