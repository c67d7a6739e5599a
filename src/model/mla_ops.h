// The steps of MLA that are not plain linear layers, cut into tiles for the thread team.
#pragma once

#include "model/mla.h"

namespace fathom {

// a.c_q_normed = quantised RMSNorm(c_q); the KV row of each token = [RMSNorm(c_kv) | RoPE(k_rope)].
void norm_query_and_store_kv_level(const MlaContext& c, const AttentionWeights& w);
// Per head: rotates q's rope part and takes the rest into the latent's space, q_latent = W_UKᵀ q_nope;
// o_latent = softmax(q_latent · c + q_rope · k_rope) · c over the stored latent; o = W_UV o_latent. A level
// each, one for all three where there is one token.
void attend_absorbed_levels(const MlaContext& c, const AttentionWeights& w);
// Per (sequence, head): keys and values expanded from the latent, then attention of the sequence's new
// tokens.
void attend_per_head_level(const MlaContext& c, const AttentionWeights& w);

}  // namespace fathom
