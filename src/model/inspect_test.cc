// Inspection of folders with and without weights, and of broken ones.
#include "model/inspect.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/checkpoint_testing.h"

namespace fathom {
namespace {

using testing::Checkpoint;
using testing::TempFolder;

TEST(Inspect, the_config_alone_gives_the_counts) {
  TempFolder folder;
  folder.write("config.json",
               R"({"architectures":["DeepseekV2ForCausalLM"],"vocab_size":102400,"hidden_size":2048,
    "num_hidden_layers":27,"num_attention_heads":16,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,
    "v_head_dim":128,"intermediate_size":10944,"moe_intermediate_size":1408,"n_routed_experts":64,"n_shared_experts":2,
    "num_experts_per_tok":6,"first_k_dense_replace":1,"max_position_embeddings":163840,"torch_dtype":"bfloat16"})");
  const auto model = inspect_model(*folder.source());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::string text = inspection_text(*model);
  for (const char* wanted : {"DeepseekV2ForCausalLM", "27: 1 dense, 26 MoE", "15.71 B total",
                             "31104 B per token (BF16)", "no weights in this folder"}) {
    EXPECT_NE(text.find(wanted), std::string::npos) << wanted << "\n" << text;
  }
  const auto json = nlohmann::json::parse(inspection_json(*model));
  EXPECT_EQ(json["parameters"]["total"], 15706484224);
  EXPECT_EQ(json["kv_bytes_per_token"], 31104);
  EXPECT_TRUE(json["weights"].is_null());
}

TEST(Inspect, weights_are_counted_by_kind_and_format) {
  TempFolder folder;
  const Checkpoint cp = Checkpoint::make(DType::kBf16, true);
  cp.write(folder, 2);
  const auto model = inspect_model(*folder.source());
  ASSERT_TRUE(model.ok()) << model.status().message();
  ASSERT_TRUE(model->weights.has_value());
  int64_t bytes = 0;
  for (const auto& [name, tensor] : cp.tensors) bytes += static_cast<int64_t>(tensor.bytes.size());
  EXPECT_EQ(model->weights->checkpoint_bytes, bytes);
  EXPECT_EQ(model->weights->num_files, 2);
  EXPECT_EQ(model->weights->mtp_modules, 1);
  EXPECT_LT(model->weights->loaded.at("int4").routed_experts,
            model->weights->loaded.at("int8").routed_experts);
  EXPECT_LT(model->weights->loaded.at("int8").routed_experts,
            model->weights->loaded.at("native").routed_experts);
  ThreadTeam team(1);
  EXPECT_EQ(Model::load(*folder.source(), {}, team).value()->weights().bytes.total(),
            model->weights->loaded.at("native").total());
  // The counted parameters are those of the tensors (embedding and head copies of the MTP module aside).
  int64_t elements = 0;
  for (const auto& [name, tensor] : cp.tensors) {
    if (name.find("shared_head.head") != std::string::npos || name == "model.layers.2.embed_tokens.weight")
      continue;
    elements += static_cast<int64_t>(tensor.bytes.size()) / dtype_bytes(tensor.dtype);
  }
  EXPECT_EQ(model->parameters.total + model->parameters.mtp, elements);
  const auto json = nlohmann::json::parse(inspection_json(*model));
  EXPECT_EQ(json["weights"]["memory_bytes"]["native"]["total"], model->weights->loaded.at("native").total());
  EXPECT_NE(inspection_text(*model).find("as int4"), std::string::npos);
}

TEST(Inspect, kv_is_f32_where_the_model_runs_in_f32) {
  TempFolder folder;
  Checkpoint::make(DType::kF32).write(folder);
  EXPECT_EQ(inspect_model(*folder.source())->kv_bytes_per_token, (48 + 8) * 2 * 4);
}

TEST(Inspect, broken_weights_are_an_error) {
  TempFolder folder;
  Checkpoint cp = Checkpoint::make(DType::kBf16);
  cp.tensors.erase("lm_head.weight");
  cp.write(folder);
  EXPECT_EQ(inspect_model(*folder.source()).status().message(),
            folder.path() + ": model.safetensors: 'lm_head.weight': the tensor is missing");
}

}  // namespace
}  // namespace fathom
