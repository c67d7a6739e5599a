// Chat messages to a prompt, by the model's own chat template, rendered as Hugging Face's jinja2 renders it.
// Whatever the messages hold, only the template's own text can become special tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/text_assets.h"
#include "text/tokenizer.h"

namespace fathom {

// Tools, tool calls and further variables nested deeper are refused.
inline constexpr int kTemplateJsonDepthMax = 100;

struct ChatMessage {
  // system, developer, user, assistant or tool; a template that does not mention developer sees it as system.
  std::string role;
  std::optional<std::string> content;            // none is JSON's null
  std::optional<std::string> reasoning_content;  // absent for the template unless set, as the rest
  std::optional<std::string> name;
  std::optional<std::string> tool_call_id;
  std::string tool_calls_json;  // empty, or a JSON array
};

struct ChatTemplateOptions {
  bool add_generation_prompt = true;  // ends with what opens the assistant's turn
  std::optional<bool> thinking;  // sets `thinking` and `enable_thinking`; none leaves the template's default
  std::string tools_json;        // empty, or a JSON array; a list of templates then picks "tool_use"
  std::string extra_json;        // empty, or a JSON object: further variables (chat_template_kwargs)
  int64_t now_unix_s = 0;        // what strftime_now() formats, in UTC
};

struct RenderedPrompt {
  std::string text;          // what jinja2 would have rendered
  std::vector<int32_t> ids;  // its tokens, BOS included where the template writes it
  // The prompt ends inside an open <think>: the answer begins as reasoning.
  bool starts_in_reasoning = false;
};

// Copies share one immutable template. Every const call may run on many threads at once.
class ChatTemplate {
 public:
  // The template is chat_template.jinja, else tokenizer_config.json's `chat_template` (a string, or a list of
  // named ones), else DeepSeek's published format:
  //   <bos>{system}<｜User｜>{user}<｜Assistant｜>{assistant}<eos>...<｜Assistant｜>[<think>\n, when asked to
  //   think]
  // kNotFound: there is none, and the tokenizer has no <｜User｜> for that format. kInvalidArgument: a
  // template that does not compile, or a malformed file.
  static Result<ChatTemplate> load(const TextAssets& assets, const Tokenizer& tokenizer);

  // kInvalidArgument: an unknown role, malformed JSON, or what the template itself refuses (its message is
  // passed on).
  // In user, system, tool and developer messages, tools and tool calls, every added token of the tokenizer is
  // plain text. An assistant message may hold <think> and </think>, since templates cut reasoning off at
  // them.
  // `check` is asked while the prompt's tokens are made (tokenizer.h).
  Result<RenderedPrompt> render(const std::vector<ChatMessage>& messages, const ChatTemplateOptions& options,
                                const EncodeCheck& check = {}) const;

  // Renders a few plain conversations. Some mistakes, an unknown filter for one, show only then, and a start
  // is a better time for them than every request. kInvalidArgument when the simplest one fails or renders
  // nothing, or when any names something unknown.
  Status check() const;
  // Whether the folder has no template, so that DeepSeek's published format stands in.
  bool is_published_format() const;

  // Whether the model answers with <think>...</think>, by its template and its added tokens.
  bool has_reasoning() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace fathom
