// A client of the chat API, for `fathom chat`: one streamed request at a time. libcurl and JSON end in the
// .cc file.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom::serve {

struct ChatTurn {
  std::string role;
  std::string content;
};

struct ChatDelta {
  std::string reasoning;
  std::string content;
};

struct ChatOutcome {
  std::string content;  // the whole answer, without reasoning
  std::string finish_reason;
  int64_t prompt_tokens = 0;
  int64_t hit_tokens = 0;
  int64_t completion_tokens = 0;
  bool interrupted = false;
};

// Only http:// and https:// go to a server of this API; curl knows many more.
Status validate_chat_url(std::string_view url);

class ChatClient {
 public:
  // `url` is the server's root, e.g. "http://127.0.0.1:8000", or its API's ("…:8000/v1/"), as other clients
  // take it; `api_key` may be empty.
  ChatClient(std::string url, std::string api_key);

  // The served model's name. kUnavailable when nothing answers within `timeout_s`, kNotFound when what
  // answers has no list of models, kInvalidArgument with its words when it refuses.
  Result<std::string> model_name(double timeout_s) const;

  struct Options {
    double temperature = 0;
    int64_t max_tokens = 0;  // 0: what the context leaves
  };
  // Streams one answer. `on_delta` runs on the calling thread; `interrupt` may be set by a signal handler and
  // ends the request. Errors carry the server's own message, kResourceExhausted where the messages are longer
  // than the model's context; an answer that breaks off or is none is one too.
  Result<ChatOutcome> chat(const std::vector<ChatTurn>& messages, const Options& options,
                           const std::function<void(const ChatDelta&)>& on_delta,
                           const std::atomic<bool>& interrupt) const;

 private:
  const std::string url_;
  const std::string api_key_;
};

}  // namespace fathom::serve
