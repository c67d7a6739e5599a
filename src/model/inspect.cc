// Gathering, and the two ways to show it.
#include "model/inspect.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/printable.h"
#include "model/weights_plan.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<const char*, int64_t WeightBytes::*> kWeightKinds[] = {
    {"embedding", &WeightBytes::embedding},           {"head", &WeightBytes::head},
    {"attention", &WeightBytes::attention},           {"dense_mlp", &WeightBytes::dense_mlp},
    {"routed_experts", &WeightBytes::routed_experts}, {"shared_experts", &WeightBytes::shared_experts},
    {"gate_and_norms", &WeightBytes::gate_and_norms}, {"mtp", &WeightBytes::mtp},
};
constexpr std::pair<const char*, int64_t ParameterCounts::*> kParameterKinds[] = {
    {"embedding", &ParameterCounts::embedding},
    {"head", &ParameterCounts::head},
    {"attention", &ParameterCounts::attention},
    {"dense_mlp", &ParameterCounts::dense_mlp},
    {"routed_experts", &ParameterCounts::routed_experts},
    {"shared_experts", &ParameterCounts::shared_experts},
    {"gate", &ParameterCounts::gate},
    {"norms", &ParameterCounts::norms},
};

// "671.03 B", "8.12 M", "950": parameters.
std::string count_text(int64_t count) {
  const auto value = static_cast<double>(count);
  if (count >= 1'000'000'000) return fmt::format("{:.2f} B", value / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.2f} M", value / 1e6);
  if (count >= 1'000) return fmt::format("{:.1f} K", value / 1e3);
  return fmt::format("{}", count);
}

std::string quantization_text(const ModelConfig& c) {
  switch (c.quant_method) {
    case QuantMethod::kNone:
      return "none";
    case QuantMethod::kFp8Blocks:
      return c.scale_fmt_ue8m0 ? "fp8 (128x128 blocks, ue8m0 activation scales)" : "fp8 (128x128 blocks)";
    case QuantMethod::kFathom:
      return fmt::format("fathom {}{}", c.fathom_weights, c.fathom_panels ? ", packed in panels" : "");
  }
  return "?";
}

std::string line(std::string_view name, std::string_view value) {
  return fmt::format("{:<12} {}\n", name, value);
}

std::string architecture_text(const ModelConfig& c) {
  std::string out;
  const int64_t moe = c.num_moe_layers();
  out += line("layers",
              fmt::format("{}: {} dense, {} MoE", c.num_hidden_layers, c.num_hidden_layers - moe, moe));
  if (moe > 0) {
    out += line("experts",
                fmt::format("{} routed, top {}, in {} group(s) of which {}; {} shared; {} gate, {}, x{}",
                            c.n_routed_experts, c.num_experts_per_tok, c.n_group, c.topk_group,
                            c.n_shared_experts, topk_method_name(c.topk_method),
                            scoring_func_name(c.scoring_func), c.routed_scaling_factor));
  }
  out += line("attention",
              fmt::format("MLA, {} heads of {}+{}/{}, latent {}{}", c.num_attention_heads, c.qk_nope_head_dim,
                          c.qk_rope_head_dim, c.v_head_dim, c.kv_lora_rank,
                          c.q_lora_rank > 0 ? fmt::format(", query latent {}", c.q_lora_rank) : ""));
  out += line("positions", fmt::format("{}, RoPE theta {}{}", c.max_position_embeddings, c.rope_theta,
                                       c.yarn ? fmt::format(", YaRN x{} from {}", c.yarn->factor,
                                                            c.yarn->original_max_position_embeddings)
                                              : ""));
  out += line("vocabulary", fmt::format("{}, hidden {}", c.vocab_size, c.hidden_size));
  return out;
}

std::string weights_text(const ModelInspection::Weights& w) {
  std::string dtypes;
  for (const auto& [dtype, bytes] : w.dtype_bytes) {
    dtypes += fmt::format("{}{} {}", dtypes.empty() ? "" : ", ", dtype, bytes_text(bytes));
  }
  std::string out = line(
      "checkpoint", fmt::format("{} in {} file(s): {}", bytes_text(w.checkpoint_bytes), w.num_files, dtypes));
  for (const std::string format : {"native", "bf16", "fp8", "int8", "int4"}) {
    const auto found = w.loaded.find(format);
    if (found == w.loaded.end()) continue;
    const WeightBytes& bytes = found->second;
    out += line("in memory", fmt::format("{} as {}", bytes_text(bytes.total()), format));
    if (format != "native") continue;
    for (const auto& [name, member] : kWeightKinds) {
      if (bytes.*member > 0) out += fmt::format("  {:<16} {:>12}\n", name, bytes_text(bytes.*member));
    }
  }
  for (const std::string& warning : w.warnings) out += line("warning", warning);
  return out;
}

Json weights_json(const ModelInspection::Weights& w) {
  Json loaded;
  for (const auto& [format, bytes] : w.loaded) {
    Json kinds;
    for (const auto& [name, member] : kWeightKinds) kinds[name] = bytes.*member;
    kinds["total"] = bytes.total();
    loaded[format] = std::move(kinds);
  }
  return {{"files", w.num_files},         {"checkpoint_bytes", w.checkpoint_bytes},
          {"dtype_bytes", w.dtype_bytes}, {"mtp_modules", w.mtp_modules},
          {"memory_bytes", loaded},       {"warnings", w.warnings}};
}

Result<ModelInspection::Weights> inspect_weights(const ModelSource& source, ModelInspection& model) {
  ASSIGN_OR_RETURN(const SafeTensors tensors, SafeTensors::open(source));
  auto native = plan_weights(model.config, tensors, {});
  if (!native.ok()) return native.status().with_context(source.label());
  ModelInspection::Weights w;
  w.num_files = tensors.num_files();
  for (const TensorInfo& tensor : tensors.tensors()) {
    const auto bytes = static_cast<int64_t>(tensor.bytes.size());
    w.checkpoint_bytes += bytes;
    w.dtype_bytes[std::string(dtype_name(tensor.dtype))] += bytes;
  }
  w.mtp_modules = static_cast<int64_t>(native->weights->mtp.size());
  w.warnings = native->weights->warnings;
  w.loaded["native"] = native->weights->bytes;
  model.kv_dtype = native->weights->core_dtype;
  for (const WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kInt8, WeightFormat::kInt4}) {
    LoadOptions options;
    options.weights = format;
    const auto plan = plan_weights(model.config, tensors, options);
    if (plan.ok()) w.loaded[std::string(weight_format_name(format))] = plan->weights->bytes;
  }
  return w;
}

}  // namespace

Result<ModelInspection> inspect_model(const ModelSource& source) {
  ModelInspection model;
  model.label = source.label();
  ASSIGN_OR_RETURN(model.config, load_model_config(source));
  model.parameters = count_parameters(model.config);
  const bool f32 = model.config.dtype != DType::kBf16 && model.config.quant_method == QuantMethod::kNone;
  model.kv_dtype = f32 ? DType::kF32 : DType::kBf16;
  if (SafeTensors::present(source)) {
    ASSIGN_OR_RETURN(model.weights, inspect_weights(source, model));
  }
  model.kv_bytes_per_token = kv_bytes_per_token(model.config, model.kv_dtype);
  return model;
}

std::string inspection_text(const ModelInspection& model) {
  const ModelConfig& c = model.config;
  const ParameterCounts& p = model.parameters;
  std::string out = line("model", printable(model.label));
  out += line("architecture", fmt::format("{}, weights quantised: {}", architecture_name(c.architecture),
                                          quantization_text(c)));
  out += architecture_text(c);
  out += line("parameters",
              fmt::format("{} total, {} active per token{}", count_text(p.total), count_text(p.active),
                          p.mtp > 0 ? fmt::format("; {} more in {} MTP module(s)", count_text(p.mtp),
                                                  c.num_nextn_predict_layers)
                                    : ""));
  for (const auto& [name, member] : kParameterKinds) {
    if (p.*member > 0) out += fmt::format("  {:<16} {:>12}\n", name, count_text(p.*member));
  }
  out += line("KV cache", fmt::format("{} B per token ({}), {} for {} tokens", model.kv_bytes_per_token,
                                      dtype_name(model.kv_dtype),
                                      bytes_text(model.kv_bytes_per_token * c.max_position_embeddings),
                                      c.max_position_embeddings));
  out += model.weights ? weights_text(*model.weights)
                       : line("checkpoint", "no weights in this folder: counts are from config.json alone");
  return out;
}

std::string inspection_json(const ModelInspection& model) {
  const ModelConfig& c = model.config;
  const ParameterCounts& p = model.parameters;
  Json parameters = {{"total", p.total}, {"active", p.active}, {"mtp", p.mtp}};
  for (const auto& [name, member] : kParameterKinds) parameters[name] = p.*member;
  Json out = {{"model", model.label},
              {"architecture", architecture_name(c.architecture)},
              {"quantization", quantization_text(c)},
              {"num_hidden_layers", c.num_hidden_layers},
              {"num_moe_layers", c.num_moe_layers()},
              {"hidden_size", c.hidden_size},
              {"vocab_size", c.vocab_size},
              {"num_attention_heads", c.num_attention_heads},
              {"q_lora_rank", c.q_lora_rank},
              {"kv_lora_rank", c.kv_lora_rank},
              {"n_routed_experts", c.n_routed_experts},
              {"n_shared_experts", c.n_shared_experts},
              {"num_experts_per_tok", c.num_experts_per_tok},
              {"n_group", c.n_group},
              {"topk_group", c.topk_group},
              {"topk_method", topk_method_name(c.topk_method)},
              {"scoring_func", scoring_func_name(c.scoring_func)},
              {"max_position_embeddings", c.max_position_embeddings},
              {"eos_token_ids", c.eos_token_ids},
              {"parameters", parameters},
              {"kv_dtype", dtype_name(model.kv_dtype)},
              {"kv_bytes_per_token", model.kv_bytes_per_token},
              {"weights", model.weights ? weights_json(*model.weights) : Json(nullptr)}};
  // A folder's name may be no UTF-8.
  return out.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace fathom
