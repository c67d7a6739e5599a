// Answers as JSON: OpenAI's objects and chunks with DeepSeek's additions.
#include "serve/api/answer_format.h"

#include <algorithm>
#include <iterator>
#include <utility>

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

// An object that is written member by member: as a tree of values, an answer's log-probabilities would take
// ten times their text.
class ObjectText {
 public:
  explicit ObjectText(std::string& out) : out_(out) { out_ += '{'; }

  void add(const Json& members) {
    if (members.empty()) return;
    separate();
    const std::string text = dump_json(members);
    out_.append(text, 1, text.size() - 2);  // without its braces
  }
  // Where the value of member `name` is to be appended.
  std::string& value(const char* name) {
    separate();
    return out_ += fmt::format("\"{}\":", name);
  }
  void close() { out_ += '}'; }

 private:
  void separate() {
    if (out_.back() != '{') out_ += ',';
  }
  std::string& out_;
};

// `append_item(item)` appends it and says whether it did: others are left out.
template <typename Items, typename AppendItem>
void append_list(std::string& out, const Items& items, const AppendItem& append_item) {
  out += '[';
  const size_t begin = out.size();
  for (const auto& item : items) {
    const size_t before = out.size();
    if (before != begin) out += ',';
    if (!append_item(item)) out.resize(before);
  }
  out += ']';
}

// Room for the whole text at once: growing a large one step by step would hold it twice.
void reserve_text(std::string& out, const std::vector<const ChoiceAnswer*>& choices) {
  size_t bytes = 1 << 10;
  for (const ChoiceAnswer* choice : choices) {
    bytes += 1 << 8;
    bytes += choice->part.content.size() + choice->part.reasoning.size();
    for (const AnswerToken& token : choice->part.tokens) {
      if (token.event.logprobs) bytes += (token.event.logprobs->top.size() + 1) * kAnswerBytesPerValue;
    }
  }
  out.reserve(bytes);
}

// What both endpoints' answers have in common: the frame around their choices.
class JsonFormat : public AnswerFormat {
 public:
  JsonFormat(const Tokenizer& tokenizer, const AnswerFormatOptions& options, const char* whole_name,
             const char* chunk_name)
      : tokenizer_(tokenizer), options_(options), whole_name_(whole_name), chunk_name_(chunk_name) {}

  std::string usage_chunk(const AnswerHead& head, const Usage& usage) const override {
    Json json = head_json(head, chunk_name_);
    json["choices"] = Json::array();
    json["usage"] = usage_json(usage);
    return dump_json(json);
  }

 protected:
  // `said` holds the members of a choice that stand before its log-probabilities, `more` those after it.
  void append_choice(std::string& out, const ChoiceAnswer& choice, const Json& said, const Json& more) const {
    ObjectText entry(out);
    entry.add(said);
    append_logprobs(entry.value("logprobs"), choice);
    entry.add(
        Json{{"finish_reason", choice.finish_reason.empty() ? Json(nullptr) : Json(choice.finish_reason)}});
    if (options_.return_token_ids) entry.add(Json{{"token_ids", token_ids_json(choice.part.tokens)}});
    entry.add(more);
    entry.close();
  }
  // null when nobody asked for them.
  virtual void append_logprobs(std::string& out, const ChoiceAnswer& choice) const = 0;

  const Tokenizer& tokenizer_;
  const AnswerFormatOptions options_;
  const char* const whole_name_;
  const char* const chunk_name_;
};

class ChatFormat final : public JsonFormat {
 public:
  ChatFormat(const Tokenizer& tokenizer, const AnswerFormatOptions& options)
      : JsonFormat(tokenizer, options, "chat.completion", "chat.completion.chunk") {}

  const char* id_prefix() const override { return "chatcmpl-"; }

  std::string chunk(const AnswerHead& head, const ChoiceAnswer& choice,
                    const std::vector<int32_t>* prompt_ids) const override {
    Json delta = Json::object();
    if (!choice.started) delta = Json{{"role", "assistant"}, {"content", ""}};
    if (!choice.part.reasoning.empty()) delta["reasoning_content"] = choice.part.reasoning;
    // Clients append the content of every chunk without reasoning, the last one's too: there it is a string,
    // if an empty one.
    if (choice.part.reasoning.empty()) delta["content"] = choice.part.content;
    std::string out;
    ObjectText json(out);
    json.add(head_json(head, chunk_name_));
    json.value("choices") += '[';
    append_choice(out, choice, Json{{"index", choice.index}, {"delta", std::move(delta)}}, Json::object());
    out += ']';
    if (prompt_ids != nullptr) json.add(Json{{"prompt_token_ids", *prompt_ids}});
    if (options_.include_usage) json.add(Json{{"usage", nullptr}});
    json.close();
    return out;
  }

  std::string body(const AnswerHead& head, const std::vector<const ChoiceAnswer*>& choices,
                   const std::vector<std::vector<int32_t>>& prompts, const Usage& usage) const override {
    std::string out;
    reserve_text(out, choices);
    ObjectText json(out);
    json.add(head_json(head, whole_name_));
    append_list(json.value("choices"), choices, [&](const ChoiceAnswer* choice) {
      Json message{{"role", "assistant"}, {"content", choice->part.content}};
      if (options_.reasoning) message["reasoning_content"] = choice->part.reasoning;
      append_choice(out, *choice, Json{{"index", choice->index}, {"message", std::move(message)}},
                    Json::object());
      return true;
    });
    json.add(Json{{"usage", usage_json(usage)}});
    if (options_.return_token_ids) json.add(Json{{"prompt_token_ids", prompts[0]}});
    json.close();
    return out;
  }

 private:
  Json token_json(int32_t token, float logprob) const {
    const std::string_view bytes = tokenizer_.token_bytes(token);
    Json values = Json::array();
    for (const unsigned char byte : bytes) values.push_back(byte);
    return Json{{"token", std::string(bytes)}, {"logprob", finite(logprob)}, {"bytes", std::move(values)}};
  }

  void append_logprobs(std::string& out, const ChoiceAnswer& choice) const override {
    if (!options_.logprobs) {
      out += "null";
      return;
    }
    ObjectText json(out);
    append_part(json.value("content"), choice.part.tokens, AnswerToken::Part::kContent);
    if (options_.reasoning) {
      append_part(json.value("reasoning_content"), choice.part.tokens, AnswerToken::Part::kReasoning);
    }
    json.close();
  }

  void append_part(std::string& out, const std::vector<AnswerToken>& tokens, AnswerToken::Part part) const {
    append_list(out, tokens, [&](const AnswerToken& token) {
      const auto& logprobs = token.event.logprobs;
      if (!logprobs || token.part != part) return false;
      Json entry = token_json(token.event.token, logprobs->sampled);
      entry["top_logprobs"] = Json::array();
      for (const auto& [id, logprob] : logprobs->top)
        entry["top_logprobs"].push_back(token_json(id, logprob));
      out += dump_json(entry);
      return true;
    });
  }
};

class CompletionFormat final : public JsonFormat {
 public:
  CompletionFormat(const Tokenizer& tokenizer, const AnswerFormatOptions& options)
      : JsonFormat(tokenizer, options, "text_completion", "text_completion") {}

  const char* id_prefix() const override { return "cmpl-"; }

  std::string chunk(const AnswerHead& head, const ChoiceAnswer& choice,
                    const std::vector<int32_t>* prompt_ids) const override {
    std::string out;
    ObjectText json(out);
    json.add(head_json(head, chunk_name_));
    json.value("choices") += '[';
    append_entry(out, choice, prompt_ids);
    out += ']';
    if (options_.include_usage) json.add(Json{{"usage", nullptr}});
    json.close();
    return out;
  }

  std::string body(const AnswerHead& head, const std::vector<const ChoiceAnswer*>& choices,
                   const std::vector<std::vector<int32_t>>& prompts, const Usage& usage) const override {
    std::string out;
    reserve_text(out, choices);
    ObjectText json(out);
    json.add(head_json(head, whole_name_));
    append_list(json.value("choices"), choices, [&](const ChoiceAnswer* choice) {
      append_entry(out, *choice, options_.return_token_ids ? &prompts[choice->prompt] : nullptr);
      return true;
    });
    json.add(Json{{"usage", usage_json(usage)}});
    json.close();
    return out;
  }

 private:
  void append_entry(std::string& out, const ChoiceAnswer& choice,
                    const std::vector<int32_t>* prompt_ids) const {
    const Json more = prompt_ids != nullptr ? Json{{"prompt_token_ids", *prompt_ids}} : Json::object();
    append_choice(out, choice, Json{{"index", choice.index}, {"text", choice.part.content}}, more);
  }

  void append_logprobs(std::string& out, const ChoiceAnswer& choice) const override {
    if (!options_.logprobs) {
      out += "null";
      return;
    }
    ObjectText json(out);
    const auto add_list = [&](const char* name, const auto& json_of) {
      append_list(json.value(name), choice.part.tokens, [&](const AnswerToken& token) {
        if (token.event.logprobs) out += dump_json(json_of(token));
        return token.event.logprobs.has_value();
      });
    };
    add_list("tokens", [&](const AnswerToken& t) -> Json {
      return std::string(tokenizer_.token_bytes(t.event.token));
    });
    add_list("token_logprobs",
             [](const AnswerToken& t) -> Json { return finite(t.event.logprobs->sampled); });
    add_list("top_logprobs", [&](const AnswerToken& t) { return alternatives(t.event); });
    add_list("text_offset", [](const AnswerToken& t) -> Json { return t.text_offset; });
    json.close();
  }

  // The likeliest tokens, and the sampled one if it is none of them. Of two that read alike the likelier
  // stays.
  Json alternatives(const TokenEvent& event) const {
    Json json = Json::object();
    const auto add = [&](int32_t id, float logprob) {
      json.emplace(replace_invalid_utf8(tokenizer_.token_bytes(id)), finite(logprob));
    };
    for (const auto& [id, logprob] : event.logprobs->top) add(id, logprob);
    add(event.token, event.logprobs->sampled);
    return json;
  }
};

}  // namespace

std::optional<ChoiceAnswer> take_reasoning(ChoiceAnswer& choice) {
  AnswerPart& part = choice.part;
  if (part.reasoning.empty() || part.content.empty()) return std::nullopt;
  ChoiceAnswer taken{.index = choice.index, .prompt = choice.prompt, .started = choice.started};
  taken.part.reasoning = std::exchange(part.reasoning, {});
  const auto content = std::find_if(part.tokens.begin(), part.tokens.end(), [](const AnswerToken& token) {
    return token.part == AnswerToken::Part::kContent;
  });
  taken.part.tokens.assign(std::make_move_iterator(part.tokens.begin()), std::make_move_iterator(content));
  part.tokens.erase(part.tokens.begin(), content);
  return taken;
}

std::unique_ptr<AnswerFormat> make_chat_format(const Tokenizer& tokenizer,
                                               const AnswerFormatOptions& options) {
  return std::make_unique<ChatFormat>(tokenizer, options);
}
std::unique_ptr<AnswerFormat> make_completion_format(const Tokenizer& tokenizer,
                                                     const AnswerFormatOptions& options) {
  return std::make_unique<CompletionFormat>(tokenizer, options);
}

}  // namespace fathom::serve
