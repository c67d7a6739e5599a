// Multi-head latent attention, stage by stage: projections, KV rows, core, output.
#include "model/mla.h"

#include "model/mla_ops.h"

namespace fathom {

MlaShape::MlaShape(const ModelConfig& config)
    : heads(config.num_attention_heads),
      nope(config.qk_nope_head_dim),
      rope(config.qk_rope_head_dim),
      v(config.v_head_dim),
      latent(config.kv_lora_rank),
      softmax_scale(static_cast<float>(attention_softmax_scale(config))),
      norm_eps(static_cast<float>(config.rms_norm_eps)),
      latent_norm_eps(static_cast<float>(ModelConfig::kLatentNormEps)) {}

void mla_project(const MlaContext& c, const AttentionWeights& w, const float* input_norm) {
  ForwardActivations& a = c.a;
  const int64_t t = c.batch.num_rows();
  const Activations h = a.h.rows(t);
  norm_level(c.stream, a.x.rows(t), {input_norm, c.shape.norm_eps}, h);
  if (w.q_a_proj.n > 0) {
    linear_level(c.stream, {{h, &w.q_a_proj, a.c_q.rows(t)}, {h, &w.kv_a_proj_with_mqa, a.c_kv.rows(t)}});
    norm_query_and_store_kv_level(c, w);
    linear_level(c.stream, {{a.c_q_normed.rows(t), &w.q_b_proj, a.q.rows(t)}});
  } else {
    linear_level(c.stream, {{h, &w.q_proj, a.q.rows(t)}, {h, &w.kv_a_proj_with_mqa, a.c_kv.rows(t)}});
    norm_query_and_store_kv_level(c, w);
  }
}

void mla_core(const MlaContext& c, const AttentionWeights& w) {
  if (c.form == AttentionForm::kAbsorbed) {
    attend_absorbed_levels(c, w);
  } else {
    attend_per_head_level(c, w);
  }
}

void mla_output(const MlaContext& c, const AttentionWeights& w) {
  ForwardActivations& a = c.a;
  const int64_t t = c.batch.num_rows();
  const Activations o = a.o_quantized.rows(t);
  quantize_level(c.stream, a.o.rows(t), o);
  linear_level(c.stream, {{o, &w.o_proj, a.u.rows(t)}});
}

}  // namespace fathom
