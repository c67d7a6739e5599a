// Answers as JSON: OpenAI's objects and chunks with DeepSeek's additions.
#include "serve/api/answer_format.h"

#include "serve/api/json.h"
#include "text/utf8.h"

namespace fathom::serve {
namespace {

Json usage_json(const Usage& u) {
  return Json{{"prompt_tokens", u.prompt_tokens},
              {"completion_tokens", u.completion_tokens},
              {"total_tokens", u.prompt_tokens + u.completion_tokens},
              {"prompt_cache_hit_tokens", u.hit_tokens},
              {"prompt_cache_miss_tokens", u.prompt_tokens - u.hit_tokens},
              {"prompt_tokens_details", {{"cached_tokens", u.hit_tokens}}},
              {"completion_tokens_details", {{"reasoning_tokens", u.reasoning_tokens}}}};
}

Json head_json(const AnswerHead& head, const char* object) {
  return Json{{"id", head.id},
              {"object", object},
              {"created", head.created},
              {"model", head.model},
              {"system_fingerprint", head.system_fingerprint}};
}

Json token_ids_json(const std::vector<AnswerToken>& tokens) {
  Json ids = Json::array();
  for (const AnswerToken& token : tokens) ids.push_back(token.event.token);
  return ids;
}

// -inf has no form in JSON; OpenAI's floor for "impossible" is -9999.
double finite(float logprob) { return std::max<double>(logprob, -9999.0); }

class ChatFormat final : public AnswerFormat {
 public:
  ChatFormat(const Tokenizer& tokenizer, const AnswerFormatOptions& options)
      : tokenizer_(tokenizer), options_(options) {}

  const char* id_prefix() const override { return "chatcmpl-"; }

  std::string chunk(const AnswerHead& head, const ChoiceAnswer& choice,
                    const std::vector<int32_t>* prompt_ids) const override {
    Json delta = Json::object();
    if (!choice.started) delta = Json{{"role", "assistant"}, {"content", ""}};
    if (!choice.part.reasoning.empty()) delta["reasoning_content"] = choice.part.reasoning;
    if (!choice.part.content.empty()) delta["content"] = choice.part.content;
    Json entry{{"index", choice.index}, {"delta", std::move(delta)}};
    entry["logprobs"] = logprobs(choice.part.tokens);
    entry["finish_reason"] = choice.finish_reason.empty() ? Json(nullptr) : Json(choice.finish_reason);
    if (options_.return_token_ids) entry["token_ids"] = token_ids_json(choice.part.tokens);
    Json json = head_json(head, "chat.completion.chunk");
    json["choices"] = Json::array({std::move(entry)});
    if (prompt_ids != nullptr) json["prompt_token_ids"] = *prompt_ids;
    if (options_.include_usage) json["usage"] = nullptr;
    return dump_json(json);
  }

  std::string usage_chunk(const AnswerHead& head, const Usage& usage) const override {
    Json json = head_json(head, "chat.completion.chunk");
    json["choices"] = Json::array();
    json["usage"] = usage_json(usage);
    return dump_json(json);
  }

  std::string body(const AnswerHead& head, const std::vector<const ChoiceAnswer*>& choices,
                   const std::vector<std::vector<int32_t>>& prompts, const Usage& usage) const override {
    Json json = head_json(head, "chat.completion");
    json["choices"] = Json::array();
    for (const ChoiceAnswer* choice : choices) {
      Json message{{"role", "assistant"}, {"content", choice->part.content}};
      if (options_.reasoning) message["reasoning_content"] = choice->part.reasoning;
      Json entry{{"index", choice->index}, {"message", std::move(message)}};
      entry["logprobs"] = logprobs(choice->part.tokens);
      entry["finish_reason"] = choice->finish_reason;
      if (options_.return_token_ids) entry["token_ids"] = token_ids_json(choice->part.tokens);
      json["choices"].push_back(std::move(entry));
    }
    json["usage"] = usage_json(usage);
    if (options_.return_token_ids) json["prompt_token_ids"] = prompts[0];
    return dump_json(json);
  }

 private:
  Json token_json(int32_t token, float logprob) const {
    const std::string_view bytes = tokenizer_.token_bytes(token);
    Json values = Json::array();
    for (const unsigned char byte : bytes) values.push_back(byte);
    return Json{{"token", std::string(bytes)}, {"logprob", finite(logprob)}, {"bytes", std::move(values)}};
  }

  Json logprobs(const std::vector<AnswerToken>& tokens) const {
    if (!options_.logprobs) return nullptr;
    Json json{{"content", part_logprobs(tokens, AnswerToken::Part::kContent)}};
    if (options_.reasoning) json["reasoning_content"] = part_logprobs(tokens, AnswerToken::Part::kReasoning);
    return json;
  }

  Json part_logprobs(const std::vector<AnswerToken>& tokens, AnswerToken::Part part) const {
    Json entries = Json::array();
    for (const AnswerToken& token : tokens) {
      const auto& logprobs = token.event.logprobs;
      if (!logprobs || token.part != part) continue;
      Json entry = token_json(token.event.token, logprobs->sampled);
      entry["top_logprobs"] = Json::array();
      for (const auto& [id, logprob] : logprobs->top)
        entry["top_logprobs"].push_back(token_json(id, logprob));
      entries.push_back(std::move(entry));
    }
    return entries;
  }

  const Tokenizer& tokenizer_;
  const AnswerFormatOptions options_;
};

class CompletionFormat final : public AnswerFormat {
 public:
  CompletionFormat(const Tokenizer& tokenizer, const AnswerFormatOptions& options)
      : tokenizer_(tokenizer), options_(options) {}

  const char* id_prefix() const override { return "cmpl-"; }

  std::string chunk(const AnswerHead& head, const ChoiceAnswer& choice,
                    const std::vector<int32_t>* prompt_ids) const override {
    Json json = head_json(head, "text_completion");
    json["choices"] = Json::array({entry(choice, prompt_ids)});
    if (options_.include_usage) json["usage"] = nullptr;
    return dump_json(json);
  }

  std::string usage_chunk(const AnswerHead& head, const Usage& usage) const override {
    Json json = head_json(head, "text_completion");
    json["choices"] = Json::array();
    json["usage"] = usage_json(usage);
    return dump_json(json);
  }

  std::string body(const AnswerHead& head, const std::vector<const ChoiceAnswer*>& choices,
                   const std::vector<std::vector<int32_t>>& prompts, const Usage& usage) const override {
    Json json = head_json(head, "text_completion");
    json["choices"] = Json::array();
    for (const ChoiceAnswer* choice : choices) {
      json["choices"].push_back(
          entry(*choice, options_.return_token_ids ? &prompts[choice->prompt] : nullptr));
    }
    json["usage"] = usage_json(usage);
    return dump_json(json);
  }

 private:
  Json entry(const ChoiceAnswer& choice, const std::vector<int32_t>* prompt_ids) const {
    Json json{{"index", choice.index}, {"text", choice.part.content}};
    json["logprobs"] = logprobs(choice);
    json["finish_reason"] = choice.finish_reason.empty() ? Json(nullptr) : Json(choice.finish_reason);
    if (options_.return_token_ids) json["token_ids"] = token_ids_json(choice.part.tokens);
    if (prompt_ids != nullptr) json["prompt_token_ids"] = *prompt_ids;
    return json;
  }

  Json logprobs(const ChoiceAnswer& choice) const {
    if (!options_.logprobs) return nullptr;
    Json tokens = Json::array(), values = Json::array(), top = Json::array(), offsets = Json::array();
    for (const auto& [event, offset, part] : choice.part.tokens) {
      if (!event.logprobs) continue;
      tokens.push_back(std::string(tokenizer_.token_bytes(event.token)));
      values.push_back(finite(event.logprobs->sampled));
      // The likeliest tokens, and the sampled one if it is none of them. Of two that read alike the likelier
      // stays.
      Json alternatives = Json::object();
      const auto add = [&](int32_t id, float logprob) {
        alternatives.emplace(replace_invalid_utf8(tokenizer_.token_bytes(id)), finite(logprob));
      };
      for (const auto& [id, logprob] : event.logprobs->top) add(id, logprob);
      add(event.token, event.logprobs->sampled);
      top.push_back(std::move(alternatives));
      offsets.push_back(offset);
    }
    return Json{{"tokens", std::move(tokens)},
                {"token_logprobs", std::move(values)},
                {"top_logprobs", std::move(top)},
                {"text_offset", std::move(offsets)}};
  }

  const Tokenizer& tokenizer_;
  const AnswerFormatOptions options_;
};

}  // namespace

std::unique_ptr<AnswerFormat> make_chat_format(const Tokenizer& tokenizer,
                                               const AnswerFormatOptions& options) {
  return std::make_unique<ChatFormat>(tokenizer, options);
}
std::unique_ptr<AnswerFormat> make_completion_format(const Tokenizer& tokenizer,
                                                     const AnswerFormatOptions& options) {
  return std::make_unique<CompletionFormat>(tokenizer, options);
}

}  // namespace fathom::serve
