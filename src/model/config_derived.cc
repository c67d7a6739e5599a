// Numbers that follow from a config: softmax scale, RoPE frequencies, parameter counts, KV size.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/config.h"

namespace fathom {
namespace {

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// The dimension whose frequency turns `rotations` times over the original context (YaRN, appendix A).
double correction_dim(double rotations, double dim, double theta, double original_max) {
  return dim * std::log(original_max / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

int64_t mla_parameters(const ModelConfig& c) {
  const int64_t q_rows = c.num_attention_heads * c.qk_head_dim();
  const int64_t q =
      c.q_lora_rank == 0 ? q_rows * c.hidden_size : c.q_lora_rank * (c.hidden_size + 1 + q_rows);
  const int64_t kv_a = c.kv_row_dim() * c.hidden_size + c.kv_lora_rank;
  const int64_t kv_b = c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim) * c.kv_lora_rank;
  return q + kv_a + kv_b + c.hidden_size * c.num_attention_heads * c.v_head_dim;
}

int64_t swiglu_parameters(const ModelConfig& c, int64_t width) { return 3 * c.hidden_size * width; }

int64_t gate_parameters(const ModelConfig& c) {
  const int64_t bias = c.topk_method == TopkMethod::kNoauxTc ? c.n_routed_experts : 0;
  return c.n_routed_experts * c.hidden_size + bias;
}

}  // namespace

std::string_view architecture_name(Architecture architecture) {
  return architecture == Architecture::kDeepseekV2 ? "DeepseekV2ForCausalLM" : "DeepseekV3ForCausalLM";
}

std::string_view scoring_func_name(ScoringFunc func) {
  return func == ScoringFunc::kSoftmax ? "softmax" : "sigmoid";
}

std::string_view topk_method_name(TopkMethod method) {
  switch (method) {
    case TopkMethod::kGreedy:
      return "greedy";
    case TopkMethod::kGroupLimitedGreedy:
      return "group_limited_greedy";
    case TopkMethod::kNoauxTc:
      return "noaux_tc";
  }
  return "?";
}

int64_t ModelConfig::num_moe_layers() const {
  int64_t count = 0;
  for (int64_t layer = 0; layer < num_hidden_layers; ++layer) count += is_moe_layer(layer) ? 1 : 0;
  return count;
}

double attention_softmax_scale(const ModelConfig& config) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(config.qk_head_dim()));
  if (!config.yarn || config.yarn->mscale_all_dim == 0) return scale;
  const double m = yarn_mscale(config.yarn->factor, config.yarn->mscale_all_dim);
  return scale * m * m;
}

std::vector<double> rope_inv_freq(const ModelConfig& config) {
  const auto dim = static_cast<double>(config.qk_rope_head_dim);
  const auto pairs = static_cast<size_t>(config.qk_rope_head_dim / 2);
  std::vector<double> freqs(pairs);
  for (size_t i = 0; i < pairs; ++i)
    freqs[i] = std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / dim);
  if (!config.yarn) return freqs;

  const YarnScaling& yarn = *config.yarn;
  double low = correction_dim(yarn.beta_fast, dim, config.rope_theta, yarn.original_max_position_embeddings);
  double high = correction_dim(yarn.beta_slow, dim, config.rope_theta, yarn.original_max_position_embeddings);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;  // the published guard against a division by zero
  for (size_t i = 0; i < pairs; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    freqs[i] = freqs[i] * (1 - ramp) + freqs[i] / yarn.factor * ramp;
  }
  return freqs;
}

double rope_attention_factor(const ModelConfig& config) {
  if (!config.yarn) return 1;
  const YarnScaling& yarn = *config.yarn;
  if (yarn.attention_factor) return *yarn.attention_factor;
  return yarn_mscale(yarn.factor, yarn.mscale) / yarn_mscale(yarn.factor, yarn.mscale_all_dim);
}

int64_t kv_bytes_per_token(const ModelConfig& config, DType kv_dtype) {
  return dtype_bytes(kv_dtype, config.kv_row_dim() * config.num_hidden_layers);
}

ParameterCounts count_parameters(const ModelConfig& c) {
  const int64_t moe_layers = c.num_moe_layers();
  const int64_t dense_layers = c.num_hidden_layers - moe_layers;
  const int64_t expert = swiglu_parameters(c, c.moe_intermediate_size);
  ParameterCounts counts;
  counts.embedding = c.vocab_size * c.hidden_size;
  counts.head = c.tie_word_embeddings ? 0 : counts.embedding;
  counts.attention = c.num_hidden_layers * mla_parameters(c);
  counts.dense_mlp = dense_layers * swiglu_parameters(c, c.intermediate_size);
  counts.routed_experts = moe_layers * c.n_routed_experts * expert;
  counts.shared_experts = moe_layers * c.n_shared_experts * expert;
  counts.gate = moe_layers * gate_parameters(c);
  counts.norms = (2 * c.num_hidden_layers + 1) * c.hidden_size;
  counts.total = counts.embedding + counts.head + counts.attention + counts.dense_mlp +
                 counts.routed_experts + counts.shared_experts + counts.gate + counts.norms;
  counts.active = counts.total - moe_layers * (c.n_routed_experts - c.num_experts_per_tok) * expert;
  // enorm, hnorm, shared_head.norm and eh_proj around one whole layer.
  for (int64_t module = 0; module < c.num_nextn_predict_layers; ++module) {
    const bool moe = c.is_moe_layer(c.num_hidden_layers + module);
    counts.mtp += mla_parameters(c) + 5 * c.hidden_size + 2 * c.hidden_size * c.hidden_size;
    counts.mtp += moe ? (c.n_routed_experts + c.n_shared_experts) * expert + gate_parameters(c)
                      : swiglu_parameters(c, c.intermediate_size);
  }
  return counts;
}

}  // namespace fathom
