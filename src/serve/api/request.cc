// Bodies of chat and completion requests: every field checked by name, unknown ones refused.
#include "serve/api/request.h"

#include <algorithm>
#include <charconv>

#include "serve/api/answer_format.h"
#include "serve/api/json.h"

namespace fathom::serve {
namespace {

// A field of which only the default is honoured: anything else is refused rather than ignored.
void refuse_unless(ObjectReader& reader, const char* name, const Json& only) {
  const Json* value = reader.find(name);
  if (value == nullptr || *value == only) return;
  ApiError error = bad_request(reader.where() + name, "{}{} other than {} is not supported by this server",
                               reader.where(), name, dump_json(only));
  error.code = "unsupported_parameter";
  reader.fail(std::move(error));
}

void read_stop(ObjectReader& reader, const RequestLimits& limits, std::vector<std::string>& out) {
  const Json* stop = reader.find("stop");
  if (stop == nullptr) return;
  const Json list = stop->is_string() ? Json::array({*stop}) : *stop;
  if (!list.is_array()) {
    return reader.fail(
        bad_request("stop", "stop: expected a string or a list of strings, got {}", stop->type_name()));
  }
  if (list.size() > static_cast<size_t>(limits.stop_strings_max)) {
    return reader.fail(
        bad_request("stop", "stop: {} strings, at most {}", list.size(), limits.stop_strings_max));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_string()) {
      return reader.fail(bad_request("stop", "stop[{}]: expected a string, got {}", i, list[i].type_name()));
    }
    std::string text = list[i].get<std::string>();
    if (text.empty()) return reader.fail(bad_request("stop", "stop[{}]: an empty string stops nothing", i));
    if (text.size() > limits.stop_bytes_max) {
      return reader.fail(
          bad_request("stop", "stop[{}]: {} bytes, at most {}", i, text.size(), limits.stop_bytes_max));
    }
    out.push_back(std::move(text));
  }
}

// Token ids of a list, each checked against the vocabulary.
void read_token_ids(ObjectReader& reader, const std::string& name, const Json& list, int32_t vocab_size,
                    std::vector<int32_t>& out) {
  if (!list.is_array()) {
    return reader.fail(bad_request(name, "{}: expected a list of token ids, got {}", name, list.type_name()));
  }
  out.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& id = list[i];
    if (!id.is_number_integer()) {
      return reader.fail(bad_request(name, "{}[{}]: expected a token id, got {}", name, i, id.type_name()));
    }
    const bool in_range = id.is_number_unsigned() ? id.get<uint64_t>() < static_cast<uint64_t>(vocab_size)
                                                  : id.get<int64_t>() >= 0 && id.get<int64_t>() < vocab_size;
    if (!in_range) {
      return reader.fail(bad_request(name, "{}[{}]: token id {} is outside the vocabulary [0, {})", name, i,
                                     dump_json(id), vocab_size));
    }
    out.push_back(id.get<int32_t>());
  }
}

// Tokenising costs far more than counting bytes: text that cannot fit the window even in the longest tokens
// is refused before.
void check_text_bytes(ObjectReader& reader, const RequestLimits& limits, const std::string& name,
                      size_t bytes) {
  if (limits.token_bytes_max == 0) return;
  const size_t tokens_min = bytes / limits.token_bytes_max;
  if (tokens_min <= static_cast<size_t>(limits.context_max)) return;
  ApiError error =
      bad_request(name,
                  "This model's maximum context length is {} tokens. However, your {} bytes of text are at "
                  "least {} tokens.",
                  limits.context_max, bytes, tokens_min);
  error.code = "context_length_exceeded";
  reader.fail(std::move(error));
}

void read_stop_token_ids(ObjectReader& reader, const RequestLimits& limits, std::vector<int32_t>& out) {
  const Json* ids = reader.find("stop_token_ids");
  if (ids == nullptr) return;
  if (ids->is_array() && ids->size() > static_cast<size_t>(limits.stop_token_ids_max)) {
    return reader.fail(bad_request("stop_token_ids", "stop_token_ids: {} ids, at most {}", ids->size(),
                                   limits.stop_token_ids_max));
  }
  read_token_ids(reader, "stop_token_ids", *ids, limits.vocab_size, out);
}

void read_logit_bias(ObjectReader& reader, const RequestLimits& limits, SamplingParams& sampling) {
  const Json* bias = reader.find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) {
    return reader.fail(
        bad_request("logit_bias", "logit_bias: expected an object, got {}", bias->type_name()));
  }
  if (bias->size() > static_cast<size_t>(limits.logit_bias_max)) {
    return reader.fail(
        bad_request("logit_bias", "logit_bias: {} entries, at most {}", bias->size(), limits.logit_bias_max));
  }
  for (const auto& [key, value] : bias->items()) {
    int32_t id = -1;
    const std::errc error = std::from_chars(key.data(), key.data() + key.size(), id).ec;
    // One way to write an id: "05" would be a second entry for 5.
    if (error != std::errc() || key != std::to_string(id) || id < 0 || id >= limits.vocab_size) {
      return reader.fail(
          bad_request("logit_bias", "logit_bias: '{}' is not a token id in [0, {})", key, limits.vocab_size));
    }
    if (!value.is_number() || !(value.get<double>() >= -100 && value.get<double>() <= 100)) {
      return reader.fail(bad_request("logit_bias", "logit_bias[{}]: expected a number in [-100, 100], got {}",
                                     id, dump_json(value)));
    }
    sampling.logit_bias.emplace_back(id, static_cast<float>(value.get<double>()));
  }
}

void read_stream_options(ObjectReader& reader, GenerationOptions& options) {
  const Json* stream_options = reader.find("stream_options");
  if (stream_options == nullptr) return;
  if (!stream_options->is_object()) {
    return reader.fail(bad_request("stream_options", "stream_options: expected an object, got {}",
                                   stream_options->type_name()));
  }
  if (!options.stream) {
    return reader.fail(bad_request("stream_options", "stream_options is only allowed when stream is true"));
  }
  ObjectReader inner(*stream_options, "stream_options.");
  options.include_usage = inner.boolean("include_usage", false);
  refuse_unless(inner, "continuous_usage_stats", false);
  inner.check_booleans({"include_obfuscation"});  // padding against eavesdroppers: never sent, so switching
                                                  // it off is no change
  if (auto error = inner.finish()) reader.fail(*error);
}

void read_response_format(ObjectReader& reader) {
  const Json* format = reader.find("response_format");
  if (format == nullptr) return;
  if (format->is_object()) {
    ObjectReader inner(*format, "response_format.");
    const Json* type = inner.find("type");
    if (type != nullptr && *type == "text") {
      inner.refuse({"json_schema"});
      if (auto error = inner.finish()) reader.fail(*error);
      return;
    }
  }
  ApiError error = bad_request(
      "response_format", "response_format other than {{\"type\":\"text\"}} is not supported by this server");
  error.code = "unsupported_parameter";
  reader.fail(std::move(error));
}

// Accepted and without effect on the answer, as README says: labels for the server's books. A label of
// another type is a client's mistake all the same.
void check_labels(ObjectReader& reader) {
  reader.check_texts({"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"});
  reader.check_booleans({"store", "parallel_tool_calls"});
  const std::string tier = reader.text("service_tier", "auto");
  constexpr std::string_view kTiers[] = {"auto", "default", "flex", "scale", "priority"};
  if (std::find(std::begin(kTiers), std::end(kTiers), tier) == std::end(kTiers)) {
    reader.fail(bad_request("service_tier",
                            "service_tier: expected auto, default, flex, scale or priority, got '{}'", tier));
  }
  const Json* metadata = reader.find("metadata");
  if (metadata == nullptr) return;
  const bool texts =
      metadata->is_object() &&
      std::all_of(metadata->begin(), metadata->end(), [](const Json& value) { return value.is_string(); });
  if (!texts) reader.fail(bad_request("metadata", "metadata: expected an object of strings"));
}

void read_options(ObjectReader& reader, const RequestLimits& limits, GenerationOptions& options) {
  SamplingParams& s = options.sampling;
  s.temperature = static_cast<float>(reader.number("temperature", 1.0, 0.0, 2.0));
  // top_p 0 is taken as "only the likeliest token", as OpenAI does; the sampler wants a positive number.
  s.top_p = static_cast<float>(std::max(1e-6, reader.number("top_p", 1.0, 0.0, 1.0)));
  s.min_p = static_cast<float>(reader.number("min_p", 0.0, 0.0, 1.0));
  // -1 and 0 both mean "all", as vLLM and others take it.
  s.top_k = static_cast<int32_t>(std::max<int64_t>(0, reader.integer("top_k", 0, -1, INT32_MAX)));
  s.presence_penalty = static_cast<float>(reader.number("presence_penalty", 0.0, -2.0, 2.0));
  s.frequency_penalty = static_cast<float>(reader.number("frequency_penalty", 0.0, -2.0, 2.0));
  s.repetition_penalty = static_cast<float>(reader.number("repetition_penalty", 1.0, 0.01, 10.0));
  if (reader.find("seed") != nullptr) {
    options.seeded = true;
    s.seed = static_cast<uint64_t>(reader.integer("seed", 0, INT64_MIN, INT64_MAX));
  }
  read_logit_bias(reader, limits, s);

  const int64_t old_name = reader.integer("max_tokens", 0, 1, INT32_MAX);
  const int64_t new_name = reader.integer("max_completion_tokens", 0, 1, INT32_MAX);
  if (new_name > 0 || old_name > 0)
    options.max_tokens = static_cast<int32_t>(new_name > 0 ? new_name : old_name);
  options.num_choices = static_cast<int32_t>(reader.integer("n", 1, 1, limits.choices_max));
  read_stop(reader, limits, options.stop);
  read_stop_token_ids(reader, limits, options.stop_token_ids);
  options.ignore_eos = reader.boolean("ignore_eos", false);
  options.stream = reader.boolean("stream", false);
  read_stream_options(reader, options);
  options.return_token_ids = reader.boolean("return_token_ids", false);
  options.tenant = reader.text("user_id", "");
  read_response_format(reader);
  check_labels(reader);
}

// `content` as a string, or as a list of {"type": "text", "text": …} parts, which are joined.
void read_content(ObjectReader& reader, const Json& content, const std::string& where,
                  std::optional<std::string>& out) {
  if (content.is_string()) {
    out = content.get<std::string>();
    return;
  }
  if (!content.is_array()) {
    return reader.fail(bad_request(where, "{}: expected a string or a list of text parts, got {}", where,
                                   content.type_name()));
  }
  out.emplace();
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& json = content[i];
    const bool is_text =
        json.is_object() && json.value("type", Json()) == "text" && json.value("text", Json()).is_string();
    if (!is_text) {
      return reader.fail(bad_request(where, "{}[{}]: only parts of type 'text' are supported", where, i));
    }
    ObjectReader part(json, fmt::format("{}[{}].", where, i));
    part.find("type");
    *out += part.text("text", "");
    if (auto error = part.finish()) return reader.fail(*error);
  }
}

void read_message(ObjectReader& reader, const Json& json, size_t index, std::vector<ChatMessage>& out) {
  const std::string where = fmt::format("messages[{}].", index);
  if (!json.is_object()) {
    return reader.fail(
        bad_request("messages", "messages[{}]: expected an object, got {}", index, json.type_name()));
  }
  ObjectReader message(json, where);
  ChatMessage parsed;
  parsed.role = message.text("role", "");
  if (parsed.role == "developer") parsed.role = "system";
  if (parsed.role != "system" && parsed.role != "user" && parsed.role != "assistant") {
    const bool tool = parsed.role == "tool" || parsed.role == "function";
    return reader.fail(bad_request(
        where + "role", "{}role: {}, got '{}'", where,
        tool ? "tool messages are not supported by this server" : "expected system, user or assistant",
        parsed.role));
  }
  message.refuse({"function_call", "prefix", "audio"});
  if (const Json* calls = message.find("tool_calls");
      calls != nullptr && !(calls->is_array() && calls->empty())) {
    message.refuse({"tool_calls"});
  }
  message.check_texts({"name", "refusal"});
  if (const Json* annotations = message.find("annotations");
      annotations != nullptr && !annotations->is_array()) {
    message.fail(bad_request(where + "annotations", "{}annotations: expected a list, got {}", where,
                             annotations->type_name()));
  }
  if (message.find("reasoning_content") != nullptr)
    parsed.reasoning_content = message.text("reasoning_content", "");
  if (const Json* content = message.find("content")) {
    read_content(message, *content, where + "content", parsed.content);
  } else if (parsed.role != "assistant") {
    message.fail(bad_request(where + "content", "{}content is missing", where));
  }
  if (auto error = message.finish()) return reader.fail(*error);
  out.push_back(std::move(parsed));
}

void read_messages(ObjectReader& reader, const RequestLimits& limits, std::vector<ChatMessage>& out) {
  const Json* messages = reader.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return reader.fail(bad_request("messages", "messages: expected a list with at least one message"));
  }
  if (messages->size() > static_cast<size_t>(limits.messages_max)) {
    return reader.fail(
        bad_request("messages", "messages: {} messages, at most {}", messages->size(), limits.messages_max));
  }
  for (size_t i = 0; i < messages->size(); ++i) read_message(reader, (*messages)[i], i, out);
  size_t bytes = 0;
  for (const ChatMessage& message : out) {
    bytes += message.content.value_or("").size() + message.reasoning_content.value_or("").size();
  }
  check_text_bytes(reader, limits, "messages", bytes);
}

// The model answers a message; going on with its own is DeepSeek's `prefix`, which is refused.
void refuse_answer_last(ObjectReader& reader, const std::vector<ChatMessage>& messages) {
  if (messages.empty() || messages.back().role != "assistant") return;
  const std::string last = fmt::format("messages[{}]", messages.size() - 1);
  ApiError error = bad_request(
      last, "{}: the last message is the assistant's; going on with it is not supported by this server",
      last);
  error.code = "unsupported_parameter";
  reader.fail(std::move(error));
}

// Whether to think may be said in four places. Where two say the opposite, neither is followed in silence.
class ThinkingSwitch {
 public:
  ThinkingSwitch(ObjectReader& reader, TemplateArguments& arguments)
      : reader_(reader), arguments_(arguments) {}

  void set(const std::string& name, bool on) {
    if (!name_.empty() && arguments_.thinking != on) {
      reader_.fail(bad_request(name, "{} and {} contradict each other: one asks for thinking, one for none",
                               name_, name));
    }
    name_ = name;
    arguments_.thinking = on;
  }
  // What holds where no place says whether to think.
  void set_default(bool on) {
    if (name_.empty()) arguments_.thinking = on;
  }

 private:
  ObjectReader& reader_;
  TemplateArguments& arguments_;
  std::string name_;  // of the place that has spoken
};

// OpenAI's `reasoning_effort`: a model that thinks at one length only can think or not. An effort is how much
// to think, if at all.
void read_reasoning_effort(ObjectReader& reader, ThinkingSwitch& thinking) {
  if (reader.find("reasoning_effort") == nullptr) return;
  const std::string effort = reader.text("reasoning_effort", "");
  if (effort == "none") return thinking.set("reasoning_effort", false);
  for (const char* known : {"minimal", "low", "medium", "high", "xhigh"}) {
    if (effort == known) return thinking.set_default(true);
  }
  reader.fail(bad_request("reasoning_effort",
                          "reasoning_effort: expected none, minimal, low, medium, high or xhigh, got '{}'",
                          effort));
}

// DeepSeek's `thinking: {"type": "enabled"|"disabled"}`, and `thinking`/`enable_thinking` among the
// template's own arguments; either goes before an effort.
void read_template_arguments(ObjectReader& reader, TemplateArguments& arguments) {
  ThinkingSwitch thinks(reader, arguments);
  read_reasoning_effort(reader, thinks);
  if (const Json* thinking = reader.find("thinking")) {
    const Json type = thinking->is_object() ? thinking->value("type", Json()) : Json();
    if (type != "enabled" && type != "disabled") {
      return reader.fail(
          bad_request("thinking", R"(thinking: expected {{"type": "enabled"}} or {{"type": "disabled"}})"));
    }
    ObjectReader inner(*thinking, "thinking.");
    thinks.set("thinking", inner.text("type", "") == "enabled");
    inner.refuse({"budget_tokens"});
    if (auto error = inner.finish()) return reader.fail(*error);
  }
  const Json* kwargs = reader.find("chat_template_kwargs");
  if (kwargs == nullptr) return;
  if (!kwargs->is_object()) {
    return reader.fail(bad_request("chat_template_kwargs", "chat_template_kwargs: expected an object, got {}",
                                   kwargs->type_name()));
  }
  arguments.kwargs_json = dump_json(*kwargs);
  for (const char* name : {"thinking", "enable_thinking"}) {
    const auto it = kwargs->find(name);
    if (it == kwargs->end() || it->is_null()) continue;
    if (!it->is_boolean()) {
      return reader.fail(bad_request(fmt::format("chat_template_kwargs.{}", name),
                                     "chat_template_kwargs.{}: expected true or false, got {}", name,
                                     it->type_name()));
    }
    thinks.set(fmt::format("chat_template_kwargs.{}", name), it->get<bool>());
  }
}

void read_empty_tools(ObjectReader& reader) {
  for (const char* name : {"tools", "functions"}) {
    const Json* tools = reader.find(name);
    if (tools != nullptr && !(tools->is_array() && tools->empty())) reader.refuse({name});
  }
  const Json* choice = reader.find("tool_choice");
  if (choice != nullptr && *choice != "none" && *choice != "auto") reader.refuse({"tool_choice"});
}

void read_prompt(ObjectReader& reader, const RequestLimits& limits, std::vector<CompletionPrompt>& out) {
  const Json* prompt = reader.find("prompt");
  if (prompt == nullptr) return reader.fail(bad_request("prompt", "prompt is missing"));
  const auto add_ids = [&](const Json& ids) {
    std::vector<int32_t> tokens;
    read_token_ids(reader, "prompt", ids, limits.vocab_size, tokens);
    out.emplace_back(std::move(tokens));
  };
  const auto add_text = [&](const Json& text) {
    out.emplace_back(text.get<std::string>());
    check_text_bytes(reader, limits, "prompt", std::get<std::string>(out.back()).size());
  };
  if (prompt->is_string()) {
    add_text(*prompt);
  } else if (prompt->is_array() && !prompt->empty() && (*prompt)[0].is_number()) {
    add_ids(*prompt);
  } else if (prompt->is_array() && !prompt->empty()) {
    if (prompt->size() > static_cast<size_t>(limits.prompts_max)) {
      return reader.fail(
          bad_request("prompt", "prompt: {} prompts, at most {}", prompt->size(), limits.prompts_max));
    }
    for (const Json& item : *prompt) {
      if (item.is_string()) {
        add_text(item);
      } else {
        add_ids(item);
      }
    }
  } else {
    reader.fail(bad_request("prompt",
                            "prompt: expected a string, a list of token ids, or a list of either, got {}",
                            prompt->is_array() ? "an empty list" : prompt->type_name()));
  }
}

}  // namespace

int32_t answer_tokens_max(const RequestLimits& limits, const GenerationOptions& options, size_t num_prompts) {
  // The token, and of log-probabilities the sampled one's and the likeliest ones'.
  const int64_t values_per_token = 2 + int64_t{options.sampling.num_logprobs};
  const auto num_choices = static_cast<int64_t>(num_prompts) * options.num_choices;
  const int64_t tokens = limits.answer_bytes_max / (num_choices * values_per_token * kAnswerBytesPerValue);
  return static_cast<int32_t>(std::clamp<int64_t>(tokens, 1, INT32_MAX));
}

ApiResult<ChatRequest> parse_chat_request(std::string_view body, const RequestLimits& limits) {
  auto json = parse_json_object(body);
  if (!json.ok()) return json.error();
  ObjectReader reader(json.value(), "");
  ChatRequest request;
  request.model = reader.text("model", "");
  read_messages(reader, limits, request.messages);
  refuse_answer_last(reader, request.messages);
  read_template_arguments(reader, request.template_arguments);
  read_options(reader, limits, request.options);
  read_empty_tools(reader);
  const bool logprobs = reader.boolean("logprobs", false);
  const int64_t top = reader.integer("top_logprobs", 0, 0, limits.top_logprobs_max);
  if (!logprobs && top > 0) {
    reader.fail(bad_request("top_logprobs", "top_logprobs needs logprobs to be true"));
  }
  if (logprobs) request.options.sampling.num_logprobs = static_cast<int32_t>(top);
  reader.refuse({"function_call", "audio", "prediction", "web_search_options"});
  refuse_unless(reader, "verbosity", "medium");
  if (const Json* modalities = reader.find("modalities");
      modalities && *modalities != Json::array({"text"})) {
    reader.refuse({"modalities"});
  }
  if (auto error = reader.finish()) return *error;
  return request;
}

ApiResult<CompletionRequest> parse_completion_request(std::string_view body, const RequestLimits& limits) {
  auto json = parse_json_object(body);
  if (!json.ok()) return json.error();
  ObjectReader reader(json.value(), "");
  CompletionRequest request;
  request.model = reader.text("model", "");
  read_prompt(reader, limits, request.prompts);
  read_options(reader, limits, request.options);
  request.echo = reader.boolean("echo", false);
  if (reader.find("logprobs") != nullptr) {
    request.options.sampling.num_logprobs =
        static_cast<int32_t>(reader.integer("logprobs", 0, 0, limits.top_logprobs_max));
    if (request.echo)
      reader.fail(bad_request("echo", "echo together with logprobs is not supported by this server"));
  }
  const int64_t best_of = reader.integer("best_of", 1, 1, limits.choices_max);
  if (best_of != 1 && best_of != request.options.num_choices) {
    reader.fail(bad_request("best_of", "best_of other than n is not supported by this server"));
  }
  reader.refuse({"suffix"});
  if (auto error = reader.finish()) return *error;
  return request;
}

ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view body, const RequestLimits& limits) {
  auto json = parse_json_object(body);
  if (!json.ok()) return json.error();
  ObjectReader reader(json.value(), "");
  TokenizeRequest request;
  request.model = reader.text("model", "");
  if (reader.find("messages") != nullptr) {
    read_messages(reader, limits, request.messages);
    read_template_arguments(reader, request.template_arguments);
    if (reader.find("prompt") != nullptr)
      reader.fail(bad_request("prompt", "give prompt or messages, not both"));
  } else {
    if (reader.find("prompt") == nullptr) reader.fail(bad_request("prompt", "prompt is missing"));
    request.prompt = reader.text("prompt", "");
    check_text_bytes(reader, limits, "prompt", request.prompt->size());
  }
  request.add_special_tokens = reader.boolean("add_special_tokens", true);
  request.add_generation_prompt = reader.boolean("add_generation_prompt", true);
  if (auto error = reader.finish()) return *error;
  return request;
}

ApiResult<DetokenizeRequest> parse_detokenize_request(std::string_view body, const RequestLimits& limits) {
  auto json = parse_json_object(body);
  if (!json.ok()) return json.error();
  ObjectReader reader(json.value(), "");
  DetokenizeRequest request;
  request.model = reader.text("model", "");
  if (const Json* tokens = reader.find("tokens")) {
    if (tokens->size() > static_cast<size_t>(limits.context_max)) {
      reader.fail(bad_request("tokens", "tokens: {} ids, at most {}", tokens->size(), limits.context_max));
    }
    read_token_ids(reader, "tokens", *tokens, limits.vocab_size, request.tokens);
  } else {
    reader.fail(bad_request("tokens", "tokens is missing"));
  }
  if (auto error = reader.finish()) return *error;
  return request;
}

}  // namespace fathom::serve
