// Sizes of the forward pass's buffers.
#include "model/activations.h"

#include <algorithm>

namespace fathom {

ForwardActivations::ForwardActivations(const ModelConfig& c, const ActFormats& formats,
                                       const ForwardMaxima& maxima) {
  const int64_t tokens = maxima.tokens;
  const bool ue8m0 = c.scale_fmt_ue8m0;
  const int64_t heads = c.num_attention_heads;
  cos_sin = FloatRows(tokens, c.qk_rope_head_dim);
  x = FloatRows(tokens, c.hidden_size);

  h = QuantizedRows(formats.attention, tokens, c.hidden_size, ue8m0);
  if (c.q_lora_rank > 0) {
    c_q = FloatRows(tokens, c.q_lora_rank);
    c_q_normed = QuantizedRows(formats.attention, tokens, c.q_lora_rank, ue8m0);
  }
  q = FloatRows(tokens, heads * c.qk_head_dim());
  c_kv = FloatRows(tokens, c.kv_row_dim());
  if (maxima.absorbed) {
    q_latent = FloatRows(tokens, heads * c.kv_lora_rank);
    o_latent = FloatRows(tokens, heads * c.kv_lora_rank);
  }
  o = FloatRows(tokens, heads * c.v_head_dim);
  o_quantized = QuantizedRows(formats.attention, tokens, heads * c.v_head_dim, ue8m0);
  u = FloatRows(tokens, c.hidden_size);

  ffn_in = FloatRows(tokens, c.hidden_size);
  ffn_in_quantized = QuantizedRows(formats.ffn, tokens, c.hidden_size, ue8m0);
  if (formats.dispatch != formats.ffn)
    dispatch_rows = QuantizedRows(formats.dispatch, tokens, c.hidden_size, ue8m0);
  ffn_mid =
      QuantizedRows(formats.ffn, tokens, std::max(c.intermediate_size, c.shared_intermediate_size()), ue8m0);
  ffn_out = FloatRows(tokens, c.hidden_size);
  router_logits = FloatRows(tokens, c.n_routed_experts);
  experts.resize(tokens * c.num_experts_per_tok);
  slots.resize(tokens * c.num_experts_per_tok);
  gates.resize(tokens * c.num_experts_per_tok);
}

}  // namespace fathom
