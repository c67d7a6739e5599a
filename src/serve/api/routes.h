// The method table: every operation of the API, once. Logging (at level debug), metrics, authentication and
// errors are added here, around all of them.
#pragma once

#include <memory>
#include <string>

#include "serve/api/api_context.h"

namespace fathom::serve {

// One request on its way through a handler.
struct ApiCall {
  std::shared_ptr<HttpExchange> http;
  std::string tenant;     // the API key's name
  std::string path_tail;  // what follows a route that ends in '/'
};

// What no body changes: wrong paths, methods and keys are refused before one is read.
std::optional<HttpResponse> refuse_by_head(ApiContext& context, const HttpRequest& head);
// Answers or refuses one request. Runs on a worker thread.
void route_request(ApiContext& context, std::shared_ptr<HttpExchange> exchange);

// The operations, a file each.
void handle_chat_completions(ApiContext& context, ApiCall call);
void handle_completions(ApiContext& context, ApiCall call);
void handle_tokenize(ApiContext& context, ApiCall call);
void handle_detokenize(ApiContext& context, ApiCall call);
void handle_models(ApiContext& context, ApiCall call);
void handle_model(ApiContext& context, ApiCall call);
void handle_health(ApiContext& context, ApiCall call);
void handle_ready(ApiContext& context, ApiCall call);
void handle_metrics(ApiContext& context, ApiCall call);

// 404 when a request names another model than the served one; an empty name is the served one.
std::optional<ApiError> check_model(const ApiContext& context, const std::string& model);
// Token ids of a prompt that is no chat: special tokens are recognised, BOS is put first where the model's
// tokenizer does so.
Result<std::vector<int32_t>> encode_plain_prompt(const ApiContext& context, const std::string& text,
                                                 const EncodeCheck& check);
// The KV cache's tenant: the API key's name and the request's user_id.
std::string tenant_of(const ApiCall& call, const GenerationOptions& options);
// Requests without a seed get one of their own.
void choose_seed(ApiContext& context, GenerationOptions& options);

}  // namespace fathom::serve
