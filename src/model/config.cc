// config.json and generation_config.json into a ModelConfig. JSON ends in this file.
#include "model/config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/gate.h"
#include "model/saved_panels.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

constexpr size_t kConfigBytesMax = size_t{16} << 20;
constexpr int kConfigDepthMax = 64;
constexpr int kConfigKeysMax = 4096;  // published ones have under a hundred
// Far above any published model, and small enough that no product of them overflows.
constexpr int64_t kVocabMax = int64_t{1} << 24;
constexpr int64_t kHiddenMax = int64_t{1} << 17;
constexpr int64_t kWidthMax = int64_t{1} << 18;
constexpr int64_t kHeadsMax = int64_t{1} << 12;
constexpr int64_t kHeadDimMax = int64_t{1} << 13;
constexpr int64_t kLayersMax = int64_t{1} << 10;
constexpr int64_t kExpertsMax = kGateExpertsMax;

// A JSON object from the outside: depth limited, no key twice. nlohmann's parser is iterative, so the depth
// that is refused here cannot overflow the stack before.
Result<Json> parse_object(std::string_view file, std::string_view text) {
  // The parser takes a NUL for the end and would leave what follows unread.
  if (text.find('\0') != std::string_view::npos)
    return invalid_argument("{}: malformed JSON: it holds a NUL", file);
  std::vector<std::set<std::string>> keys_at_depth;
  int num_keys = 0;
  std::string problem;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kConfigDepthMax && problem.empty())
      problem = fmt::format("nested deeper than {}", kConfigDepthMax);
    // Nothing is kept of what is refused, so that it costs no more than reading on.
    if (!problem.empty()) return false;
    if (event == Json::parse_event_t::object_start) {
      keys_at_depth.resize(static_cast<size_t>(depth) + 2);
      keys_at_depth.back().clear();
    } else if (event == Json::parse_event_t::key) {
      if (++num_keys > kConfigKeysMax) problem = fmt::format("more than {} keys", kConfigKeysMax);
      auto& keys = keys_at_depth[static_cast<size_t>(depth)];
      if (!keys.insert(parsed.get_ref<const std::string&>()).second) {
        problem = fmt::format("{} occurs twice", quoted_name(parsed.get_ref<const std::string&>()));
      }
    }
    return true;
  };
  Json document;
  try {
    document = Json::parse(text, watch);
  } catch (const Json::exception& error) {
    const std::string_view what = error.what();
    const size_t tag_end = what.find("] ");
    return invalid_argument("{}: malformed JSON: {}", file,
                            what.substr(tag_end == std::string_view::npos ? 0 : tag_end + 2));
  }
  if (!problem.empty()) return invalid_argument("{}: {}", file, problem);
  if (!document.is_object()) return invalid_argument("{}: not a JSON object", file);
  return document;
}

// Typed access to one object's keys. The first thing wrong is kept; later reads give their defaults, so that
// a section reads all its keys in a row and asks once.
class Fields {
 public:
  Fields(std::string path, const Json& object) : path_(std::move(path)), object_(object) {}

  const Status& status() const { return status_; }
  // Absent and null are the same: published configs write null for "none".
  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  const Json& at(const char* key) const { return object_[key]; }

  int64_t required_int(const char* key, int64_t min, int64_t max) {
    if (!has(key)) {
      fail(key, "missing");
      return min;
    }
    return optional_int(key, min, min, max);
  }
  int64_t optional_int(const char* key, int64_t fallback, int64_t min, int64_t max) {
    if (!has(key)) return fallback;
    const Json& value = object_[key];
    const bool fits =
        value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX);
    if (!fits || value.get<int64_t>() < min || value.get<int64_t>() > max) {
      fail(key, fmt::format("expected an integer from {} to {}, got {}", min, max, shown(value)));
      return fallback;
    }
    return value.get<int64_t>();
  }
  double optional_number(const char* key, double fallback, double min, double max) {
    if (!has(key)) return fallback;
    const Json& value = object_[key];
    if (!value.is_number() || !(value.get<double>() >= min && value.get<double>() <= max)) {
      fail(key, fmt::format("expected a number from {} to {}, got {}", min, max, shown(value)));
      return fallback;
    }
    return value.get<double>();
  }
  double required_number(const char* key, double min, double max) {
    if (!has(key)) fail(key, "missing");
    return optional_number(key, min, min, max);
  }
  bool optional_bool(const char* key, bool fallback) {
    if (!has(key)) return fallback;
    if (!object_[key].is_boolean()) {
      fail(key, fmt::format("expected true or false, got {}", shown(object_[key])));
      return fallback;
    }
    return object_[key].get<bool>();
  }
  std::string optional_string(const char* key, std::string fallback) {
    if (!has(key)) return fallback;
    if (!object_[key].is_string()) {
      fail(key, fmt::format("expected a string, got {}", shown(object_[key])));
      return fallback;
    }
    return object_[key].get<std::string>();
  }
  // For what has only one supported value.
  void must_be_false(const char* key) {
    if (optional_bool(key, false)) fail(key, "true is not supported");
  }
  void fail(const char* key, std::string_view reason) {
    if (status_.ok()) status_ = invalid_argument("{}: {}: {}", path_, key, reason);
  }

  static std::string shown(const Json& value) {
    if (value.is_string()) return quoted_name(value.get_ref<const std::string&>());
    if (value.is_structured()) return value.is_object() ? "an object" : "an array";
    return value.dump();
  }

 private:
  std::string path_;
  const Json& object_;
  Status status_;
};

void read_architecture(Fields& fields, ModelConfig& config) {
  config.model_type = fields.optional_string("model_type", "");
  std::string name;
  if (fields.has("architectures")) {
    const Json& list = fields.at("architectures");
    if (!list.is_array() || list.size() != 1 || !list[0].is_string()) {
      return fields.fail("architectures", "expected a list of one name");
    }
    name = list[0].get<std::string>();
  } else if (config.model_type == "deepseek_v2" || config.model_type == "deepseek_v3") {
    name = config.model_type == "deepseek_v2" ? "DeepseekV2ForCausalLM" : "DeepseekV3ForCausalLM";
  } else {
    return fields.fail("architectures", "missing");
  }
  if (name == "DeepseekV2ForCausalLM") {
    config.architecture = Architecture::kDeepseekV2;
  } else if (name == "DeepseekV3ForCausalLM") {
    config.architecture = Architecture::kDeepseekV3;
  } else {
    fields.fail("architectures",
                fmt::format("{} is not supported (known: DeepseekV2ForCausalLM, DeepseekV3ForCausalLM)",
                            quoted_name(name)));
  }
}

void read_dtype(Fields& fields, ModelConfig& config) {
  const char* key = fields.has("torch_dtype") ? "torch_dtype" : "dtype";
  const std::string name = fields.optional_string(key, "bfloat16");
  if (name == "bfloat16") {
    config.dtype = DType::kBf16;
  } else if (name == "float16") {
    config.dtype = DType::kF16;
  } else if (name == "float32") {
    config.dtype = DType::kF32;
  } else {
    fields.fail(key,
                fmt::format("{} is not supported (known: bfloat16, float16, float32)", quoted_name(name)));
  }
}

void read_shapes(Fields& fields, ModelConfig& config) {
  config.vocab_size = fields.required_int("vocab_size", 1, kVocabMax);
  config.hidden_size = fields.required_int("hidden_size", 1, kHiddenMax);
  config.num_hidden_layers = fields.required_int("num_hidden_layers", 1, kLayersMax);
  config.num_attention_heads = fields.required_int("num_attention_heads", 1, kHeadsMax);
  config.intermediate_size = fields.required_int("intermediate_size", 1, kWidthMax);
  config.q_lora_rank = fields.optional_int("q_lora_rank", 0, 1, kHiddenMax);
  config.kv_lora_rank = fields.required_int("kv_lora_rank", 1, kHiddenMax);
  config.qk_nope_head_dim = fields.required_int("qk_nope_head_dim", 1, kHeadDimMax);
  config.qk_rope_head_dim = fields.required_int("qk_rope_head_dim", 2, kHeadDimMax);
  config.v_head_dim = fields.required_int("v_head_dim", 1, kHeadDimMax);
  config.max_position_embeddings = fields.required_int("max_position_embeddings", 1, int64_t{1} << 31);
  config.rms_norm_eps = fields.optional_number("rms_norm_eps", 1e-6, 0, 1);
  config.tie_word_embeddings = fields.optional_bool("tie_word_embeddings", false);
  config.num_nextn_predict_layers = fields.optional_int(
      fields.has("num_nextn_predict_layers") ? "num_nextn_predict_layers" : "num_mtp_layers", 0, 0, 16);

  if (config.qk_rope_head_dim % 2 != 0) fields.fail("qk_rope_head_dim", "must be even");
  const int64_t kv_heads =
      fields.optional_int("num_key_value_heads", config.num_attention_heads, 1, kHeadsMax);
  if (kv_heads != config.num_attention_heads) {
    fields.fail("num_key_value_heads",
                fmt::format("{} differs from num_attention_heads {}; MLA has one per head", kv_heads,
                            config.num_attention_heads));
  }
  fields.must_be_false("attention_bias");
  fields.must_be_false("mlp_bias");
  if (!fields.optional_bool("rope_interleave", true))
    fields.fail("rope_interleave", "false is not supported");
  if (const std::string act = fields.optional_string("hidden_act", "silu"); act != "silu") {
    fields.fail("hidden_act", fmt::format("{} is not supported (known: silu)", quoted_name(act)));
  }
}

void read_gate_kind(Fields& fields, ModelConfig& config) {
  const bool v3 = config.architecture == Architecture::kDeepseekV3;
  const std::string scoring = fields.optional_string("scoring_func", v3 ? "sigmoid" : "softmax");
  const std::string method = fields.optional_string("topk_method", v3 ? "noaux_tc" : "greedy");
  config.scoring_func = scoring == "sigmoid" ? ScoringFunc::kSigmoid : ScoringFunc::kSoftmax;
  const std::string known_scoring = v3 ? "sigmoid" : "softmax";
  if (scoring != known_scoring) {
    fields.fail("scoring_func", fmt::format("{} is not supported for {} (known: {})", quoted_name(scoring),
                                            architecture_name(config.architecture), known_scoring));
  }
  if (v3 && method == "noaux_tc") {
    config.topk_method = TopkMethod::kNoauxTc;
  } else if (!v3 &&
             (method == "greedy" || method == "gready")) {  // V2's own configuration class misspells it
    config.topk_method = TopkMethod::kGreedy;
  } else if (!v3 && method == "group_limited_greedy") {
    config.topk_method = TopkMethod::kGroupLimitedGreedy;
  } else {
    fields.fail("topk_method", fmt::format("{} is not supported for {} (known: {})", quoted_name(method),
                                           architecture_name(config.architecture),
                                           v3 ? "noaux_tc" : "greedy, group_limited_greedy"));
  }
}

void check_gate(Fields& fields, const ModelConfig& config) {
  const int64_t experts = config.n_routed_experts;
  if (experts % config.n_group != 0) {
    return fields.fail("n_group",
                       fmt::format("{} does not divide n_routed_experts {}", config.n_group, experts));
  }
  if (config.topk_group > config.n_group) {
    return fields.fail("topk_group",
                       fmt::format("{} is more than n_group {}", config.topk_group, config.n_group));
  }
  const int64_t group_size = experts / config.n_group;
  const int64_t eligible = config.topk_group * group_size;
  if (config.num_experts_per_tok > eligible) {
    return fields.fail("num_experts_per_tok",
                       fmt::format("{} is more than the {} experts in {} group(s) of {}",
                                   config.num_experts_per_tok, eligible, config.topk_group, group_size));
  }
  if (config.topk_method == TopkMethod::kNoauxTc && config.n_group > 1 && group_size < 2) {
    fields.fail("n_group", "noaux_tc scores a group by its two best experts, so groups need at least two");
  }
}

void read_moe(Fields& fields, ModelConfig& config) {
  config.n_routed_experts = fields.optional_int("n_routed_experts", 0, 1, kExpertsMax);
  if (config.n_routed_experts == 0) return;
  const bool v3 = config.architecture == Architecture::kDeepseekV3;
  config.n_shared_experts = fields.optional_int("n_shared_experts", 0, 0, kExpertsMax);
  config.num_experts_per_tok = fields.required_int("num_experts_per_tok", 1, config.n_routed_experts);
  config.moe_intermediate_size = fields.required_int("moe_intermediate_size", 1, kWidthMax);
  config.first_k_dense_replace = fields.optional_int("first_k_dense_replace", v3 ? 3 : 0, 0, kLayersMax);
  config.moe_layer_freq = fields.optional_int("moe_layer_freq", 1, 1, kLayersMax);
  config.norm_topk_prob = fields.optional_bool("norm_topk_prob", v3);
  config.routed_scaling_factor = fields.optional_number("routed_scaling_factor", v3 ? 2.5 : 1.0, 1e-6, 1e6);
  read_gate_kind(fields, config);
  const bool grouped = config.topk_method != TopkMethod::kGreedy;
  config.n_group = grouped ? fields.optional_int("n_group", v3 ? 8 : 1, 1, config.n_routed_experts) : 1;
  config.topk_group = grouped ? fields.optional_int("topk_group", v3 ? 4 : 1, 1, config.n_routed_experts) : 1;
  if (fields.status().ok()) check_gate(fields, config);
}

Status read_yarn(Fields& scaling, ModelConfig& config) {
  YarnScaling yarn;
  yarn.original_max_position_embeddings = scaling.required_number("original_max_position_embeddings", 1, 1e9);
  if (scaling.has("factor")) {
    yarn.factor = scaling.optional_number("factor", 1, 1, 1e6);
  } else {
    yarn.factor = static_cast<double>(config.max_position_embeddings) / yarn.original_max_position_embeddings;
  }
  yarn.beta_fast = scaling.optional_number("beta_fast", 32, 1e-3, 1e6);
  yarn.beta_slow = scaling.optional_number("beta_slow", 1, 1e-3, 1e6);
  yarn.mscale = scaling.optional_number("mscale", 1, 0, 100);
  yarn.mscale_all_dim = scaling.optional_number("mscale_all_dim", 0, 0, 100);
  yarn.truncate = scaling.optional_bool("truncate", true);
  if (scaling.has("attention_factor"))
    yarn.attention_factor = scaling.optional_number("attention_factor", 1, 1e-3, 1e3);
  config.yarn = yarn;
  return scaling.status();
}

// `rope_scaling` and `rope_theta` as published, or both inside `rope_parameters` as newer transformers writes
// them.
Status read_rope(std::string_view path, Fields& fields, ModelConfig& config) {
  config.rope_theta = fields.optional_number("rope_theta", 10000, 1.0 + 1e-9, 1e12);
  RETURN_IF_ERROR(fields.status());
  const char* key = fields.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!fields.has(key)) return ok_status();
  if (!fields.at(key).is_object()) return invalid_argument("{}: {}: expected an object", path, key);
  Fields scaling(fmt::format("{}: {}", path, key), fields.at(key));
  config.rope_theta = scaling.optional_number("rope_theta", config.rope_theta, 1.0 + 1e-9, 1e12);
  const char* type_key = scaling.has("rope_type") ? "rope_type" : "type";
  const std::string type = scaling.optional_string(type_key, "default");
  if (type == "yarn") return read_yarn(scaling, config);
  if (type != "default") {
    scaling.fail(type_key, fmt::format("{} is not supported (known: default, yarn)", quoted_name(type)));
  }
  return scaling.status();
}

Status read_quantization(std::string_view path, Fields& fields, ModelConfig& config) {
  if (!fields.has("quantization_config")) return ok_status();
  const Json& object = fields.at("quantization_config");
  if (!object.is_object()) return invalid_argument("{}: quantization_config: expected an object", path);
  Fields quant(fmt::format("{}: quantization_config", path), object);
  const std::string method = quant.optional_string("quant_method", "");
  if (method == "fathom") {
    config.quant_method = QuantMethod::kFathom;
    const int64_t version = quant.required_int("format_version", 1, INT32_MAX);
    if (version > 2)
      quant.fail("format_version", fmt::format("{} is newer than this binary reads (2)", version));
    config.fathom_panels = version == 2;
    const std::string layout = quant.optional_string("layout", "");
    if (config.fathom_panels && layout != kPanelLayout) {
      quant.fail("layout", fmt::format("{} is not known (known: {}); convert the original again",
                                       quoted_name(layout), kPanelLayout));
    }
    config.fathom_weights = quant.optional_string("weights", "");
    if (config.fathom_weights.empty()) quant.fail("weights", "missing");
    config.scale_fmt_ue8m0 = quant.optional_string("scale_fmt", "") == "ue8m0";
    return quant.status();
  }
  if (method != "fp8") {
    quant.fail("quant_method", fmt::format("{} is not supported (known: fp8, fathom)", quoted_name(method)));
    return quant.status();
  }
  config.quant_method = QuantMethod::kFp8Blocks;
  if (const std::string fmt_name = quant.optional_string("fmt", "e4m3"); fmt_name != "e4m3") {
    quant.fail("fmt", fmt::format("{} is not supported (known: e4m3)", quoted_name(fmt_name)));
  }
  if (const std::string scheme = quant.optional_string("activation_scheme", "dynamic"); scheme != "dynamic") {
    quant.fail("activation_scheme", fmt::format("{} is not supported (known: dynamic)", quoted_name(scheme)));
  }
  if (!quant.has("weight_block_size")) {
    quant.fail("weight_block_size", "missing; only FP8 in blocks of [128, 128] is supported");
  } else if (quant.at("weight_block_size") != Json::array({128, 128})) {
    quant.fail("weight_block_size", "only [128, 128] is supported");
  }
  const std::string scale_fmt = quant.optional_string("scale_fmt", "");
  config.scale_fmt_ue8m0 = scale_fmt == "ue8m0";
  if (!scale_fmt.empty() && scale_fmt != "ue8m0" && scale_fmt != "float") {
    quant.fail("scale_fmt", fmt::format("{} is not supported (known: ue8m0)", quoted_name(scale_fmt)));
  }
  return quant.status();
}

// A token id, a list of them, or nothing.
std::vector<int32_t> read_token_ids(Fields& fields, const char* key, int64_t vocab_size) {
  std::vector<int32_t> ids;
  if (!fields.has(key)) return ids;
  const Json& value = fields.at(key);
  const Json list = value.is_array() ? value : Json::array({value});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab_size) {
      fields.fail(key,
                  fmt::format("{} is not a token id below vocab_size {}", Fields::shown(id), vocab_size));
      return {};
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view label, std::string_view config_text,
                                       std::string_view generation_text) {
  // A label that is a file's name is the place of what it says; else it is the folder of the two.
  const std::string path =
      label.ends_with(".json") ? std::string(label) : fmt::format("{}/config.json", label);
  ASSIGN_OR_RETURN(const Json document, parse_object(path, config_text));
  Fields fields(path, document);
  ModelConfig config;
  read_architecture(fields, config);
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(read_quantization(path, fields, config));
  read_dtype(fields, config);
  read_shapes(fields, config);
  RETURN_IF_ERROR(fields.status());
  read_moe(fields, config);
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(read_rope(path, fields, config));

  const std::vector<int32_t> bos = read_token_ids(fields, "bos_token_id", config.vocab_size);
  if (!bos.empty()) config.bos_token_id = bos[0];
  config.eos_token_ids = read_token_ids(fields, "eos_token_id", config.vocab_size);
  RETURN_IF_ERROR(fields.status());
  if (!generation_text.empty()) {
    const std::string generation_path = fmt::format("{}/generation_config.json", label);
    ASSIGN_OR_RETURN(const Json generation, parse_object(generation_path, generation_text));
    Fields more(generation_path, generation);
    std::vector<int32_t> eos = read_token_ids(more, "eos_token_id", config.vocab_size);
    RETURN_IF_ERROR(more.status());
    if (!eos.empty()) config.eos_token_ids = std::move(eos);
  }
  return config;
}

Result<ModelConfig> load_model_config(const ModelSource& source) {
  ASSIGN_OR_RETURN(const std::string config_text, source.read_text("config.json", kConfigBytesMax));
  std::string generation_text;
  if (source.contains("generation_config.json")) {
    ASSIGN_OR_RETURN(generation_text, source.read_text("generation_config.json", kConfigBytesMax));
    if (generation_text.empty()) return invalid_argument("{}/generation_config.json: empty", source.label());
  }
  return parse_model_config(source.label(), config_text, generation_text);
}

}  // namespace fathom
