// What every handler of the API may use. One per process; members outlive all requests.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/clock.h"
#include "engine/engine.h"
#include "serve/api/admission.h"
#include "serve/api/http_server.h"
#include "serve/api/metrics.h"
#include "serve/api/open_generations.h"
#include "serve/api/request.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace fathom::serve {

// From ServeOptions, which has the defaults.
struct ApiOptions {
  std::string served_model_name;
  int64_t created_unix_s = 0;                       // of the served model, as /v1/models shows it: the start
  std::string system_fingerprint;                   // the model fingerprint's first digits
  std::chrono::milliseconds keep_alive_interval{};  // `: keep-alive` on streams that are silent
  // An engine that has shown no progress for so long is stalled: requests end with an error, and /health and
  // /ready answer 503.
  std::chrono::milliseconds stall_max{};
  std::chrono::milliseconds request_timeout_max{};  // submission to last token
  std::chrono::milliseconds queue_wait_max{};       // arrival until the text is tokenized
  // Above this many unsent bytes a stream's deltas are merged instead of sent one by one.
  size_t coalesce_bytes = 64 << 10;
};

struct ApiContext {
  const ApiOptions options;
  const RequestLimits limits;
  const ApiKeys keys;
  const std::vector<int32_t> eos_token_ids;
  const Tokenizer& tokenizer;
  const ChatTemplate& chat_template;
  Engine& engine;
  const Clock& clock;
  Admission& admission;
  ApiMetrics& metrics;
  std::atomic<bool> ready{false};    // warmed up and not draining
  std::atomic<uint64_t> next_id{0};  // of responses; starts at a random number
  HttpServer* http = nullptr;        // set before the first request
  OpenGenerations open_generations{};
};

}  // namespace fathom::serve
