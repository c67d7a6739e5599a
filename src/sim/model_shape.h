// The sizes of a DeepSeek-style model that the cost model needs. Defaults are DeepSeek-V3/R1 (config.json).
#pragma once

namespace fathom::sim {

struct ModelShape {
  double hidden = 7168;
  double heads = 128;
  double q_lora_rank = 1536;
  double kv_lora_rank = 512;
  double qk_nope_head_dim = 128;
  double qk_rope_head_dim = 64;
  double v_head_dim = 128;
  double experts = 256;
  double experts_per_token = 8;
  double shared_experts = 1;
  double moe_intermediate = 2048;
  double dense_intermediate = 18432;
  double vocab = 129280;
  int layers = 61;
  int dense_layers = 3;
  int mtp_layers = 1;

  double latent_dim() const { return kv_lora_rank + qk_rope_head_dim; }
  // BF16 latent of one token, all layers; the MTP module has its own layer of it.
  double kv_bytes_per_token(bool mtp = false) const {
    return latent_dim() * 2 * (layers + (mtp ? mtp_layers : 0));
  }
  double expert_params() const { return 3 * hidden * moe_intermediate; }
  double mla_params() const {
    const double q_dim = heads * (qk_nope_head_dim + qk_rope_head_dim);
    return hidden * (q_lora_rank + latent_dim()) + q_lora_rank * q_dim +
           kv_lora_rank * heads * (qk_nope_head_dim + v_head_dim) + heads * v_head_dim * hidden;
  }
};

// Bytes of weights on one rank that holds `slots_per_rank` routed experts of every MoE layer: linear layers
// in FP8, embedding and head in BF16 (head again for the MTP module's projections).
inline double weight_bytes_per_rank(const ModelShape& m, double slots_per_rank, bool mtp) {
  const double moe_layers = m.layers - m.dense_layers + (mtp ? m.mtp_layers : 0);
  const double layers = m.layers + (mtp ? m.mtp_layers : 0);
  const double experts = moe_layers * (slots_per_rank + m.shared_experts) * m.expert_params();
  const double dense = m.dense_layers * 3 * m.hidden * m.dense_intermediate;
  const double kv_b_bf16 = layers * m.kv_lora_rank * m.heads * (m.qk_nope_head_dim + m.v_head_dim);
  const double mtp_projection = mtp ? m.mtp_layers * 2 * m.hidden * m.hidden : 0;
  return experts + dense + layers * m.mla_params() + kv_b_bf16 + mtp_projection + 2 * 2 * m.vocab * m.hidden;
}

}  // namespace fathom::sim
