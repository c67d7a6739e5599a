// The one path from sampled tokens to what a client sees, one per choice:
//   ids -> bytes -> whole UTF-8 characters -> stop strings -> reasoning and content -> events
// It does no I/O and knows no clock. How the same tokens are spread over calls changes nothing in the
// concatenation of the events.
//
// Stop strings are looked for in all the model writes, its reasoning and the tags included, as other servers
// do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/detokenizer.h"
#include "text/reasoning_parser.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace fathom {

struct OutputOptions {
  std::vector<std::string> stop;     // stop strings, none of them empty
  bool parse_reasoning = false;      // off: <think> is text like any other
  bool starts_in_reasoning = false;  // RenderedPrompt::starts_in_reasoning; with parse_reasoning only
  bool skip_special_tokens = true;   // tokens marked special add no text
};

// One sampled token, in order; index n is the n-th push. Log-probabilities are looked up by it.
struct OutputToken {
  int64_t index = 0;
  int32_t id = 0;
  // Characters (code points) of the whole output text before this token's first one; the text is what the
  // tokens spell, tags and stop strings included.
  int64_t text_offset = 0;
  bool is_reasoning = false;
};

struct OutputEvent {
  enum class Kind { kReasoning, kContent, kFinish };
  Kind kind = Kind::kContent;
  std::string text;                 // never empty for the two text kinds, empty for kFinish
  std::string finish_reason;        // kFinish: "stop" after a stop string, else what finish() was given
  std::vector<OutputToken> tokens;  // the tokens pushed since the last event
};

class OutputPipeline {
 public:
  OutputPipeline(Tokenizer tokenizer, OutputOptions options);

  // One sampled token. kFinish comes last, if a stop string is complete; later calls return nothing.
  std::vector<OutputEvent> push(int32_t id);
  // The same for a token that only ends the text (EOS, a stop token id): it counts but adds no text.
  std::vector<OutputEvent> push_silent(int32_t id);
  // No token follows. Gives out everything held back, then kFinish; nothing if that has been given already.
  std::vector<OutputEvent> finish(std::string_view reason);

  bool finished() const { return finished_; }
  // Tokens pushed before the finish, the one that completed a stop string included.
  int64_t num_completion_tokens() const { return num_tokens_; }
  // Of these, the ones that began or ended inside reasoning, the tags included.
  int64_t num_reasoning_tokens() const { return num_reasoning_tokens_; }

 private:
  std::vector<OutputEvent> push_token(int32_t id, bool is_silent);
  // Sends decoded text through the stop strings; what they let pass is split; nothing follows, so nothing is
  // held.
  void decode(std::string_view text);
  void split(std::string_view text);
  void flush_reasoning();
  std::vector<OutputEvent> take_events();
  void add_finish(std::vector<OutputEvent>& events, std::string_view reason);

  OutputOptions options_;
  Detokenizer detokenizer_;
  StopMatcher stop_matcher_;
  ReasoningParser reasoning_parser_;
  // Sees the text before stop strings hold any back: tells where each token stands, and nothing else.
  ReasoningParser position_;

  std::string new_reasoning_;  // decided, not given out yet
  std::string new_content_;
  std::vector<OutputToken> new_tokens_;
  int64_t num_tokens_ = 0;
  int64_t num_reasoning_tokens_ = 0;
  int64_t num_characters_ = 0;  // decoded so far
  bool finished_ = false;
};

}  // namespace fathom
