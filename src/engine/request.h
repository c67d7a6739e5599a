// What an engine is asked and what it answers: plain values and one listener interface.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "model/sampler.h"

namespace fathom {

// Never reused within a process.
enum class RequestId : uint64_t {};

// Every sampled token is looked up among them.
inline constexpr int32_t kStopTokenIdsMax = 64;

struct GenerationRequest {
  std::vector<int32_t> prompt;  // >= 1 token, ids below the vocabulary's size
  SamplingParams sampling;
  int32_t max_new_tokens = 0;           // >= 1; lowered to what max_context leaves
  std::vector<int32_t> stop_token_ids;  // besides the model's end tokens; at most kStopTokenIdsMax
  bool ignore_eos = false;              // the model's end tokens do not stop; stop_token_ids still do
  std::string tenant;                   // part of every KV key: two tenants never share a block
  std::optional<TimePoint> deadline;    // answered by then, finished or not
  uint32_t choice = 0;                  // the n-th answer to one prompt; part of the sampling counter
};

enum class FinishReason : uint8_t {
  kStop,                   // an end token or one of stop_token_ids was sampled
  kLength,                 // max_new_tokens or max_context reached
  kCancelled,              // cancel()
  kDeadline,               // the request's own deadline
  kInsufficientResources,  // waited longer than queue_seconds_max, or the engine shut down first
  kError,                  // the model failed; `status` says how
};
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", ...

struct TokenEvent {
  int32_t token = 0;
  std::optional<TokenLogprobs> logprobs;
};

struct FinishInfo {
  FinishReason reason = FinishReason::kStop;
  Status status;                  // not ok for kDeadline, kInsufficientResources and kError
  int32_t prompt_tokens = 0;      // hit + miss, always
  int32_t hit_tokens = 0;         // prompt tokens whose KV came from the cache
  int32_t completion_tokens = 0;  // sampled tokens, the stop token included
};

// Called on the engine's thread, in the order below, and never after on_finished. Must return quickly and not
// call the engine.
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;
  // The request left the queue. `hit_tokens` may still grow while the prompt is computed (a neighbour with
  // the same prefix may finish a block first); FinishInfo has the final figure. Not called when a request
  // ends in the queue, and only once when it is retracted and resumed.
  virtual void on_prefill(int32_t hit_tokens) { static_cast<void>(hit_tokens); }
  virtual void on_tokens(std::span<const TokenEvent> tokens) = 0;  // >= 1
  virtual void on_finished(const FinishInfo& info) = 0;            // exactly once
};

}  // namespace fathom
