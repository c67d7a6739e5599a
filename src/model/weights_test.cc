// Checkpoints in every dtype and format, packed as a direct call of pack_rows packs them; and every refusal.
#include "model/weights.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/elementwise.h"
#include "model/checkpoint_testing.h"
#include "model/weights_plan.h"

namespace fathom {
namespace {

using testing::Checkpoint;
using testing::CheckpointTensor;
using testing::TempFolder;

Result<std::unique_ptr<Model>> load(const TempFolder& folder, LoadOptions options = {}, int num_threads = 2) {
  ThreadTeam team(num_threads);
  return Model::load(*folder.source(), options, team);
}

std::unique_ptr<Model> loaded(const Checkpoint& checkpoint, const LoadOptions& options = {},
                              int num_threads = 2) {
  TempFolder folder;
  checkpoint.write(folder);
  auto model = load(folder, options, num_threads);
  CHECK_MSG(model.ok(), model.status().message());
  return std::move(*model);
}

LoadOptions with_weights(WeightFormat format) {
  LoadOptions options;
  options.weights = format;
  return options;
}

bool same_bytes(const PackedWeight& a, const PackedWeight& b) {
  return a.format == b.format && a.n == b.n && a.k == b.k && a.bytes() == b.bytes() &&
         std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0;
}

// What one call of pack_rows on the whole matrix gives.
::testing::AssertionResult is_packed_from(const PackedWeight& w, const WeightSource& source,
                                          WeightFormat format) {
  AlignedBuffer memory(static_cast<size_t>(packed_weight_bytes(format, source.n, source.k)));
  const PackedWeight wanted = make_packed_weight(format, source.n, source.k, memory.data());
  pack_rows(wanted, 0, source.n, source, 0);
  if (same_bytes(w, wanted)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << weight_format_name(w.format) << " [" << w.n << ", " << w.k << "] differs";
}

WeightSource source_of(const Checkpoint& cp, const std::string& name) {
  const CheckpointTensor& tensor = cp.tensors.at(name + ".weight");
  const auto scales = cp.tensors.find(name + ".weight_scale_inv");
  return {tensor.dtype, tensor.bytes.data(), tensor.shape[0], tensor.shape[1],
          scales == cp.tensors.end() ? nullptr : scales->second.bytes.data()};
}

// The matrix itself, by multiplying it with the identity; exact for F32, F16 and BF16 weights.
std::vector<float> unpacked(const PackedWeight& w) {
  std::vector<float> identity(static_cast<size_t>(w.k * w.k)), product(static_cast<size_t>(w.k * w.n));
  for (int64_t i = 0; i < w.k; ++i) identity[static_cast<size_t>(i * w.k + i)] = 1;
  AlignedBuffer memory(static_cast<size_t>(act_bytes(act_format_for(w.format), w.k, w.k)));
  const Activations x = make_activations(act_format_for(w.format), w.k, w.k, memory.data());
  quantize_rows(MatrixView<const float>(identity.data(), w.k, w.k), x);
  linear(x, w, MatrixView<float>(product.data(), w.k, w.n));
  std::vector<float> matrix(product.size());
  for (int64_t i = 0; i < w.n; ++i) {
    for (int64_t j = 0; j < w.k; ++j)
      matrix[static_cast<size_t>(i * w.k + j)] = product[static_cast<size_t>(j * w.n + i)];
  }
  return matrix;
}

struct NamedWeight {
  std::string name;
  const PackedWeight* weight;
};

// Every linear layer that --weights applies to, but the head.
std::vector<NamedWeight> linear_layers(const ModelWeights& w) {
  std::vector<NamedWeight> all;
  const auto swiglu = [&](const std::string& prefix, const SwigluWeights& s) {
    all.push_back({prefix + "gate_proj", &s.gate});
    all.push_back({prefix + "up_proj", &s.up});
    all.push_back({prefix + "down_proj", &s.down});
  };
  for (size_t i = 0; i < w.layers.size(); ++i) {
    const LayerWeights& layer = w.layers[i];
    const std::string attn = fmt::format("model.layers.{}.self_attn.", i);
    const std::string mlp = fmt::format("model.layers.{}.mlp.", i);
    all.push_back({attn + "q_a_proj", &layer.self_attn.q_a_proj});
    all.push_back({attn + "q_b_proj", &layer.self_attn.q_b_proj});
    all.push_back({attn + "kv_a_proj_with_mqa", &layer.self_attn.kv_a_proj_with_mqa});
    all.push_back({attn + "o_proj", &layer.self_attn.o_proj});
    if (!layer.is_moe) {
      swiglu(mlp, layer.mlp);
      continue;
    }
    for (size_t e = 0; e < layer.moe.experts.size(); ++e) {
      swiglu(fmt::format("{}experts.{}.", mlp, e), layer.moe.experts[e]);
    }
    swiglu(mlp + "shared_experts.", layer.moe.shared_experts);
  }
  return all;
}

void expect_floats(const Checkpoint& cp, const std::string& name, const float* values) {
  const std::vector<float> wanted = cp.values(name);
  EXPECT_EQ(std::memcmp(values, wanted.data(), wanted.size() * sizeof(float)), 0) << name;
}

// kv_b per head: [k_nope | v] rows, keys also transposed; rounded to the core's dtype.
void expect_kv_b(const Checkpoint& cp, const ModelConfig& c, int layer, const AttentionWeights& w,
                 bool bf16) {
  std::vector<float> rows = cp.values(fmt::format("model.layers.{}.self_attn.kv_b_proj.weight", layer));
  if (bf16) {
    for (float& x : rows) x = bf16_to_f32(f32_to_bf16(x));
  }
  const int64_t head_rows = c.qk_nope_head_dim + c.v_head_dim;
  ASSERT_EQ(w.w_uk.size(), static_cast<size_t>(c.num_attention_heads));
  for (int64_t h = 0; h < c.num_attention_heads; ++h) {
    const auto i = static_cast<size_t>(h);
    const auto begin = rows.begin() + h * head_rows * c.kv_lora_rank;
    const auto middle = begin + c.qk_nope_head_dim * c.kv_lora_rank;
    EXPECT_EQ(unpacked(w.w_uk[i]), std::vector<float>(begin, middle));
    EXPECT_EQ(unpacked(w.w_uv[i]), std::vector<float>(middle, begin + head_rows * c.kv_lora_rank));
    const std::vector<float> transposed = unpacked(w.w_uk_t[i]);
    for (int64_t r = 0; r < c.kv_lora_rank; ++r) {
      for (int64_t j = 0; j < c.qk_nope_head_dim; ++j) {
        ASSERT_EQ(transposed[static_cast<size_t>(r * c.qk_nope_head_dim + j)], begin[j * c.kv_lora_rank + r]);
      }
    }
  }
}

class EveryDtype : public ::testing::TestWithParam<DType> {};

TEST_P(EveryDtype, native_weights_are_the_checkpoints) {
  const Checkpoint cp = Checkpoint::make(GetParam());
  const auto model = loaded(cp);
  const ModelConfig& c = model->config();
  const ModelWeights& w = model->weights();
  const bool f32 = GetParam() == DType::kF32 || GetParam() == DType::kF16;
  EXPECT_EQ(w.core_dtype, f32 ? DType::kF32 : DType::kBf16);
  const WeightFormat format = GetParam() == DType::kF32    ? WeightFormat::kF32
                              : GetParam() == DType::kF16  ? WeightFormat::kF16
                              : GetParam() == DType::kBf16 ? WeightFormat::kBf16
                                                           : WeightFormat::kFp8;
  EXPECT_EQ(w.ffn_act, act_format_for(format));
  for (const NamedWeight& layer : linear_layers(w)) {
    EXPECT_TRUE(is_packed_from(*layer.weight, source_of(cp, layer.name), format)) << layer.name;
  }
  const WeightFormat plain = format == WeightFormat::kFp8 ? WeightFormat::kBf16 : format;
  EXPECT_TRUE(is_packed_from(w.lm_head, source_of(cp, "lm_head"), plain));
  for (int i = 0; i < 2; ++i) {
    const LayerWeights& layer = w.layers[static_cast<size_t>(i)];
    const std::string prefix = fmt::format("model.layers.{}.", i);
    expect_kv_b(cp, c, i, layer.self_attn, !f32);
    expect_floats(cp, prefix + "input_layernorm.weight", layer.input_layernorm);
    expect_floats(cp, prefix + "post_attention_layernorm.weight", layer.post_attention_layernorm);
    expect_floats(cp, prefix + "self_attn.q_a_layernorm.weight", layer.self_attn.q_a_layernorm);
    expect_floats(cp, prefix + "self_attn.kv_a_layernorm.weight", layer.self_attn.kv_a_layernorm);
  }
  expect_floats(cp, "model.norm.weight", w.norm);
  const MoeWeights& moe = w.layers[1].moe;
  EXPECT_EQ(unpacked(moe.gate), cp.values("model.layers.1.mlp.gate.weight"));
  expect_floats(cp, "model.layers.1.mlp.gate.e_score_correction_bias", moe.e_score_correction_bias);
  const CheckpointTensor& embedding = cp.tensors.at("model.embed_tokens.weight");
  EXPECT_EQ(w.embed_dtype, embedding.dtype);
  EXPECT_EQ(std::memcmp(w.embed_tokens, embedding.bytes.data(), embedding.bytes.size()), 0);
  EXPECT_TRUE(w.warnings.empty());
  EXPECT_EQ(w.bytes.total(), static_cast<int64_t>(w.memory[0].size_bytes()));
}

TEST_P(EveryDtype, every_weights_option_is_what_pack_rows_makes) {
  const Checkpoint cp = Checkpoint::make(GetParam());
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8,
                                    WeightFormat::kInt8, WeightFormat::kInt4}) {
    const auto model = loaded(cp, with_weights(format));
    const ModelWeights& w = model->weights();
    for (const NamedWeight& layer : linear_layers(w)) {
      ASSERT_TRUE(is_packed_from(*layer.weight, source_of(cp, layer.name), format)) << layer.name;
    }
    const DType head = cp.tensors.at("lm_head.weight").dtype;
    const WeightFormat native_head = head == DType::kF32   ? WeightFormat::kF32
                                     : head == DType::kF16 ? WeightFormat::kF16
                                                           : WeightFormat::kBf16;
    EXPECT_TRUE(is_packed_from(w.lm_head, source_of(cp, "lm_head"),
                               format == WeightFormat::kFp8 ? native_head : format));
    EXPECT_EQ(w.layers[1].moe.gate.format, WeightFormat::kF32);
    EXPECT_EQ(w.core_dtype, format == WeightFormat::kF32 ? DType::kF32 : DType::kBf16);
    expect_kv_b(cp, model->config(), 1, w.layers[1].self_attn, format != WeightFormat::kF32);
    EXPECT_EQ(w.embed_dtype, cp.tensors.at("model.embed_tokens.weight").dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, EveryDtype,
                         ::testing::Values(DType::kF32, DType::kBf16, DType::kF16, DType::kFp8E4m3),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST(Weights, shards_threads_and_place_make_no_difference) {
  const Checkpoint cp = Checkpoint::make(DType::kFp8E4m3, true);
  const auto one = loaded(cp, {}, 1);
  TempFolder folder;
  cp.write(folder, 5);  // scales lie in other shards than their weights
  std::vector<int64_t> progress;
  LoadOptions options;
  int64_t total = 0;
  options.progress = [&](int64_t done, int64_t all) {
    progress.push_back(done);
    total = all;
  };
  const auto sharded = load(folder, options, 3).value();
  EXPECT_EQ(std::memcmp(one->weights().memory[0].data(), sharded->weights().memory[0].data(),
                        one->weights().memory[0].size_bytes()),
            0);
  EXPECT_EQ(one->weights().fingerprint, sharded->weights().fingerprint);
  EXPECT_EQ(one->weights().fingerprint.size(), 64u);
  ASSERT_FALSE(progress.empty());
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
  EXPECT_GT(progress.back(), total / 2);

  // The same bytes from memory.
  std::vector<std::shared_ptr<const ModelFile>> files;
  std::vector<NamedBytes> named;
  const auto disk = folder.source();
  for (const std::string& name : disk->file_names()) {
    files.push_back(disk->open(name).value());
    named.push_back({name, files.back()->bytes()});
  }
  ThreadTeam team(1);
  const auto built_in = Model::load(*make_memory_model_source("built-in", named), {}, team).value();
  EXPECT_EQ(std::memcmp(one->weights().memory[0].data(), built_in->weights().memory[0].data(),
                        one->weights().memory[0].size_bytes()),
            0);
}

TEST(Weights, fingerprint_tells_models_and_formats_apart) {
  Checkpoint cp = Checkpoint::make(DType::kBf16);
  const std::string first = loaded(cp)->weights().fingerprint;
  EXPECT_EQ(first, loaded(cp)->weights().fingerprint);
  EXPECT_NE(first, loaded(cp, with_weights(WeightFormat::kInt8))->weights().fingerprint);
  cp.config["rope_theta"] = 50000;
  EXPECT_NE(first, loaded(cp)->weights().fingerprint);
  cp = Checkpoint::make(DType::kBf16);
  cp.tensors["model.norm.weight"].bytes[0] ^= 1;
  EXPECT_NE(first, loaded(cp)->weights().fingerprint);
}

TEST(Weights, a_matrix_of_several_pieces_is_packed_whole) {
  Checkpoint cp = Checkpoint::make(DType::kF32);
  cp.config["vocab_size"] = 5000;  // 2.7 MB of head and embedding: three pieces each
  cp.fill();
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kInt4}) {
    const auto model = loaded(cp, with_weights(format));
    EXPECT_TRUE(is_packed_from(model->weights().lm_head, source_of(cp, "lm_head"), format));
    EXPECT_EQ(std::memcmp(model->weights().embed_tokens, cp.tensors["model.embed_tokens.weight"].bytes.data(),
                          5000 * 136 * 4),
              0);
  }
}

TEST(Weights, mtp_modules_are_loaded_when_there) {
  Checkpoint cp = Checkpoint::make(DType::kBf16, true);
  const auto model = loaded(cp);
  ASSERT_EQ(model->weights().mtp.size(), 1u);
  const MtpWeights& mtp = model->weights().mtp[0];
  EXPECT_TRUE(is_packed_from(mtp.eh_proj, source_of(cp, "model.layers.2.eh_proj"), WeightFormat::kBf16));
  EXPECT_TRUE(mtp.layer.is_moe);
  expect_floats(cp, "model.layers.2.enorm.weight", mtp.enorm);
  expect_floats(cp, "model.layers.2.hnorm.weight", mtp.hnorm);
  expect_floats(cp, "model.layers.2.shared_head.norm.weight", mtp.shared_head_norm);
  expect_kv_b(cp, model->config(), 2, mtp.layer.self_attn, true);
  EXPECT_GT(model->weights().bytes.mtp, 0);
  EXPECT_TRUE(model->weights().warnings.empty()) << model->weights().warnings[0];

  LoadOptions without;
  without.load_mtp = false;
  EXPECT_TRUE(loaded(cp, without)->weights().mtp.empty());
  EXPECT_TRUE(loaded(cp, without)->weights().warnings.empty()) << "MTP tensors are known";
  std::erase_if(cp.tensors, [](const auto& entry) { return entry.first.starts_with("model.layers.2."); });
  EXPECT_TRUE(loaded(cp)->weights().mtp.empty()) << "announced, but left out";
}

TEST(Weights, mtp_modules_are_known_where_the_config_does_not_announce_them) {
  Checkpoint cp = Checkpoint::make(DType::kBf16, true);
  cp.config["num_nextn_predict_layers"] = 0;
  EXPECT_TRUE(loaded(cp)->weights().warnings.empty());
}

// Fewer layers than the checkpoint has are another model, with an MTP module announced or not.
TEST(Weights, layers_that_the_config_leaves_out_warn) {
  for (const bool mtp : {false, true}) {
    Checkpoint cp = Checkpoint::make(DType::kBf16);
    cp.config["num_hidden_layers"] = 1;
    cp.config["num_nextn_predict_layers"] = mtp ? 1 : 0;
    const std::vector<std::string> warnings = loaded(cp)->weights().warnings;
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_NE(warnings[0].find("tensor(s) of the checkpoint are not used, 'model.layers.1."),
              std::string::npos)
        << warnings[0];
  }
}

TEST(Weights, tied_embeddings_give_the_head) {
  Checkpoint cp = Checkpoint::make(DType::kBf16);
  cp.config["tie_word_embeddings"] = true;
  const auto with_copy = loaded(cp);
  cp.tensors.erase("lm_head.weight");
  const auto model = loaded(cp);
  EXPECT_TRUE(
      is_packed_from(model->weights().lm_head, source_of(cp, "model.embed_tokens"), WeightFormat::kBf16));
  EXPECT_TRUE(same_bytes(model->weights().lm_head, with_copy->weights().lm_head));
  EXPECT_TRUE(with_copy->weights().warnings.empty());
}

TEST(Weights, v2_without_q_lora_bias_or_shared_expert) {
  Checkpoint cp = Checkpoint::make(DType::kBf16);
  cp.config.merge_patch({{"architectures", {"DeepseekV2ForCausalLM"}},
                         {"q_lora_rank", nullptr},
                         {"n_shared_experts", nullptr}});
  cp.tensors.clear();
  cp.fill();
  const auto model = loaded(cp);
  const ModelWeights& w = model->weights();
  EXPECT_TRUE(is_packed_from(w.layers[0].self_attn.q_proj, source_of(cp, "model.layers.0.self_attn.q_proj"),
                             WeightFormat::kBf16));
  EXPECT_EQ(w.layers[0].self_attn.q_a_layernorm, nullptr);
  EXPECT_EQ(w.layers[1].moe.e_score_correction_bias, nullptr);
  EXPECT_FALSE(w.layers[1].moe.shared_experts.present());
}

TEST(Weights, mixed_checkpoints_run_in_what_loses_nothing) {
  Checkpoint cp = Checkpoint::make(DType::kFp8E4m3);
  const std::string name = "model.layers.0.mlp.up_proj";
  const std::vector<float> values = cp.values(name + ".weight");
  CheckpointTensor& tensor = cp.tensors[name + ".weight"];
  tensor.dtype = DType::kBf16;
  tensor.bytes.clear();
  for (const float x : values) {
    const Bf16 y = f32_to_bf16(x);
    tensor.bytes.append(reinterpret_cast<const char*>(&y), 2);
  }
  cp.tensors.erase(name + ".weight_scale_inv");
  const auto model = loaded(cp);
  EXPECT_EQ(model->weights().ffn_act, ActFormat::kBf16);
  EXPECT_EQ(model->weights().attention_act, ActFormat::kFp8);
  EXPECT_TRUE(is_packed_from(model->weights().layers[1].moe.experts[2].down,
                             source_of(cp, "model.layers.1.mlp.experts.2.down_proj"), WeightFormat::kBf16));
  ASSERT_EQ(model->weights().warnings.size(), 1u);
  EXPECT_NE(model->weights().warnings[0].find("all are run as bf16"), std::string::npos);
}

TEST(Weights, unaligned_tensors_are_read_right) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp8E4m3}) {
    Checkpoint cp = Checkpoint::make(dtype);
    const auto aligned = loaded(cp);
    cp.tensors["a"] = {DType::kUint8, {1}, "x"};  // comes first: everything after it starts at an odd address
    const auto model = loaded(cp);
    EXPECT_EQ(std::memcmp(aligned->weights().memory[0].data(), model->weights().memory[0].data(),
                          aligned->weights().memory[0].size_bytes()),
              0);
    for (const WeightFormat format : {WeightFormat::kFp8, WeightFormat::kInt8, WeightFormat::kInt4}) {
      EXPECT_EQ(loaded(cp, with_weights(format))->weights().warnings.size(), 1u);
    }
  }
}

TEST(Weights, unexpected_tensors_warn_and_known_ones_do_not) {
  Checkpoint cp = Checkpoint::make(DType::kBf16);
  cp.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {DType::kF32, {4}, std::string(16, '\0')};
  EXPECT_TRUE(loaded(cp)->weights().warnings.empty());
  cp.tensors["model.layers.0.self_attn.q_proj.bias"] = {DType::kF32, {4}, std::string(16, '\0')};
  ASSERT_EQ(loaded(cp)->weights().warnings.size(), 1u);
  EXPECT_EQ(loaded(cp)->weights().warnings[0],
            "1 tensor(s) of the checkpoint are not used, 'model.layers.0.self_attn.q_proj.bias' first");
}

void expect_refused(const Checkpoint& cp, std::string_view wanted, const LoadOptions& options = {}) {
  const auto memory = cp.in_memory();
  ThreadTeam team(1);
  const auto model = Model::load(*memory->source, options, team);
  ASSERT_FALSE(model.ok()) << wanted;
  const std::string message = model.status().message();
  EXPECT_NE(message.find(wanted), std::string::npos) << message << "\n  lacks: " << wanted;
  EXPECT_TRUE(message.starts_with("memory: ")) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(Weights, every_missing_tensor_is_named) {
  const Checkpoint whole = Checkpoint::make(DType::kFp8E4m3, true);
  for (const auto& [name, tensor] : whole.tensors) {
    if (name.ends_with("shared_head.head.weight") || name.starts_with("model.layers.2.embed_tokens"))
      continue;
    if (name == "model.layers.2.eh_proj.weight") continue;  // its absence means no MTP module
    Checkpoint cp = whole;
    cp.tensors.erase(name);
    expect_refused(cp, fmt::format("model.safetensors: '{}': the tensor is missing", name));
  }
}

TEST(Weights, every_wrong_shape_is_named) {
  const Checkpoint whole = Checkpoint::make(DType::kFp8E4m3);
  for (const auto& [name, tensor] : whole.tensors) {
    Checkpoint cp = whole;
    CheckpointTensor& spoiled = cp.tensors[name];
    spoiled.shape.back() += 1;
    spoiled.bytes.resize(static_cast<size_t>(TensorSpec{name, spoiled.dtype, spoiled.shape}.size_bytes()));
    expect_refused(cp, fmt::format("model.safetensors: '{}': shape [{}] where the config asks for [{}]", name,
                                   fmt::join(spoiled.shape, ", "), fmt::join(tensor.shape, ", ")));
  }
}

TEST(Weights, wrong_dtypes_are_named) {
  const auto spoiled = [](const std::string& name, DType dtype, DType checkpoint = DType::kFp8E4m3) {
    Checkpoint cp = Checkpoint::make(checkpoint);
    CheckpointTensor& tensor = cp.tensors.at(name);
    tensor.dtype = dtype;
    tensor.bytes.resize(static_cast<size_t>(TensorSpec{name, dtype, tensor.shape}.size_bytes()));
    return cp;
  };
  expect_refused(spoiled("model.norm.weight", DType::kInt32),
                 "'model.norm.weight': dtype I32 where F32, BF16 or F16 is needed");
  expect_refused(spoiled("model.embed_tokens.weight", DType::kFp8E4m3),
                 "'model.embed_tokens.weight': dtype F8_E4M3 where");
  expect_refused(spoiled("model.layers.1.mlp.gate.weight", DType::kFp8E4m3),
                 "'model.layers.1.mlp.gate.weight': dtype F8_E4M3 where");
  expect_refused(spoiled("lm_head.weight", DType::kInt8),
                 "'lm_head.weight': dtype I8 is no weight format of this checkpoint");
  expect_refused(spoiled("lm_head.weight", DType::kInt64), "'lm_head.weight': dtype I64 is no weight format");
  expect_refused(spoiled("lm_head.weight", DType::kFp8E5m2), "dtype F8_E5M2 is no weight format");
  expect_refused(spoiled("lm_head.weight", DType::kFp8E4m3, DType::kBf16),
                 "'lm_head.weight_scale_inv': the tensor is missing");
  expect_refused(spoiled("model.layers.0.mlp.up_proj.weight_scale_inv", DType::kBf16),
                 "'model.layers.0.mlp.up_proj.weight_scale_inv': dtype BF16 where F32 is needed");
}

TEST(Weights, a_broken_config_or_shard_is_named) {
  const Checkpoint cp = Checkpoint::make(DType::kBf16);
  TempFolder folder;
  EXPECT_EQ(load(folder).status().message(), folder.path() + "/config.json: No such file or directory");
  cp.write(folder, 2);
  std::filesystem::resize_file(folder.path() + "/model-1.safetensors", 20000);
  const std::string message = load(folder).status().message();
  EXPECT_NE(message.find("model-1.safetensors: '"), std::string::npos) << message;
  EXPECT_NE(message.find("(truncated?)"), std::string::npos) << message;
}

TEST(Weights, a_model_larger_than_memory_is_refused_and_told_what_fits) {
  const Checkpoint cp = Checkpoint::make(DType::kF32);
  const auto bytes_as = [&](WeightFormat format) {
    return loaded(cp, with_weights(format))->weights().bytes.total();
  };
  LoadOptions options;
  options.demand = MemoryDemand{.kv_bytes = 1 << 20, .activation_bytes = 1 << 20};
  options.available = {kMemoryReserveMin + (2 << 20) + bytes_as(WeightFormat::kInt8), "MemAvailable"};
  expect_refused(cp, "the model does not fit in memory: weights ", options);
  expect_refused(cp,
                 fmt::format("available (MemAvailable); --weights int8 would take {} for weights and fit",
                             bytes_text(bytes_as(WeightFormat::kInt8))),
                 options);
  options.available.bytes = kMemoryReserveMin + (2 << 20);
  expect_refused(cp, "available (MemAvailable)", options);
  options.available.bytes = int64_t{1} << 40;
  EXPECT_EQ(loaded(cp, options)->weights().layers.size(), 2u);
}

TEST(Weights, option_names) {
  EXPECT_FALSE(parse_weights_option("native")->has_value());
  EXPECT_EQ(parse_weights_option("int4").value(), WeightFormat::kInt4);
  EXPECT_EQ(parse_weights_option("q4_k").status().message(),
            "--weights: 'q4_k' is not one of native, bf16, fp8, int8, int4");
}

// The checkpoints made by Hugging Face's transformers.
class Fixture : public ::testing::TestWithParam<std::string> {};

TEST_P(Fixture, loads) {
  const std::string path = std::string(FATHOM_SOURCE_DIR) + "/tests/fixtures/" + GetParam();
  ThreadTeam team(1);
  const auto source = open_model_folder(path);
  ASSERT_TRUE(source.ok()) << source.status().message();
  const auto model = Model::load(**source, {}, team);
  ASSERT_TRUE(model.ok()) << model.status().message();
  for (const std::string& warning : (*model)->weights().warnings) ADD_FAILURE() << warning;
  EXPECT_EQ((*model)->weights().layers.size(), static_cast<size_t>((*model)->config().num_hidden_layers));
}

INSTANTIATE_TEST_SUITE_P(Weights, Fixture,
                         ::testing::Values("v3", "v3-bf16", "v3-fp8", "v3.1", "v2", "v2-f16", "v2-lite",
                                           "moonlight", "kimi-k2", "odd"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace fathom
