// Finds a folder's template, checks the messages' JSON and renders through the bridge.
#include "text/chat_template.h"

#include <fathom_bridge/src/lib.rs.h>
#include <rust/cxx.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>

#include "text/marked_text.h"
#include "text/utf8.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant", "tool"};

constexpr std::string_view kPublishedFormat = R"(
{%- set ns = namespace(system='', first=true) -%}
{%- for message in messages if message.role in ['system', 'developer'] -%}
  {%- set ns.system = ns.system + ('' if ns.first else '\n\n') + message.content -%}
  {%- set ns.first = false -%}
{%- endfor -%}
{{- bos_token ~ ns.system -}}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}
    {{- '<｜User｜>' + message.content -}}
  {%- elif message.role == 'assistant' -%}
    {{- '<｜Assistant｜>' + (message.content or '').split('</think>')[-1] ~ eos_token|default('<｜end▁of▁sentence｜>') -}}
  {%- elif message.role == 'tool' -%}
    {{- raise_exception('the model has no chat template, so tool messages are not supported') -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<｜Assistant｜>' + ('<think>\n' if thinking is defined and thinking else '') -}}
{%- endif -%}
)";

constexpr std::string_view kPublishedFormatName = "DeepSeek's published format";

struct TemplateSource {
  std::string plain;
  std::string with_tools;  // empty: the same
  std::string file;        // where it was found, for error messages
};

rust::Slice<const uint8_t> as_slice(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

Result<TemplateSource> find_source(const TextAssets& assets, const Tokenizer& tokenizer) {
  if (!assets.chat_template_jinja.empty()) {
    return TemplateSource{assets.chat_template_jinja, "", assets.source + "/chat_template.jinja"};
  }
  const std::string file = assets.source + "/tokenizer_config.json";
  const Json config = Json::parse(assets.tokenizer_config_json, nullptr, /*allow_exceptions=*/false);
  const Json chat_template = config.is_object() ? config.value("chat_template", Json()) : Json();
  if (chat_template.is_string()) return TemplateSource{chat_template.get<std::string>(), "", file};
  if (chat_template.is_array()) {
    TemplateSource source{"", "", file};
    for (const Json& entry : chat_template) {
      if (!entry.is_object() || !entry.value("name", Json()).is_string() ||
          !entry.value("template", Json()).is_string()) {
        return invalid_argument("{}: chat_template: expected objects with \"name\" and \"template\"", file);
      }
      if (entry["name"] == "default") source.plain = entry["template"].get<std::string>();
      if (entry["name"] == "tool_use") source.with_tools = entry["template"].get<std::string>();
    }
    if (source.plain.empty()) return invalid_argument("{}: chat_template: no entry named \"default\"", file);
    return source;
  }
  if (!chat_template.is_null())
    return invalid_argument("{}: chat_template: expected a string or a list", file);
  if (!tokenizer.added_token_id("<｜User｜>")) {
    return make_status(StatusCode::kNotFound,
                       "{}: no chat template, and the tokenizer has no <｜User｜> for DeepSeek's format",
                       assets.source);
  }
  return TemplateSource{std::string(kPublishedFormat), "", std::string(kPublishedFormatName)};
}

// Counts brackets outside strings. Deeper documents are refused before anything recursive sees them.
bool is_nested_deeper_than(std::string_view json, int depth_max) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > depth_max) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

Result<Json> parse_json(std::string_view text, std::string_view what) {
  if (is_nested_deeper_than(text, kTemplateJsonDepthMax)) {
    return invalid_argument("{}: nested deeper than {} levels", what, kTemplateJsonDepthMax);
  }
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return invalid_argument("{}: not valid JSON", what);
  return json;
}

void set_text(Json& object, const char* key, const std::optional<std::string>& text) {
  if (text) object[key] = replace_invalid_utf8(*text);
}

Result<Json> message_json(const ChatMessage& message) {
  if (std::find(kRoles.begin(), kRoles.end(), message.role) == kRoles.end()) {
    return invalid_argument("unknown role \"{}\"", replace_invalid_utf8(message.role));
  }
  Json json = {{"role", message.role}, {"content", nullptr}};
  set_text(json, "content", message.content);
  set_text(json, "reasoning_content", message.reasoning_content);
  set_text(json, "name", message.name);
  set_text(json, "tool_call_id", message.tool_call_id);
  if (!message.tool_calls_json.empty()) {
    ASSIGN_OR_RETURN(json["tool_calls"], parse_json(message.tool_calls_json, "tool_calls"));
    if (!json["tool_calls"].is_array()) return invalid_argument("tool_calls: expected a list");
  }
  return json;
}

Result<Json> make_context(std::span<const ChatMessage> messages, const ChatTemplateOptions& options,
                          bool knows_developer) {
  Json context = Json::object();
  if (!options.extra_json.empty()) {
    ASSIGN_OR_RETURN(context, parse_json(options.extra_json, "chat_template_kwargs"));
    if (!context.is_object()) return invalid_argument("chat_template_kwargs: expected an object");
  }
  context["messages"] = Json::array();
  for (const ChatMessage& message : messages) {
    ASSIGN_OR_RETURN(Json json, message_json(message));
    if (message.role == "developer" && !knows_developer) json["role"] = "system";
    context["messages"].push_back(std::move(json));
  }
  // Hugging Face always passes these two, as None when there are none.
  context["tools"] = nullptr;
  context["documents"] = nullptr;
  if (!options.tools_json.empty()) {
    ASSIGN_OR_RETURN(context["tools"], parse_json(options.tools_json, "tools"));
    if (!context["tools"].is_array()) return invalid_argument("tools: expected a list");
  }
  context["add_generation_prompt"] = options.add_generation_prompt;
  if (options.thinking) {
    context["thinking"] = *options.thinking;
    context["enable_thinking"] = *options.thinking;
  }
  return context;
}

// Marks the messages, tools and further variables of a template's context (marked_text.h).
class ContextMarker {
 public:
  ContextMarker(const LookAlikeMarker& marker, std::string_view sentinel, bool also_ends)
      : marker_(marker), sentinel_(sentinel), also_ends_(also_ends) {}

  void mark_context(Json& context) const {
    for (auto& [key, value] : context.items()) {
      if (key != "messages") mark_json(value);
    }
    for (Json& message : context["messages"]) mark_message(message);
  }

 private:
  std::string mark(const Json& text, std::span<const std::string> allowed = {}) const {
    return marker_.mark(text.get_ref<const std::string&>(), sentinel_, also_ends_, allowed);
  }

  // Every string, member names too. Recursion is bounded by kTemplateJsonDepthMax.
  void mark_json(Json& json) const {
    if (json.is_string()) {
      json = mark(json);
    } else if (json.is_array()) {
      for (Json& item : json) mark_json(item);
    } else if (json.is_object()) {
      Json marked = Json::object();
      for (auto& [key, value] : json.items()) {
        mark_json(value);
        marked[mark(key)] = std::move(value);
      }
      json = std::move(marked);
    }
  }

  void mark_message(Json& message) const {
    static const std::vector<std::string> kReasoningTags = {"<think>", "</think>"};
    for (const char* key : {"content", "reasoning_content", "name", "tool_call_id"}) {
      const auto member = message.find(key);
      if (member == message.end() || !member->is_string()) continue;
      const bool keeps_tags = message["role"] == "assistant" && std::string_view(key) == "content";
      *member = keeps_tags ? mark(*member, kReasoningTags) : mark(*member);
    }
    if (const auto calls = message.find("tool_calls"); calls != message.end()) mark_json(*calls);
  }

  const LookAlikeMarker& marker_;
  std::string_view sentinel_;
  bool also_ends_;
};

void erase_all(std::string& text, std::string_view what) {
  size_t kept = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t next = std::min(text.find(what, i), text.size());
    std::copy(text.begin() + static_cast<ptrdiff_t>(i), text.begin() + static_cast<ptrdiff_t>(next),
              text.begin() + static_cast<ptrdiff_t>(kept));
    kept += next - i;
    i = next + what.size();
  }
  text.resize(kept);
}

bool ends_in_open_think(std::string_view prompt) {
  const size_t last = prompt.find_last_not_of(" \t\r\n");
  return last != std::string_view::npos && prompt.substr(0, last + 1).ends_with("<think>");
}

}  // namespace

struct ChatTemplate::Impl {
  Tokenizer tokenizer;
  LookAlikeMarker marker;
  TemplateSource source;
  rust::Box<bridge::TemplateCore> plain;
  rust::Box<bridge::TemplateCore> with_tools;

  bool source_has(std::string_view text) const {
    return source.plain.find(text) != std::string::npos || source.with_tools.find(text) != std::string::npos;
  }
  Result<std::string> choose_sentinel(const Json& context) const;
  // Renders `context`, marked already, and encodes the result. The text still holds the sentinels.
  Result<RenderedPrompt> render(Json context, std::string_view sentinel, const ChatTemplateOptions& options,
                                const EncodeCheck& check) const;
  std::vector<int32_t> added_only(std::vector<int32_t> ids) const {
    std::erase_if(ids, [&](int32_t id) { return !tokenizer.is_added(id); });
    return ids;
  }
};

Result<std::string> ChatTemplate::Impl::choose_sentinel(const Json& context) const {
  SentinelChooser chooser;
  chooser.avoid(context.dump());
  chooser.avoid(source.plain);
  chooser.avoid(source.with_tools);
  for (const std::string& token : tokenizer.added_tokens()) chooser.avoid(token);
  const auto sentinel = chooser.choose();
  if (!sentinel) return invalid_argument("the messages hold every character that could mark them");
  return *sentinel;
}

Result<RenderedPrompt> ChatTemplate::Impl::render(Json context, std::string_view sentinel,
                                                  const ChatTemplateOptions& options,
                                                  const EncodeCheck& check) const {
  for (const auto& [name, content] : tokenizer.named_tokens()) context[name] = content;
  RenderedPrompt prompt;
  try {
    const auto& core = options.tools_json.empty() ? plain : with_tools;
    const std::string document = context.dump();
    const auto rendered = bridge::template_render(*core, as_slice(document), options.now_unix_s);
    prompt.text.assign(reinterpret_cast<const char*>(rendered.data()), rendered.size());
  } catch (const rust::Error& error) {
    return invalid_argument("chat template: {}", error.what());
  }
  ASSIGN_OR_RETURN(prompt.ids, tokenizer.encode_marked(prompt.text, sentinel, check));
  return prompt;
}

ChatTemplate::ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<ChatTemplate> ChatTemplate::load(const TextAssets& assets, const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(TemplateSource source, find_source(assets, tokenizer));
  try {
    const std::string& tool_source = source.with_tools.empty() ? source.plain : source.with_tools;
    auto plain = bridge::template_compile(as_slice(source.plain));
    auto with_tools = bridge::template_compile(as_slice(tool_source));
    return ChatTemplate(
        std::make_shared<Impl>(Impl{tokenizer, LookAlikeMarker(tokenizer.added_tokens()), std::move(source),
                                    std::move(plain), std::move(with_tools)}));
  } catch (const rust::Error& error) {
    return invalid_argument("{}: chat template: {}", source.file, error.what());
  }
}

Result<RenderedPrompt> ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                            const ChatTemplateOptions& options,
                                            const EncodeCheck& check) const {
  ASSIGN_OR_RETURN(const Json context, make_context(messages, options, impl_->source_has("developer")));
  ASSIGN_OR_RETURN(const std::string sentinel, impl_->choose_sentinel(context));
  Json marked = context;
  ContextMarker(impl_->marker, sentinel, /*also_ends=*/false).mark_context(marked);
  ASSIGN_OR_RETURN(RenderedPrompt prompt, impl_->render(marked, sentinel, options, check));

  // Marks at the ends of texts ("> quote", "a <") may mislead a template that inspects them, so they are used
  // only where they matter: where a text and its neighbours have formed an added token.
  Json marked_ends = context;
  ContextMarker(impl_->marker, sentinel, /*also_ends=*/true).mark_context(marked_ends);
  if (marked_ends != marked) {
    ASSIGN_OR_RETURN(RenderedPrompt safe, impl_->render(std::move(marked_ends), sentinel, options, check));
    if (impl_->added_only(safe.ids) != impl_->added_only(prompt.ids)) prompt = std::move(safe);
  }
  prompt.starts_in_reasoning = options.add_generation_prompt && ends_in_open_think(prompt.text);
  erase_all(prompt.text, sentinel);
  return prompt;
}

Status ChatTemplate::check() const {
  const ChatMessage user{.role = "user", .content = "Hello"};
  const ChatMessage assistant{.role = "assistant", .content = "Hello"};
  const ChatMessage system{.role = "system", .content = "Be brief."};
  const std::string tool = R"([{"type":"function","function":{"name":"f","parameters":{}}}])";
  const auto problem = [&](const std::vector<ChatMessage>& messages,
                           ChatTemplateOptions options) -> std::string {
    const Result<RenderedPrompt> prompt = render(messages, options);
    if (!prompt.ok()) return prompt.status().message();
    return prompt->ids.empty() ? "renders nothing" : "";
  };
  if (const std::string what = problem({user}, {}); !what.empty()) {
    return invalid_argument("{}: a plain user message: {}", impl_->source.file, what);
  }
  // A template may refuse these, in words of its own.
  for (const std::string& what :
       {problem({system, user, assistant, user}, {}), problem({user}, {.tools_json = tool})}) {
    if (what.find("unknown") != std::string::npos)
      return invalid_argument("{}: {}", impl_->source.file, what);
  }
  return ok_status();
}

bool ChatTemplate::is_published_format() const { return impl_->source.file == kPublishedFormatName; }

bool ChatTemplate::has_reasoning() const {
  return impl_->source_has("</think>") || impl_->tokenizer.added_token_id("</think>").has_value();
}

}  // namespace fathom
