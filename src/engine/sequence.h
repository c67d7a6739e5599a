// One request inside the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/handover.h"
#include "engine/plan.h"
#include "engine/request.h"
#include "kv/cache.h"
#include "model/sampler.h"

namespace fathom {

// Between steps: tokens [0, num_stored) have their KV in `blocks`. In kDecode all tokens but the last do.
// Only the engine's thread touches it.
struct Sequence {
  Sequence(RequestId request_id, GenerationRequest r, std::shared_ptr<GenerationListener> l, KeyChain chain)
      : id(request_id),
        listener(std::move(l)),
        tokens(std::move(r.prompt)),
        num_prompt(static_cast<int32_t>(tokens.size())),
        sampler(std::move(r.sampling), r.choice, tokens),
        keys(std::move(chain)),
        max_new_tokens(r.max_new_tokens),
        stop_token_ids(std::move(r.stop_token_ids)),
        ignore_eos(r.ignore_eos),
        deadline(r.deadline) {
    keys.extend(tokens);
  }

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_generated() const { return num_tokens() - num_prompt; }
  int32_t num_blocks() const { return static_cast<int32_t>(blocks.size()); }

  const RequestId id;
  const std::shared_ptr<GenerationListener> listener;
  std::vector<int32_t> tokens;  // prompt, then what was generated
  const int32_t num_prompt;
  Sampler sampler;
  KeyChain keys;
  const int32_t max_new_tokens;
  const std::vector<int32_t> stop_token_ids;
  const bool ignore_eos;
  const std::optional<TimePoint> deadline;

  SequenceStage stage = SequenceStage::kQueued;
  bool waits = false;  // see PlanSequence
  int32_t rank = 0;    // of the engine it is in
  int32_t num_stored = 0;
  uint64_t pass = 0;            // SequenceChunk::pass of its prefill
  std::vector<BlockId> blocks;  // in the books of its rank

  // The hand-over to decode; while it is under way decode's side holds the same blocks in its own books.
  PrefillLeg prefill_leg;
  DecodeLeg decode_leg;
  int32_t decode_rank = 0;
  std::vector<BlockId> decode_blocks;
  TimePoint lease_end;

  // Prompt tokens found in the cache or computed so far, at most once each whatever is replayed later.
  int32_t hit_tokens = 0;
  int32_t accounted_tokens = 0;
  bool started = false;   // left the queue once
  bool reported = false;  // hit and miss tokens are in the engine's counters
  TimePoint submitted;
  TimePoint last_moved;  // submitted, or the last step that computed something for it
  TimePoint last_token;
};

}  // namespace fathom
