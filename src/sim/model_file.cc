// A model's shape by name or from its config.json.
#include "sim/model_file.h"

#include "model/config.h"

namespace fathom::sim {

Result<ModelShape> known_model_shape(const std::string& name) {
  if (name == "deepseek-v3") return ModelShape{};
  if (name == "deepseek-v2-lite") {
    ModelShape m;
    m.hidden = 2048;
    m.heads = 16;
    m.q_lora_rank = 0;
    m.experts = 64;
    m.experts_per_token = 6;
    m.shared_experts = 2;
    m.moe_intermediate = 1408;
    m.dense_intermediate = 10944;
    m.vocab = 102400;
    m.layers = 27;
    m.dense_layers = 1;
    m.mtp_layers = 0;
    return m;
  }
  return invalid_argument("--model: \"{}\" is neither deepseek-v3, deepseek-v2-lite nor a config.json", name);
}

Result<ModelShape> model_shape_from_config(const std::string& file, std::string_view config_json) {
  ASSIGN_OR_RETURN(const ModelConfig config, parse_model_config(file, config_json, ""));
  ModelShape m;
  m.hidden = static_cast<double>(config.hidden_size);
  m.heads = static_cast<double>(config.num_attention_heads);
  m.q_lora_rank = static_cast<double>(config.q_lora_rank);
  m.kv_lora_rank = static_cast<double>(config.kv_lora_rank);
  m.qk_nope_head_dim = static_cast<double>(config.qk_nope_head_dim);
  m.qk_rope_head_dim = static_cast<double>(config.qk_rope_head_dim);
  m.v_head_dim = static_cast<double>(config.v_head_dim);
  m.experts = static_cast<double>(config.n_routed_experts);
  m.experts_per_token = static_cast<double>(config.num_experts_per_tok);
  m.shared_experts = static_cast<double>(config.n_shared_experts);
  m.moe_intermediate = static_cast<double>(config.moe_intermediate_size);
  m.dense_intermediate = static_cast<double>(config.intermediate_size);
  m.vocab = static_cast<double>(config.vocab_size);
  m.layers = static_cast<int>(config.num_hidden_layers);
  m.dense_layers = static_cast<int>(config.first_k_dense_replace);
  m.mtp_layers = static_cast<int>(config.num_nextn_predict_layers);
  if (m.experts < 1)
    return invalid_argument("{}: n_routed_experts: the cost model needs a mixture of experts", file);
  return m;
}

}  // namespace fathom::sim
