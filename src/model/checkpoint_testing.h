// For tests: tiny checkpoints of any shape, held as a map of tensors that a test may spoil before it is
// written.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "kernels/linear.h"
#include "kernels/quantize.h"
#include "model/config.h"
#include "tensor/model_source.h"
#include "tensor/safetensors_writer.h"

namespace fathom::testing {

// A folder under the system's temporary folder that goes with the object.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "fathom-XXXXXX").string();
    CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  void write(const std::string& name, std::string_view content) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << content;
  }
  std::unique_ptr<ModelSource> source() const { return open_model_folder(path_).value(); }

 private:
  std::string path_;
};

struct CheckpointTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::string bytes;
};

class Checkpoint {
 public:
  nlohmann::json config;
  std::map<std::string, CheckpointTensor> tensors;

  // One dense and one MoE layer, odd sizes, q_lora, groups, shared expert. Weights in `dtype` (F32, BF16, F16
  // or F8_E4M3; the last with scales and BF16 for what stays out of FP8).
  static Checkpoint make(DType dtype, bool mtp = false, uint64_t seed = 1) {
    Checkpoint cp;
    cp.rng_ = Rng(seed);
    cp.dtype_ = dtype;
    const char* torch = dtype == DType::kF32 ? "float32" : dtype == DType::kF16 ? "float16" : "bfloat16";
    cp.config = {{"architectures", {"DeepseekV3ForCausalLM"}},
                 {"vocab_size", 70},
                 {"hidden_size", 136},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 3},
                 {"q_lora_rank", 40},
                 {"kv_lora_rank", 48},
                 {"qk_nope_head_dim", 20},
                 {"qk_rope_head_dim", 8},
                 {"v_head_dim", 12},
                 {"intermediate_size", 150},
                 {"moe_intermediate_size", 33},
                 {"n_routed_experts", 4},
                 {"n_shared_experts", 2},
                 {"num_experts_per_tok", 2},
                 {"n_group", 2},
                 {"topk_group", 1},
                 {"first_k_dense_replace", 1},
                 {"max_position_embeddings", 256},
                 {"torch_dtype", torch},
                 {"eos_token_id", 1}};
    if (dtype == DType::kFp8E4m3) {
      cp.config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
    }
    if (mtp) cp.config["num_nextn_predict_layers"] = 1;
    cp.fill();
    return cp;
  }

  // Draws all tensors the config asks for.
  void fill() {
    const ModelConfig c = parse_model_config("test", config.dump()).value();
    plain("model.embed_tokens.weight", {c.vocab_size, c.hidden_size});
    plain("lm_head.weight", {c.vocab_size, c.hidden_size});
    plain("model.norm.weight", {c.hidden_size});
    const int64_t layers = c.num_hidden_layers + c.num_nextn_predict_layers;
    for (int64_t i = 0; i < layers; ++i) {
      const std::string prefix = fmt::format("model.layers.{}.", i);
      layer(c, prefix, c.is_moe_layer(i));
      if (i < c.num_hidden_layers) continue;
      plain(prefix + "enorm.weight", {c.hidden_size});
      plain(prefix + "hnorm.weight", {c.hidden_size});
      plain(prefix + "eh_proj.weight", {c.hidden_size, 2 * c.hidden_size});
      plain(prefix + "shared_head.norm.weight", {c.hidden_size});
      plain(prefix + "shared_head.head.weight", {c.vocab_size, c.hidden_size});
      plain(prefix + "embed_tokens.weight", {c.vocab_size, c.hidden_size});
    }
  }

  // Values of a tensor, scaled where it has scales.
  std::vector<float> values(const std::string& name) const {
    const CheckpointTensor& tensor = tensors.at(name);
    const int64_t k = tensor.shape.back();
    const int64_t n = tensor.shape.size() == 1 ? 1 : tensor.shape[0];
    const auto scales = tensors.find(name + "_scale_inv");
    const WeightSource source{tensor.dtype, tensor.bytes.data(), n, k,
                              scales == tensors.end() ? nullptr : scales->second.bytes.data()};
    std::vector<float> out(static_cast<size_t>(n * k));
    for (int64_t i = 0; i < n; ++i) dequantize_weight(source, i, 0, k, out.data() + i * k);
    return out;
  }

  // The same as one file in memory.
  struct InMemory {
    std::string config, weights;
    std::unique_ptr<ModelSource> source;
  };
  std::unique_ptr<InMemory> in_memory() const {
    auto memory = std::make_unique<InMemory>();
    memory->config = config.dump();
    std::vector<TensorSpec> specs;
    for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.shape});
    memory->weights = safetensors_header(specs);
    for (const auto& [name, tensor] : tensors) memory->weights += tensor.bytes;
    const auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text)); };
    memory->source = make_memory_model_source(
        "memory", {{"config.json", bytes(memory->config)}, {"model.safetensors", bytes(memory->weights)}});
    return memory;
  }

  // In `num_shards` files, with an index if there are several; tensors dealt out in turn.
  void write(const TempFolder& folder, int num_shards = 1) const {
    folder.write("config.json", config.dump());
    nlohmann::json weight_map;
    for (int shard = 0; shard < num_shards; ++shard) {
      const std::string file =
          num_shards == 1 ? "model.safetensors" : fmt::format("model-{}.safetensors", shard);
      std::vector<TensorSpec> specs;
      std::string data;
      int64_t turn = 0;
      for (const auto& [name, tensor] : tensors) {
        if (turn++ % num_shards != shard) continue;
        specs.push_back({name, tensor.dtype, tensor.shape});
        data += tensor.bytes;
        weight_map[name] = file;
      }
      folder.write(file, safetensors_header(specs) + data);
    }
    if (num_shards > 1)
      folder.write("model.safetensors.index.json", nlohmann::json{{"weight_map", weight_map}}.dump());
  }

 private:
  void layer(const ModelConfig& c, const std::string& prefix, bool moe) {
    const std::string attn = prefix + "self_attn.";
    plain(prefix + "input_layernorm.weight", {c.hidden_size});
    plain(prefix + "post_attention_layernorm.weight", {c.hidden_size});
    const int64_t q_rows = c.num_attention_heads * c.qk_head_dim();
    if (c.q_lora_rank == 0) {
      linear(attn + "q_proj", q_rows, c.hidden_size);
    } else {
      linear(attn + "q_a_proj", c.q_lora_rank, c.hidden_size);
      plain(attn + "q_a_layernorm.weight", {c.q_lora_rank});
      linear(attn + "q_b_proj", q_rows, c.q_lora_rank);
    }
    linear(attn + "kv_a_proj_with_mqa", c.kv_row_dim(), c.hidden_size);
    plain(attn + "kv_a_layernorm.weight", {c.kv_lora_rank});
    linear(attn + "kv_b_proj", c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank);
    linear(attn + "o_proj", c.hidden_size, c.num_attention_heads * c.v_head_dim);
    if (!moe) return swiglu(prefix + "mlp.", c.intermediate_size, c.hidden_size);
    plain(prefix + "mlp.gate.weight", {c.n_routed_experts, c.hidden_size});
    if (c.topk_method == TopkMethod::kNoauxTc) {
      add(prefix + "mlp.gate.e_score_correction_bias", DType::kF32, {c.n_routed_experts});
    }
    for (int64_t i = 0; i < c.n_routed_experts; ++i) {
      swiglu(fmt::format("{}mlp.experts.{}.", prefix, i), c.moe_intermediate_size, c.hidden_size);
    }
    if (c.n_shared_experts > 0)
      swiglu(prefix + "mlp.shared_experts.", c.shared_intermediate_size(), c.hidden_size);
  }
  void swiglu(const std::string& prefix, int64_t width, int64_t hidden) {
    linear(prefix + "gate_proj", width, hidden);
    linear(prefix + "up_proj", width, hidden);
    linear(prefix + "down_proj", hidden, width);
  }
  void linear(const std::string& name, int64_t n, int64_t k) {
    add(name + ".weight", dtype_, {n, k});
    if (dtype_ == DType::kFp8E4m3) {
      add(name + ".weight_scale_inv", DType::kF32, {ceil_div(n, kScaleBlock), ceil_div(k, kScaleBlock)});
    }
  }
  void plain(const std::string& name, std::vector<int64_t> shape) {
    add(name, dtype_ == DType::kFp8E4m3 ? DType::kBf16 : dtype_, std::move(shape));
  }
  void add(const std::string& name, DType dtype, std::vector<int64_t> shape) {
    CheckpointTensor tensor{dtype, std::move(shape), {}};
    int64_t count = 1;
    for (const int64_t dim : tensor.shape) count *= dim;
    for (int64_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(rng_.next_double() * 4 - 2);
      append(tensor, value);
    }
    tensors[name] = std::move(tensor);
  }
  static void append(CheckpointTensor& tensor, float value) {
    const auto put = [&](auto x) { tensor.bytes.append(reinterpret_cast<const char*>(&x), sizeof(x)); };
    switch (tensor.dtype) {
      case DType::kBf16:
        return put(f32_to_bf16(value));
      case DType::kF16:
        return put(f32_to_f16(value));
      case DType::kFp8E4m3:
        return put(f32_to_fp8_e4m3(value * 100));
      default:
        return put(value);
    }
  }

  Rng rng_{1};
  DType dtype_ = DType::kF32;
};

}  // namespace fathom::testing
