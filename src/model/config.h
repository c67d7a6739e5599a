// What a checkpoint's config.json says, checked and completed, and what follows from it by arithmetic.
// Field names are those of config.json, which are DeepSeek's own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/model_source.h"

namespace fathom {

enum class Architecture : uint8_t { kDeepseekV2, kDeepseekV3 };
std::string_view architecture_name(Architecture architecture);  // "DeepseekV3ForCausalLM"

enum class ScoringFunc : uint8_t { kSoftmax, kSigmoid };
enum class TopkMethod : uint8_t {
  kGreedy,              // V2-Lite: top-k of all experts
  kGroupLimitedGreedy,  // V2: a group's score is its best expert's
  kNoauxTc,             // V3: with correction bias; a group's score is the sum of its two best
};
std::string_view scoring_func_name(ScoringFunc func);
std::string_view topk_method_name(TopkMethod method);

struct YarnScaling {
  double factor = 1;
  double original_max_position_embeddings = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;
  bool truncate = true;                    // the correction range is rounded outwards to whole dimensions
  std::optional<double> attention_factor;  // replaces mscale / mscale_all_dim on cos and sin
};

enum class QuantMethod : uint8_t {
  kNone,
  kFp8Blocks,  // e4m3 in 128 × 128 blocks with weight_scale_inv, activations scaled dynamically
  kFathom,     // written by `fathom model convert` (docs/weight-formats.md)
};

struct ModelConfig {
  Architecture architecture = Architecture::kDeepseekV3;
  std::string model_type;
  DType dtype = DType::kBf16;  // torch_dtype or dtype: F32, BF16 or F16

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t intermediate_size = 0;  // of dense layers

  int64_t q_lora_rank = 0;  // 0: none, one q_proj
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;

  int64_t n_routed_experts = 0;  // 0: every layer is dense
  int64_t n_shared_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  TopkMethod topk_method = TopkMethod::kNoauxTc;
  ScoringFunc scoring_func = ScoringFunc::kSigmoid;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1;
  int64_t first_k_dense_replace = 0;
  int64_t moe_layer_freq = 1;

  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<YarnScaling> yarn;  // absent: plain RoPE
  int64_t max_position_embeddings = 0;
  bool tie_word_embeddings = false;
  int64_t num_nextn_predict_layers = 0;  // MTP modules announced; their weights may be absent

  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;  // generation_config.json's if it has any, else config.json's

  QuantMethod quant_method = QuantMethod::kNone;
  bool scale_fmt_ue8m0 = false;  // V3.1: FP8 activation scales are rounded up to powers of two
  std::string fathom_weights;    // kFathom: "fp8", "int8", "int4", …: what was written
  bool fathom_panels = false;    // kFathom: packed as the kernels read it, not row by row

  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int64_t kv_row_dim() const {
    return kv_lora_rank + qk_rope_head_dim;
  }  // latent and rope, per token and layer
  int64_t shared_intermediate_size() const { return n_shared_experts * moe_intermediate_size; }
  bool is_moe_layer(int64_t layer) const {
    return n_routed_experts > 0 && layer >= first_k_dense_replace && layer % moe_layer_freq == 0;
  }
  int64_t num_moe_layers() const;
  // V3 multiplies by routed_scaling_factor whether it normalised or not; V2 does one or the other.
  bool scales_routed_weights() const { return architecture == Architecture::kDeepseekV3 || !norm_topk_prob; }

  // The q_a and kv_a norms keep this eps whatever rms_norm_eps says, as in DeepSeek's published modelling
  // code.
  static constexpr double kLatentNormEps = 1e-6;
};

// Reads config.json, and generation_config.json when there is one. Errors are one line: file, key, reason.
Result<ModelConfig> load_model_config(const ModelSource& source);
// The same from the texts; `generation_text` may be empty for none. `label` begins every message.
Result<ModelConfig> parse_model_config(std::string_view label, std::string_view config_text,
                                       std::string_view generation_text = {});

// Multiplies q·k before the softmax: qk_head_dim^-0.5, times YaRN's m² when mscale_all_dim is non-zero
// (Hugging Face's convention: at every context length).
double attention_softmax_scale(const ModelConfig& config);
// Angle per position of each rotated pair, qk_rope_head_dim / 2 of them; with YaRN's ramp where configured.
std::vector<double> rope_inv_freq(const ModelConfig& config);
// Multiplies cos and sin; 1 for every published model.
double rope_attention_factor(const ModelConfig& config);

// KV bytes per token over all layers (MTP not counted), stored as F32 or BF16.
int64_t kv_bytes_per_token(const ModelConfig& config, DType kv_dtype);

// Parameters by kind, over the whole model without MTP. Norm gains and gate biases count where they sit.
struct ParameterCounts {
  int64_t embedding = 0;
  int64_t head = 0;  // 0 when tied
  int64_t attention = 0;
  int64_t dense_mlp = 0;
  int64_t routed_experts = 0;
  int64_t shared_experts = 0;
  int64_t gate = 0;
  int64_t norms = 0;
  int64_t total = 0;
  int64_t active = 0;  // touched for one token: total with num_experts_per_tok of the routed experts
  int64_t mtp = 0;     // announced MTP modules without their shared embedding and head; not in total
};
ParameterCounts count_parameters(const ModelConfig& config);

}  // namespace fathom
