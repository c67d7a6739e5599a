// The steps of MLA that are not plain linear layers, cut into tiles; one dependency level each.
#pragma once

#include "model/mla.h"

namespace fathom {

// a.c_q_normed = quantised RMSNorm(c_q); the KV row of each token = [RMSNorm(c_kv) | RoPE(k_rope)].
void norm_query_and_store_kv_level(const MlaContext& c, const AttentionWeights& w);
// Rotates q's rope part and computes q_latent = W_UKᵀ q_nope, per head.
void absorb_query_level(const MlaContext& c, const AttentionWeights& w);
// o_latent = softmax(q_latent · c + q_rope · k_rope) · c over the stored latent.
void attend_absorbed_level(const MlaContext& c);
// o = W_UV o_latent, per head.
void expand_output_level(const MlaContext& c, const AttentionWeights& w);
// Per (sequence, head): keys and values expanded from the latent, then attention of the sequence's new
// tokens.
void attend_per_head_level(const MlaContext& c, const AttentionWeights& w);

}  // namespace fathom
