// Walks the config's modules in the checkpoint's names and finds, checks and assigns every tensor.
#include "model/weights_plan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <unordered_set>

#include "model/saved_panels.h"

namespace fathom {
namespace {

// FP8, INT8 and INT4 weights are a pair of tensors; this is the second one's name and shape.
struct ScaleRule {
  std::string_view suffix;
  DType dtype;
  int64_t rows;
  int64_t cols;
};

ScaleRule scale_rule(DType weight, int64_t n, int64_t k) {
  if (weight == DType::kFp8E4m3) {
    return {".weight_scale_inv", DType::kF32, ceil_div(n, kScaleBlock), ceil_div(k, kScaleBlock)};
  }
  if (weight == DType::kInt8) return {".weight_scale", DType::kF32, n, ceil_div(k, kScaleBlock)};
  return {".weight_scale", DType::kF16, n, ceil_div(k, kInt4Group)};
}

bool is_plain_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16;
}
bool is_quantized(DType dtype) {
  return dtype == DType::kFp8E4m3 || dtype == DType::kInt8 || dtype == DType::kUint8;
}

WeightSource make_source(const TensorInfo* weight, const TensorInfo* scales, int64_t n, int64_t k) {
  const DType dtype = weight->dtype == DType::kUint8 ? DType::kInt4 : weight->dtype;
  return {dtype, weight->bytes.data(), n, k, scales == nullptr ? nullptr : scales->bytes.data()};
}

// Finds tensors, remembers which were asked for, and keeps the first thing wrong.
class TensorFinder {
 public:
  TensorFinder(const ModelConfig& config, const SafeTensors& tensors) : config_(config), tensors_(tensors) {}

  const Status& status() const { return status_; }
  bool exists(const std::string& name) const { return tensors_.find(name) != nullptr; }

  const TensorInfo* find(const std::string& name, const std::vector<int64_t>& shape) {
    const TensorInfo* tensor = find_any_shape(name);
    if (tensor != nullptr && tensor->shape != shape) fail_shape(*tensor, shape);
    return tensor;
  }

  const TensorInfo* find_float(const std::string& name, const std::vector<int64_t>& shape) {
    const TensorInfo* tensor = find(name, shape);
    if (tensor != nullptr && !is_plain_float(tensor->dtype)) {
      fail(*tensor, fmt::format("dtype {} where F32, BF16 or F16 is needed", dtype_name(tensor->dtype)));
    }
    return tensor;
  }

  // A linear layer's weight and, where its dtype has them, its scales.
  void find_linear(const std::string& name, int64_t n, int64_t k, const TensorInfo*& weight,
                   const TensorInfo*& scales) {
    weight = find_any_shape(name + ".weight");
    if (weight == nullptr) return;
    const bool int4 = weight->dtype == DType::kUint8;
    const std::vector<int64_t> shape = {n, int4 ? ceil_div(k, kInt4Group) * (kInt4Group / 2) : k};
    if (weight->shape != shape) return fail_shape(*weight, shape);
    if (is_plain_float(weight->dtype)) return;
    const bool ours = weight->dtype != DType::kFp8E4m3;
    if (!is_quantized(weight->dtype) || (ours && config_.quant_method != QuantMethod::kFathom)) {
      return fail(*weight,
                  fmt::format("dtype {} is no weight format of this checkpoint", dtype_name(weight->dtype)));
    }
    const ScaleRule rule = scale_rule(weight->dtype, n, k);
    scales = find(name + std::string(rule.suffix), {rule.rows, rule.cols});
    if (scales != nullptr && scales->dtype != rule.dtype) {
      fail(*scales,
           fmt::format("dtype {} where {} is needed", dtype_name(scales->dtype), dtype_name(rule.dtype)));
    }
  }

  // Packed weights of `bytes(format)` bytes in any of `formats`: NAME.<format>_panels.
  template <typename Bytes>
  void find_panels(const std::string& name, std::span<const WeightFormat> formats, Bytes bytes,
                   const TensorInfo*& weight, WeightFormat& format) {
    const auto there = std::find_if(formats.begin(), formats.end(), [&](WeightFormat f) {
      return tensors_.find(panels_name(name, f)) != nullptr;
    });
    format = there != formats.end() ? *there : formats.front();
    weight = find(panels_name(name, format), {bytes(format)});
    if (weight == nullptr) return;
    if (weight->dtype != DType::kUint8)
      return fail(*weight, fmt::format("dtype {} where U8 is needed", dtype_name(weight->dtype)));
    if (reinterpret_cast<uintptr_t>(weight->bytes.data()) % kBufferAlignmentBytes != 0) {
      fail(*weight, fmt::format("does not begin at a multiple of {} bytes, as packed weights must",
                                kBufferAlignmentBytes));
    }
  }

  // The checksums that each file states for its tensors.
  std::unordered_map<const TensorInfo*, uint64_t> read_checksums() {
    std::map<std::string_view, std::vector<const TensorInfo*>> files;
    std::map<std::string_view, const TensorInfo*> tables;
    for (const TensorInfo& tensor : tensors_.tensors()) {
      if (!tensor.name.starts_with(kChecksumsPrefix)) {
        files[tensor.file].push_back(&tensor);
        continue;
      }
      used_.insert(&tensor);
      if (!tables.emplace(tensor.file, &tensor).second) fail(tensor, "the file has two tables of checksums");
    }
    std::unordered_map<const TensorInfo*, uint64_t> checksums;
    for (auto& [file, in_file] : files) {
      const TensorInfo* table = tables[file];
      const std::vector<int64_t> shape = {static_cast<int64_t>(in_file.size())};
      if (table == nullptr) {
        fail(*in_file.front(), fmt::format("the file has no {}* with checksums", kChecksumsPrefix));
      } else if (table->dtype != DType::kUint64 || table->shape != shape) {
        fail(*table, fmt::format("{} {} where U64 [{}] is needed", dtype_name(table->dtype),
                                 table->shape_text(), shape[0]));
      } else {
        std::sort(in_file.begin(), in_file.end(),
                  [](const TensorInfo* a, const TensorInfo* b) { return a->bytes.data() < b->bytes.data(); });
        for (size_t i = 0; i < in_file.size(); ++i)
          std::memcpy(&checksums[in_file[i]], table->bytes.data() + i * sizeof(uint64_t), sizeof(uint64_t));
      }
    }
    return checksums;
  }

  std::vector<std::string> unused() const {
    std::vector<std::string> names;
    for (const TensorInfo& tensor : tensors_.tensors()) {
      if (!used_.contains(&tensor) && !is_known_extra(tensor.name)) names.push_back(tensor.name);
    }
    return names;
  }

 private:
  const TensorInfo* find_any_shape(const std::string& name) {
    const TensorInfo* tensor = tensors_.find(name);
    if (tensor != nullptr) {
      used_.insert(tensor);
    } else if (status_.ok()) {
      status_ = make_status(StatusCode::kNotFound, "{}: {}: the tensor is missing", tensors_.list_name(),
                            quoted_name(name));
    }
    return tensor;
  }
  void fail_shape(const TensorInfo& tensor, const std::vector<int64_t>& shape) {
    fail(tensor,
         fmt::format("shape {} where the config asks for [{}]", tensor.shape_text(), fmt::join(shape, ", ")));
  }
  void fail(const TensorInfo& tensor, std::string_view reason) {
    if (status_.ok()) status_ = invalid_argument("{}: {}: {}", tensor.file, quoted_name(tensor.name), reason);
  }

  // Layers from num_hidden_layers on may be MTP modules, with copies of the embedding and the head, announced
  // or not. One without a module's own norm and projection is a layer that the config leaves out.
  bool is_known_extra(std::string_view name) const {
    if (name.ends_with("rotary_emb.inv_freq")) return true;
    if (config_.tie_word_embeddings && name == "lm_head.weight") return true;
    constexpr std::string_view kLayers = "model.layers.";
    if (!name.starts_with(kLayers)) return false;
    int64_t layer = 0;
    const std::string_view digits = name.substr(kLayers.size());
    for (const char c : digits.substr(0, std::min<size_t>(digits.find('.'), 9))) {
      if (c < '0' || c > '9') return false;
      layer = layer * 10 + (c - '0');
    }
    return layer >= config_.num_hidden_layers && is_mtp_module(layer);
  }

  bool is_mtp_module(int64_t layer) const {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    return exists(prefix + "enorm.weight") || exists(prefix + "eh_proj.weight");
  }

  const ModelConfig& config_;
  const SafeTensors& tensors_;
  std::unordered_set<const TensorInfo*> used_;
  Status status_;
};

// Builds the plan module by module, in the order of the forward pass.
class Describer {
 public:
  Describer(WeightPlan& plan, TensorFinder& finder) : c_(plan.config), plan_(plan), finder_(finder) {}

  void describe(bool with_mtp) {
    ModelWeights& w = *plan_.weights;
    plan_.embed_tokens = finder_.find_float("model.embed_tokens.weight", {c_.vocab_size, c_.hidden_size});
    w.layers.resize(static_cast<size_t>(c_.num_hidden_layers));
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) layer(i, w.layers[static_cast<size_t>(i)]);
    vector("model.norm.weight", c_.hidden_size, w.norm);
    linear("lm_head", c_.vocab_size, c_.hidden_size, ActGroup::kHead, &WeightBytes::head, w.lm_head);
    if (with_mtp) mtp_modules();
  }

 private:
  using Kind = int64_t WeightBytes::*;
  static constexpr WeightFormat kPanelFormats[] = {WeightFormat::kBf16, WeightFormat::kInt8,
                                                   WeightFormat::kInt4, WeightFormat::kFp8,
                                                   WeightFormat::kF32,  WeightFormat::kF16};

  Kind kind(Kind in_main) const { return in_mtp_ ? &WeightBytes::mtp : in_main; }

  void linear(const std::string& name, int64_t n, int64_t k, ActGroup group, Kind in_main,
              PackedWeight& target) {
    LinearPlan linear{.name = name, .n = n, .k = k, .group = group, .kind = kind(in_main), .target = &target};
    const bool tied = group == ActGroup::kHead && c_.tie_word_embeddings;
    if (c_.fathom_panels) {
      find_panels(linear, kPanelFormats);
    } else {
      finder_.find_linear(tied ? "model.embed_tokens" : name, n, k, linear.weight, linear.scales);
    }
    plan_.linears.push_back(std::move(linear));
  }
  void find_panels(LinearPlan& linear, std::span<const WeightFormat> formats) {
    linear.panels = true;
    finder_.find_panels(
        linear.name, formats, [&](WeightFormat format) { return panels_bytes(format, linear.n, linear.k); },
        linear.weight, linear.format);
  }
  void vector(const std::string& name, int64_t size, const float*& target) {
    plan_.vectors.push_back({finder_.find_float(name, {size}), kind(&WeightBytes::gate_and_norms), &target});
  }

  void layer(int64_t idx, LayerWeights& w) {
    const std::string prefix = fmt::format("model.layers.{}.", idx);
    vector(prefix + "input_layernorm.weight", c_.hidden_size, w.input_layernorm);
    attention(prefix + "self_attn.", w.self_attn);
    vector(prefix + "post_attention_layernorm.weight", c_.hidden_size, w.post_attention_layernorm);
    w.is_moe = c_.is_moe_layer(idx);
    if (w.is_moe) {
      moe(prefix + "mlp.", w.moe);
    } else {
      swiglu(prefix + "mlp.", c_.intermediate_size, &WeightBytes::dense_mlp, w.mlp);
    }
  }

  void attention(const std::string& prefix, AttentionWeights& w) {
    const auto project = [&](const char* name, int64_t n, int64_t k, PackedWeight& target) {
      linear(prefix + name, n, k, ActGroup::kAttention, &WeightBytes::attention, target);
    };
    const int64_t q_rows = c_.num_attention_heads * c_.qk_head_dim();
    if (c_.q_lora_rank == 0) {
      project("q_proj", q_rows, c_.hidden_size, w.q_proj);
    } else {
      project("q_a_proj", c_.q_lora_rank, c_.hidden_size, w.q_a_proj);
      vector(prefix + "q_a_layernorm.weight", c_.q_lora_rank, w.q_a_layernorm);
      project("q_b_proj", q_rows, c_.q_lora_rank, w.q_b_proj);
    }
    project("kv_a_proj_with_mqa", c_.kv_row_dim(), c_.hidden_size, w.kv_a_proj_with_mqa);
    vector(prefix + "kv_a_layernorm.weight", c_.kv_lora_rank, w.kv_a_layernorm);
    KvBPlan kv_b{.name = prefix + "kv_b_proj",
                 .n = c_.num_attention_heads * (c_.qk_nope_head_dim + c_.v_head_dim),
                 .k = c_.kv_lora_rank,
                 .kind = kind(&WeightBytes::attention),
                 .target = &w};
    if (c_.fathom_panels) {
      kv_b.panels = true;
      finder_.find_panels(
          kv_b.name, kPanelFormats,
          [&](WeightFormat format) { return c_.num_attention_heads * KvBHeadPanels(c_, format).bytes(); },
          kv_b.weight, kv_b.format);
    } else {
      finder_.find_linear(kv_b.name, kv_b.n, kv_b.k, kv_b.weight, kv_b.scales);
    }
    plan_.kv_bs.push_back(std::move(kv_b));
    project("o_proj", c_.hidden_size, c_.num_attention_heads * c_.v_head_dim, w.o_proj);
  }

  void moe(const std::string& prefix, MoeWeights& w) {
    LinearPlan gate{.name = prefix + "gate",
                    .n = c_.n_routed_experts,
                    .k = c_.hidden_size,
                    .group = ActGroup::kGate,
                    .kind = kind(&WeightBytes::gate_and_norms),
                    .format = WeightFormat::kF32,
                    .target = &w.gate};
    if (c_.fathom_panels) {
      find_panels(gate, std::array{WeightFormat::kF32});
    } else {
      gate.weight = finder_.find_float(gate.name + ".weight", {gate.n, gate.k});
    }
    plan_.linears.push_back(std::move(gate));
    if (c_.topk_method == TopkMethod::kNoauxTc) {
      vector(prefix + "gate.e_score_correction_bias", c_.n_routed_experts, w.e_score_correction_bias);
    }
    w.experts.resize(static_cast<size_t>(c_.n_routed_experts));
    for (size_t i = 0; i < w.experts.size(); ++i) {
      swiglu(fmt::format("{}experts.{}.", prefix, i), c_.moe_intermediate_size, &WeightBytes::routed_experts,
             w.experts[i]);
    }
    if (c_.n_shared_experts > 0) {
      swiglu(prefix + "shared_experts.", c_.shared_intermediate_size(), &WeightBytes::shared_experts,
             w.shared_experts);
    }
  }

  void swiglu(const std::string& prefix, int64_t width, Kind in_main, SwigluWeights& w) {
    linear(prefix + "gate_proj", width, c_.hidden_size, ActGroup::kFfn, in_main, w.gate);
    linear(prefix + "up_proj", width, c_.hidden_size, ActGroup::kFfn, in_main, w.up);
    linear(prefix + "down_proj", c_.hidden_size, width, ActGroup::kFfn, in_main, w.down);
  }

  // A config may announce MTP modules whose weights were left out of the checkpoint.
  void mtp_modules() {
    in_mtp_ = true;
    std::vector<MtpWeights>& mtp = plan_.weights->mtp;
    const auto first = static_cast<size_t>(c_.num_hidden_layers);
    while (mtp.size() < static_cast<size_t>(c_.num_nextn_predict_layers) &&
           finder_.exists(fmt::format("model.layers.{}.{}.weight", first + mtp.size(),
                                      c_.fathom_panels ? "enorm" : "eh_proj"))) {
      mtp.emplace_back();
    }
    for (size_t i = 0; i < mtp.size(); ++i) {
      const std::string prefix = fmt::format("model.layers.{}.", first + i);
      vector(prefix + "enorm.weight", c_.hidden_size, mtp[i].enorm);
      vector(prefix + "hnorm.weight", c_.hidden_size, mtp[i].hnorm);
      linear(prefix + "eh_proj", c_.hidden_size, 2 * c_.hidden_size, ActGroup::kMtpProjection,
             &WeightBytes::mtp, mtp[i].eh_proj);
      layer(static_cast<int64_t>(first + i), mtp[i].layer);
      vector(prefix + "shared_head.norm.weight", c_.hidden_size, mtp[i].shared_head_norm);
    }
  }

  const ModelConfig& c_;
  WeightPlan& plan_;
  TensorFinder& finder_;
  bool in_mtp_ = false;
};

WeightFormat native_format(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return WeightFormat::kF32;
    case DType::kF16:
      return WeightFormat::kF16;
    case DType::kFp8E4m3:
      return WeightFormat::kFp8;
    case DType::kInt8:
      return WeightFormat::kInt8;
    case DType::kUint8:
      return WeightFormat::kInt4;
    default:
      return WeightFormat::kBf16;
  }
}

// One format for all, or each tensor's own where these read the same activations; else the narrowest that
// loses nothing for any of them: BF16 for FP8 with BF16, F32 as soon as an F32 or F16 tensor is there.
Status choose_group_format(WeightPlan& plan, ActGroup group, std::optional<WeightFormat> wanted,
                           ActFormat& act) {
  std::vector<LinearPlan*> members;
  for (LinearPlan& linear : plan.linears) {
    if (linear.group == group) members.push_back(&linear);
  }
  if (members.empty()) return ok_status();
  const LinearPlan* first = members[0];
  bool mixed = false;
  bool any_f32 = false;
  for (LinearPlan* linear : members) {
    if (!linear->panels) linear->format = native_format(linear->weight->dtype);
    mixed |= act_format_for(linear->format) != act_format_for(first->format);
    any_f32 |= act_format_for(linear->format) == ActFormat::kF32;
  }
  if (!wanted && mixed) {
    wanted = any_f32 ? WeightFormat::kF32 : WeightFormat::kBf16;
    plan.weights->warnings.push_back(
        fmt::format("the checkpoint mixes {} and other weights of one kind; all are run as {}",
                    dtype_name(first->weight->dtype), weight_format_name(*wanted)));
  }
  if (wanted) {
    for (LinearPlan* linear : members) {
      const bool fixed = linear->panels || act_format_for(linear->format) == ActFormat::kInt8;
      if (fixed && linear->format != *wanted) {
        return invalid_argument(
            "{}: {}: is {} already and cannot become {}; use the checkpoint it was made from",
            linear->weight->file, quoted_name(linear->weight->name), weight_format_name(linear->format),
            weight_format_name(*wanted));
      }
      if (!linear->panels && !can_pack(*wanted, linear->source().dtype)) {
        return invalid_argument("{}: {}: {} cannot become {}; use the checkpoint it was made from",
                                linear->weight->file, quoted_name(linear->weight->name),
                                weight_format_name(linear->format), weight_format_name(*wanted));
      }
      linear->format = *wanted;
    }
  }
  act = act_format_for(members[0]->format);
  return ok_status();
}

Status choose_formats(WeightPlan& plan, const LoadOptions& options) {
  ModelWeights& w = *plan.weights;
  // FP8 is used as published: the head and the MTP projection stay as they are.
  std::optional<WeightFormat> wanted_head = options.weights;
  if (wanted_head == WeightFormat::kFp8) wanted_head.reset();
  ActFormat mtp_act = ActFormat::kF32;
  RETURN_IF_ERROR(choose_group_format(plan, ActGroup::kAttention, options.weights, w.attention_act));
  RETURN_IF_ERROR(choose_group_format(plan, ActGroup::kFfn, options.weights, w.ffn_act));
  RETURN_IF_ERROR(choose_group_format(plan, ActGroup::kHead, wanted_head, w.head_act));
  RETURN_IF_ERROR(choose_group_format(plan, ActGroup::kMtpProjection, wanted_head, mtp_act));
  w.core_dtype = w.attention_act == ActFormat::kF32 ? DType::kF32 : DType::kBf16;
  w.embed_dtype = plan.embed_tokens->dtype;
  for (KvBPlan& kv_b : plan.kv_bs) {
    if (kv_b.panels) {
      if ((kv_b.format == WeightFormat::kBf16) == (w.core_dtype == DType::kBf16)) continue;
      return invalid_argument("{}: {}: the attention core of this checkpoint does not run in it",
                              kv_b.weight->file, quoted_name(kv_b.weight->name));
    }
    if (w.core_dtype == DType::kBf16) {
      kv_b.format = WeightFormat::kBf16;
    } else {
      kv_b.format = kv_b.weight->dtype == DType::kF16 ? WeightFormat::kF16 : WeightFormat::kF32;
    }
  }
  return ok_status();
}

int64_t aligned(int64_t bytes) { return round_up(bytes, kBufferAlignmentBytes); }

void count_bytes(WeightPlan& plan) {
  const ModelConfig& c = plan.config;
  WeightBytes& bytes = plan.weights->bytes;
  bytes = {};
  bytes.embedding = aligned(static_cast<int64_t>(plan.embed_tokens->bytes.size()));
  for (const LinearPlan& linear : plan.linears) {
    bytes.*linear.kind += aligned(packed_weight_bytes(linear.format, linear.n, linear.k, plan.isa));
  }
  for (const KvBPlan& kv_b : plan.kv_bs) {
    const int64_t head =
        aligned(packed_weight_bytes(kv_b.format, c.qk_nope_head_dim, c.kv_lora_rank, plan.isa)) +
        aligned(packed_weight_bytes(kv_b.format, c.kv_lora_rank, c.qk_nope_head_dim, plan.isa)) +
        aligned(packed_weight_bytes(kv_b.format, c.v_head_dim, c.kv_lora_rank, plan.isa));
    bytes.*kv_b.kind += c.num_attention_heads * head;
  }
  for (const VectorPlan& vector : plan.vectors) {
    bytes.*vector.kind += aligned(vector.tensor->num_elements() * static_cast<int64_t>(sizeof(float)));
  }
}

int64_t pair_bytes(const TensorInfo* weight, const TensorInfo* scales) {
  return static_cast<int64_t>(weight->bytes.size() + (scales == nullptr ? 0 : scales->bytes.size()));
}

}  // namespace

WeightSource LinearPlan::source() const { return make_source(weight, scales, n, k); }

WeightSource KvBPlan::source() const { return make_source(weight, scales, n, k); }

int64_t WeightPlan::source_bytes() const {
  auto bytes = static_cast<int64_t>(embed_tokens->bytes.size());
  for (const LinearPlan& linear : linears) bytes += pair_bytes(linear.weight, linear.scales);
  for (const KvBPlan& kv_b : kv_bs) bytes += pair_bytes(kv_b.weight, kv_b.scales);
  for (const VectorPlan& vector : vectors) bytes += static_cast<int64_t>(vector.tensor->bytes.size());
  return bytes;
}

Result<WeightPlan> plan_weights(const ModelConfig& config, const SafeTensors& tensors,
                                const LoadOptions& options) {
  WeightPlan plan;
  plan.config = config;
  plan.isa = options.isa;
  plan.weights = std::make_unique<ModelWeights>();
  plan.files = tensors.files();
  TensorFinder finder(config, tensors);
  Describer(plan, finder).describe(options.load_mtp);
  if (config.fathom_panels) plan.checksums = finder.read_checksums();
  RETURN_IF_ERROR(finder.status());
  RETURN_IF_ERROR(choose_formats(plan, options));
  count_bytes(plan);
  if (const std::vector<std::string> unused = finder.unused(); !unused.empty()) {
    plan.weights->warnings.push_back(fmt::format("{} tensor(s) of the checkpoint are not used, {} first",
                                                 unused.size(), quoted_name(unused[0])));
  }
  return plan;
}

}  // namespace fathom
