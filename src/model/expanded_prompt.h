// Keys and values of a prompt that is prefilled in several steps. In the per-head form every step needs them
// for all earlier tokens, and expanding them from the latent again each time would cost up to half as much as
// attending to them. A rank keeps those of one prompt, its first tokens if there is no room for all.
#pragma once

#include <cstdint>

#include "model/mla.h"
#include "tensor/arena.h"

namespace fathom {

class ExpandedPrompt {
 public:
  // At most `bytes`, for tokens up to max_context; no room for a block of tokens: nothing is ever kept.
  ExpandedPrompt(const MlaShape& shape, int64_t num_layers, DType kv_dtype, int64_t max_context,
                 int64_t bytes);

  // What a layer's head finds and leaves for one sequence of a step.
  struct HeadPart {
    std::byte* k = nullptr;  // [capacity, nope]
    std::byte* v = nullptr;  // [capacity, v]
    int64_t num_kept = 0;    // tokens that are there, a multiple of kAttentionTile
    int64_t capacity = 0;    // tokens that are to be kept
  };

  // Before a step: which of its sequences, if any, is the prompt that is kept.
  void begin_step(const TokenBatch& batch);
  // Before a step that keeps nothing.
  void forget() { pass_ = step_pass_ = 0; }
  // The step has been computed for all layers. Not called for a step that failed or was stopped.
  void end_step();

  HeadPart part(const TokenSequence& sequence, int64_t layer, int64_t head);

 private:
  const int64_t heads_, k_bytes_, v_bytes_;  // of a token
  const int64_t capacity_;                   // tokens
  AlignedBuffer memory_;                     // [layers][heads][k of all tokens, v of all tokens]

  uint64_t pass_ = 0;        // whose tokens are kept; 0: nobody's
  int64_t num_covered_ = 0;  // its tokens that have been computed, kept or not
  // Of the step in progress.
  uint64_t step_pass_ = 0;
  int64_t step_end_ = 0;
};

}  // namespace fathom
