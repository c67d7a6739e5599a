// What one forward step computes: new tokens of some sequences, on some ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/storage.h"

namespace fathom {

enum class Phase : uint8_t { kPrefill, kDecode };

// One sequence's share of a step.
struct SequenceChunk {
  std::span<const int32_t> tokens;  // new tokens, at least one; the step writes their KV rows
  int32_t start = 0;                // tokens whose KV is already stored: the new ones are start, start + 1, …
  std::span<const BlockId> blocks;  // cover at least start + tokens.size() tokens
  bool want_logits = false;         // logits after the last new token: the prompt ends here
  // Names the computing of a prompt in several steps, between which nobody else writes its KV rows: no other
  // prompt's, nor this one's if it begins anew. A block may be exchanged for one with the same tokens' rows,
  // as another computed them. 0: none.
  uint64_t pass = 0;
};

// One rank's share of a step. May be empty: idle ranks step too.
struct RankBatch {
  std::vector<SequenceChunk> chunks;

  int64_t num_tokens() const {
    int64_t tokens = 0;
    for (const SequenceChunk& chunk : chunks) tokens += static_cast<int64_t>(chunk.tokens.size());
    return tokens;
  }
  int64_t num_logit_rows() const {
    int64_t rows = 0;
    for (const SequenceChunk& chunk : chunks) rows += chunk.want_logits ? 1 : 0;
    return rows;
  }
};

}  // namespace fathom
