// The hand-over inside one process: both legs of a sequence side by side, messages delivered at once, and
// nothing copied, since both engines read the same memory: decode's references are taken before prefill's go.
#pragma once

#include <cstdint>

#include "engine/decode_engine.h"
#include "engine/handover.h"
#include "engine/prefill_engine.h"
#include "engine/sequence.h"

namespace fathom {

// Owned by the engine's thread.
class HandoverLink {
 public:
  HandoverLink(PrefillEngine& prefill, DecodeEngine& decode) : prefill_(prefill), decode_(decode) {}

  // The sequence's KV is computed: offers it. It stays in kHandover, on prefill's books, until accepted.
  void offer(Sequence& sequence, TimePoint lease_end);
  // Puts the offer before the decode engine; true when the sequence is in kDecode now.
  bool try_accept(Sequence& sequence);
  // The lease has run out: prefill gives up; the sequence holds nothing afterwards.
  void expire(Sequence& sequence);
  // The request ends, or is retracted, wherever it stands in kHandover or kDecode; it holds nothing
  // afterwards.
  void abort(Sequence& sequence);
  // The last token is out.
  void decode_ended(Sequence& sequence);

 private:
  void apply_prefill(Sequence& sequence, HandoverAction actions);
  void apply_decode(Sequence& sequence, HandoverAction actions);

  PrefillEngine& prefill_;
  DecodeEngine& decode_;
  uint32_t last_epoch_ = 0;
};

}  // namespace fathom
