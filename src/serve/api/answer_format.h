// The shapes of the two endpoints' answers. A format turns choices into bytes and knows nothing of engines.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "text/tokenizer.h"

namespace fathom::serve {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t hit_tokens = 0;  // hit + miss = prompt
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
};

// Fields common to every chunk of an answer.
struct AnswerHead {
  std::string id;
  int64_t created = 0;
  std::string model;
  std::string system_fingerprint;
};

struct AnswerToken {
  // Which of a chat answer's two texts the token belongs to; tags, end tokens and the line breaks after a tag
  // are part of neither.
  enum class Part : uint8_t { kContent, kReasoning, kNone };

  TokenEvent event;
  int64_t text_offset = 0;  // characters of the answer's text before it
  Part part = Part::kContent;
};

// A choice's answer, or the part of it that is not sent yet.
struct AnswerPart {
  std::string reasoning;
  std::string content;
  std::vector<AnswerToken> tokens;
};

struct ChoiceAnswer {
  int index = 0;
  int prompt = 0;             // which prompt it answers
  AnswerPart part;            // streaming: unsent; else everything
  bool started = false;       // streaming: its first chunk was sent
  std::string finish_reason;  // set when the choice is complete
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
};

// Takes the reasoning, with the tokens before the first one of the content, out of a choice that holds
// content too; nullopt when it does not hold both. DeepSeek's clients read one or the other of a chunk, so
// none may carry both.
std::optional<ChoiceAnswer> take_reasoning(ChoiceAnswer& choice);

// What is counted for each value of an answer while it is held, with its share of the text: a token, and each
// log-probability with the token it belongs to.
inline constexpr int64_t kAnswerBytesPerValue = 128;

class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  virtual const char* id_prefix() const = 0;
  // One SSE payload for what is new in `choice`; `prompt_ids` is not null when they are asked for and due.
  virtual std::string chunk(const AnswerHead& head, const ChoiceAnswer& choice,
                            const std::vector<int32_t>* prompt_ids) const = 0;
  // The payload that closes a stream with include_usage.
  virtual std::string usage_chunk(const AnswerHead& head, const Usage& usage) const = 0;
  // The whole answer.
  virtual std::string body(const AnswerHead& head, const std::vector<const ChoiceAnswer*>& choices,
                           const std::vector<std::vector<int32_t>>& prompts, const Usage& usage) const = 0;
};

struct AnswerFormatOptions {
  bool logprobs = false;
  bool return_token_ids = false;
  bool include_usage = false;  // chunks carry "usage": null
  bool reasoning = false;      // the answer has a reasoning_content field
};

std::unique_ptr<AnswerFormat> make_chat_format(const Tokenizer& tokenizer,
                                               const AnswerFormatOptions& options);
std::unique_ptr<AnswerFormat> make_completion_format(const Tokenizer& tokenizer,
                                                     const AnswerFormatOptions& options);

}  // namespace fathom::serve
