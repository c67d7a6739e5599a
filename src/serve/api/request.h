// Typed, validated requests. JSON ends in request.cc: everything a 4xx can say is said here, before work
// starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "serve/api/api_error.h"
#include "text/chat_template.h"

namespace fathom::serve {

// Limits of one request; each is reached with a 400 that names the field.
struct RequestLimits {
  int32_t vocab_size = 0;
  int32_t context_max = 0;  // prompt + new tokens
  size_t token_bytes_max =
      0;                     // of the longest token; text no window could hold is refused unread. 0: unknown
  int32_t choices_max = 16;  // n
  int32_t prompts_max = 64;  // prompts in one completions request
  int32_t stop_strings_max = 16;
  size_t stop_bytes_max = 1024;  // per stop string
  int32_t stop_token_ids_max = kStopTokenIdsMax;
  int32_t logit_bias_max = 1024;  // entries
  int32_t top_logprobs_max = 20;
  int32_t messages_max = 4096;
  int64_t answer_bytes_max = 256 << 20;  // all choices of one request, see answer_tokens_max
};

// What both generation endpoints share.
struct GenerationOptions {
  SamplingParams sampling;
  bool seeded = false;  // the client chose the seed
  std::optional<int32_t> max_tokens;
  int32_t num_choices = 1;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool stream = false;
  bool include_usage = false;
  bool return_token_ids = false;
  std::string tenant;  // user_id: a KV cache of its own, inside the API key's
};

// What a request says to the chat template.
struct TemplateArguments {
  std::optional<bool> thinking;
  std::string kwargs_json;  // chat_template_kwargs as sent, or empty
};

struct ChatRequest {
  std::string model;
  std::vector<ChatMessage> messages;
  TemplateArguments template_arguments;
  GenerationOptions options;
};

using CompletionPrompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest {
  std::string model;
  std::vector<CompletionPrompt> prompts;
  bool echo = false;
  GenerationOptions options;
};

struct TokenizeRequest {
  std::string model;
  std::optional<std::string> prompt;
  std::vector<ChatMessage> messages;
  TemplateArguments template_arguments;
  bool add_special_tokens = true;
  bool add_generation_prompt = true;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};

// How many tokens each of so many choices may have within answer_bytes_max, at least 1: an answer is held
// until it is complete or, streamed, until the client has taken it, with kAnswerBytesPerValue for each token
// and for each log-probability.
int32_t answer_tokens_max(const RequestLimits& limits, const GenerationOptions& options, size_t num_prompts);

ApiResult<ChatRequest> parse_chat_request(std::string_view body, const RequestLimits& limits);
ApiResult<CompletionRequest> parse_completion_request(std::string_view body, const RequestLimits& limits);
ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view body, const RequestLimits& limits);
ApiResult<DetokenizeRequest> parse_detokenize_request(std::string_view body, const RequestLimits& limits);

}  // namespace fathom::serve
