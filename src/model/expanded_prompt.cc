// Whose keys are kept, and where they lie.
#include "model/expanded_prompt.h"

#include <algorithm>

namespace fathom {
namespace {

int64_t capacity_tokens(int64_t token_bytes, int64_t max_context, int64_t bytes) {
  const int64_t tokens = std::min(bytes / token_bytes, round_up(max_context, kAttentionTile));
  return tokens / kAttentionTile * kAttentionTile;
}

}  // namespace

ExpandedPrompt::ExpandedPrompt(const MlaShape& shape, int64_t num_layers, DType kv_dtype, int64_t max_context,
                               int64_t bytes)
    : heads_(shape.heads),
      k_bytes_(dtype_bytes(kv_dtype, shape.nope)),
      v_bytes_(dtype_bytes(kv_dtype, shape.v)),
      capacity_(capacity_tokens(num_layers * heads_ * (k_bytes_ + v_bytes_), max_context, bytes)),
      memory_(static_cast<size_t>(num_layers * heads_ * (k_bytes_ + v_bytes_) * capacity_)) {}

// The prompt that is kept stays while it is in every step; else an unfinished one takes its place.
void ExpandedPrompt::begin_step(const TokenBatch& batch) {
  step_pass_ = 0;
  step_end_ = 0;
  for (const TokenSequence& sequence : batch.sequences()) {
    const bool unfinished = sequence.pass != 0 && !sequence.ends_prompt;
    const bool is_kept = sequence.pass != 0 && sequence.pass == pass_;
    if (!is_kept && (!unfinished || step_pass_ != 0)) continue;
    step_pass_ = sequence.pass;
    step_end_ = sequence.ends_prompt ? 0 : sequence.context();  // nothing is kept of a last step
    // Tokens that others have computed meanwhile are expanded here like new ones.
    if (is_kept && sequence.start < num_covered_) num_covered_ = 0;
    if (is_kept) break;
  }
  if (step_pass_ != pass_) num_covered_ = 0;
  pass_ = step_pass_;
}

void ExpandedPrompt::end_step() { num_covered_ = step_end_; }

ExpandedPrompt::HeadPart ExpandedPrompt::part(const TokenSequence& sequence, int64_t layer, int64_t head) {
  if (capacity_ == 0 || sequence.pass == 0 || sequence.pass != step_pass_) return {};
  std::byte* const k = memory_.data() + (layer * heads_ + head) * (k_bytes_ + v_bytes_) * capacity_;
  return {.k = k,
          .v = k + k_bytes_ * capacity_,
          .num_kept = std::min(num_covered_, capacity_) / kAttentionTile * kAttentionTile,
          .capacity = sequence.ends_prompt ? 0 : capacity_};
}

}  // namespace fathom
