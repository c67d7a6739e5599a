// Mirrors the constructors of ForwardActivations, ExpertBuffers and Flight; a test holds it against them.
#include "engine/memory_estimate.h"

#include <algorithm>

#include "engine/model_parts.h"
#include "kernels/attention.h"
#include "model/mla_ops.h"

namespace fathom {
namespace {

constexpr int64_t kFloat = sizeof(float);

// Floats of one token in ForwardActivations.
int64_t floats_per_token(const ModelConfig& c) {
  const int64_t heads = c.num_attention_heads;
  const int64_t attention = c.qk_rope_head_dim + 2 * c.q_lora_rank + heads * c.qk_head_dim() +
                            c.kv_row_dim() + 2 * heads * c.kv_lora_rank + 2 * heads * c.v_head_dim;
  const int64_t ffn = std::max(c.intermediate_size, c.shared_intermediate_size()) + c.n_routed_experts +
                      3 * c.num_experts_per_tok;
  constexpr int64_t kHiddenRows = 7;  // x, h, u, ffn_in and its quantised and dispatched forms, ffn_out
  return kHiddenRows * c.hidden_size + attention + ffn;
}

// Floats of a row that an expert may receive: as sent, as read, its middle, its result; and where it came
// from.
int64_t floats_per_expert_row(const ModelConfig& c) {
  constexpr int64_t kIndexFloats = 6;
  return 3 * c.hidden_size + c.moe_intermediate_size + kIndexFloats;
}

int64_t group_bytes(const ModelConfig& c, int64_t ranks, int64_t tokens, int64_t slots) {
  const int64_t slots_per_rank = (slots + ranks - 1) / ranks;
  const int64_t received = ranks * tokens * std::min(c.num_experts_per_tok, slots_per_rank);
  const int64_t returned = ranks * tokens * c.hidden_size;
  return ranks * kFloat * (tokens * floats_per_token(c) + received * floats_per_expert_row(c) + returned);
}

}  // namespace

int64_t activation_bytes(const ModelConfig& c, const EngineOptions& options) {
  const int64_t slots = c.n_routed_experts + options.redundant_experts;
  const int64_t groups = group_bytes(c, options.prefill_ep, options.prefill_tokens_per_rank(), slots) +
                         group_bytes(c, options.decode_ep, options.decode_slots_per_rank(), slots);
  // Each rank has a thread at least.
  const int64_t threads =
      std::max(options.threads, options.prefill_ep) + std::max(options.threads, options.decode_ep);
  const MlaShape shape(c);
  const int64_t scratch =
      std::max(mla_scratch_bytes(shape, DType::kF32, AttentionForm::kPerHead, options.max_context),
               mla_scratch_bytes(shape, DType::kF32, AttentionForm::kAbsorbed, options.max_context));
  const int64_t logits = 2 * options.max_running * (c.vocab_size + 2 * c.hidden_size) * kFloat;
  const int64_t heads = c.num_hidden_layers * c.num_attention_heads;
  const int64_t prompts = options.prefill_ep * heads * (c.qk_nope_head_dim + c.v_head_dim) *
                          round_up(options.max_context, kAttentionTile) * kFloat;
  return groups + threads * scratch + logits +
         std::min(prompts, expanded_bytes(options.kv_memory_bytes, INT64_MAX));
}

}  // namespace fathom
