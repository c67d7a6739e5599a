// POST /v1/chat/completions.
#include "serve/api/encode_check.h"
#include "serve/api/generation.h"
#include "serve/api/routes.h"

namespace fathom::serve {
namespace {

// Some templates open the assistant's turn after a user's message only. Where nothing opens it, the model
// would not answer but write on where the conversation ends.
std::optional<ApiError> check_turn(const ApiContext& context, const std::vector<ChatMessage>& messages,
                                   ChatTemplateOptions rendering, const RenderedPrompt& prompt,
                                   const EncodeCheck& check) {
  const std::string& role = messages.back().role;
  if (role == "user") return std::nullopt;
  rendering.add_generation_prompt = false;
  const auto closed = context.chat_template.render(messages, rendering, check);
  if (!closed.ok() || closed->text != prompt.text) return std::nullopt;
  const std::string last = fmt::format("messages[{}]", messages.size() - 1);
  return bad_request(last, "{}: the model's chat template opens no answer after a {} message here", last,
                     role);
}

}  // namespace

void handle_chat_completions(ApiContext& context, ApiCall call) {
  auto parsed = parse_chat_request(call.http->request().body, context.limits);
  call.http->drop_body();
  if (!parsed.ok()) return call.http->respond(error_response(parsed.error()));
  ChatRequest& request = parsed.value();
  if (auto error = check_model(context, request.model)) return call.http->respond(error_response(*error));
  auto ticket = Generation::admit(context, call.tenant);
  if (!ticket.ok()) return call.http->respond(error_response(ticket.error()));

  const EncodeCheck check = make_encode_check(context, call, static_cast<size_t>(context.limits.context_max));
  const ChatTemplateOptions rendering{.thinking = request.template_arguments.thinking,
                                      .extra_json = request.template_arguments.kwargs_json,
                                      .now_unix_s = context.clock.unix_seconds()};
  auto prompt = context.chat_template.render(request.messages, rendering, check);
  if (!prompt.ok()) return answer_encode_error(context, call, "messages", prompt.status());
  if (auto error = check_turn(context, request.messages, rendering, *prompt, check)) {
    return call.http->respond(error_response(*error));
  }

  GenerationPlan plan;
  plan.prompt_param = "messages";
  plan.options = std::move(request.options);
  choose_seed(context, plan.options);
  plan.pipeline = OutputOptions{.stop = plan.options.stop,
                                .parse_reasoning = context.chat_template.has_reasoning(),
                                .starts_in_reasoning = prompt->starts_in_reasoning};
  plan.tenant = tenant_of(call, plan.options);
  plan.format = make_chat_format(context.tokenizer, {.logprobs = plan.options.sampling.num_logprobs >= 0,
                                                     .return_token_ids = plan.options.return_token_ids,
                                                     .include_usage = plan.options.include_usage,
                                                     .reasoning = context.chat_template.has_reasoning()});
  plan.prompts.push_back(std::move(prompt->ids));
  Generation::start(context, std::move(call.http), std::move(ticket.value()), std::move(plan));
}

}  // namespace fathom::serve
