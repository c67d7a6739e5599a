// Multi-head latent attention (DeepSeek-V2 report §2.1, V3 report §2.1.1), in the report's names and in two
// forms of the same function: absorbed (queries meet the stored latent itself; decode) and per head (keys and
// values are expanded from the latent; prefill). Both read keys and values from the KV storage only, also
// those of the tokens being computed (per head perhaps as an earlier step expanded them: expanded_prompt.h),
// so that a result cannot depend on how a prompt was cut.
#pragma once

#include "model/activations.h"
#include "model/ops.h"
#include "model/token_batch.h"
#include "model/weights.h"

namespace fathom {

class ExpandedPrompt;

enum class AttentionForm : uint8_t { kPerHead, kAbsorbed };

// Dimensions and constants of a model's attention.
struct MlaShape {
  explicit MlaShape(const ModelConfig& config);

  int64_t heads, nope, rope, v, latent;
  float softmax_scale;
  float norm_eps;         // of the layer's input norm
  float latent_norm_eps;  // of the q_a and kv_a norms

  int64_t qk() const { return nope + rope; }
};

struct MlaContext {
  const MlaShape& shape;
  Stream& stream;
  ForwardActivations& a;
  const TokenBatch& batch;  // in the layer that is computed
  AttentionForm form;
  int layer;
  ExpandedPrompt& expanded;  // for the per-head form
};

// ATTN-0: norm, down and up projections; stores the tokens' latent and rotated key.
void mla_project(const MlaContext& c, const AttentionWeights& w, const float* input_norm);
// ATTN-1 without the gate, in two parts: the heads' attention into a.o, its output projection into a.u.
void mla_core(const MlaContext& c, const AttentionWeights& w);
void mla_output(const MlaContext& c, const AttentionWeights& w);

// Scratch of the largest tile; max_context: tokens of one sequence.
int64_t mla_scratch_bytes(const MlaShape& shape, DType kv_dtype, AttentionForm form, int64_t max_context);

// cos_sin[2i], cos_sin[2i + 1] = (cos, sin) of position · inv_freq[i], times the attention factor.
void fill_cos_sin(std::span<const double> inv_freq, double attention_factor, int64_t position,
                  float* cos_sin);

}  // namespace fathom
