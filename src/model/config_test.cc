// Published configs and their golden numbers (DeepSeek-V3, V2-Lite, V2, Moonlight, Kimi-K2 shapes), both ways
// of writing RoPE and dtype, defaults, and every refusal.
#include "model/config.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace fathom {
namespace {

using Json = nlohmann::json;

const Json kYarn = {{"type", "yarn"},       {"factor", 40},   {"original_max_position_embeddings", 4096},
                    {"beta_fast", 32},      {"beta_slow", 1}, {"mscale", 1.0},
                    {"mscale_all_dim", 1.0}};

Json v3_json() {
  return {{"architectures", {"DeepseekV3ForCausalLM"}},
          {"model_type", "deepseek_v3"},
          {"vocab_size", 129280},
          {"hidden_size", 7168},
          {"num_hidden_layers", 61},
          {"num_attention_heads", 128},
          {"num_key_value_heads", 128},
          {"q_lora_rank", 1536},
          {"kv_lora_rank", 512},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"v_head_dim", 128},
          {"intermediate_size", 18432},
          {"moe_intermediate_size", 2048},
          {"n_routed_experts", 256},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 8},
          {"n_group", 8},
          {"topk_group", 4},
          {"topk_method", "noaux_tc"},
          {"scoring_func", "sigmoid"},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", 2.5},
          {"first_k_dense_replace", 3},
          {"moe_layer_freq", 1},
          {"num_nextn_predict_layers", 1},
          {"rope_theta", 10000},
          {"rope_scaling", kYarn},
          {"max_position_embeddings", 163840},
          {"rms_norm_eps", 1e-6},
          {"bos_token_id", 0},
          {"eos_token_id", 1},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"},
          {"quantization_config",
           {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {128, 128}}}}};
}

Json v2_lite_json() {
  Json json = v3_json();
  json.erase("quantization_config");
  json.erase("num_nextn_predict_layers");
  json.merge_patch({{"architectures", {"DeepseekV2ForCausalLM"}},
                    {"model_type", "deepseek_v2"},
                    {"vocab_size", 102400},
                    {"hidden_size", 2048},
                    {"num_hidden_layers", 27},
                    {"num_attention_heads", 16},
                    {"num_key_value_heads", 16},
                    {"intermediate_size", 10944},
                    {"moe_intermediate_size", 1408},
                    {"n_routed_experts", 64},
                    {"n_shared_experts", 2},
                    {"num_experts_per_tok", 6},
                    {"n_group", 1},
                    {"topk_group", 1},
                    {"topk_method", "greedy"},
                    {"scoring_func", "softmax"},
                    {"norm_topk_prob", false},
                    {"routed_scaling_factor", 1.0},
                    {"first_k_dense_replace", 1},
                    {"bos_token_id", 100000},
                    {"eos_token_id", 100001}});
  json["q_lora_rank"] = nullptr;
  json["rope_scaling"]["mscale"] = 0.707;
  json["rope_scaling"]["mscale_all_dim"] = 0.707;
  return json;
}

Json moonlight_json() {
  Json json = v2_lite_json();
  json.erase("rope_scaling");
  json.merge_patch({{"architectures", {"DeepseekV3ForCausalLM"}},
                    {"model_type", "deepseek_v3"},
                    {"vocab_size", 163840},
                    {"intermediate_size", 11264},
                    {"topk_method", "noaux_tc"},
                    {"scoring_func", "sigmoid"},
                    {"norm_topk_prob", true},
                    {"routed_scaling_factor", 2.446},
                    {"rope_theta", 50000},
                    {"max_position_embeddings", 8192},
                    {"rms_norm_eps", 1e-5},
                    {"bos_token_id", 163584},
                    {"eos_token_id", 163586},
                    {"num_nextn_predict_layers", 0}});
  return json;
}

Result<ModelConfig> parse(const Json& json, std::string_view generation = {}) {
  return parse_model_config("model", json.dump(), generation);
}

ModelConfig parsed(const Json& json) {
  auto config = parse(json);
  CHECK_MSG(config.ok(), config.status().message());
  return *config;
}

TEST(ModelConfig, deepseek_v3_as_published) {
  const ModelConfig c = parsed(v3_json());
  EXPECT_EQ(c.architecture, Architecture::kDeepseekV3);
  EXPECT_EQ(c.q_lora_rank, 1536);
  EXPECT_EQ(c.kv_row_dim(), 576);
  EXPECT_EQ(c.qk_head_dim(), 192);
  EXPECT_EQ(c.topk_method, TopkMethod::kNoauxTc);
  EXPECT_EQ(c.n_group, 8);
  EXPECT_EQ(c.topk_group, 4);
  EXPECT_TRUE(c.scales_routed_weights());
  EXPECT_FALSE(c.is_moe_layer(2));
  EXPECT_TRUE(c.is_moe_layer(3));
  EXPECT_EQ(c.num_moe_layers(), 58);
  EXPECT_EQ(c.quant_method, QuantMethod::kFp8Blocks);
  EXPECT_FALSE(c.scale_fmt_ue8m0);
  EXPECT_EQ(c.eos_token_ids, std::vector<int32_t>{1});
  EXPECT_EQ(kv_bytes_per_token(c, DType::kBf16), 70272);
  EXPECT_NEAR(attention_softmax_scale(c), 0.1352337789, 1e-10);
  EXPECT_DOUBLE_EQ(rope_attention_factor(c), 1.0);

  const ParameterCounts counts = count_parameters(c);
  EXPECT_EQ(counts.attention / 61, 187107328);
  EXPECT_EQ(counts.dense_mlp / 3, 396361728);
  EXPECT_EQ(counts.routed_experts / (58 * 256), 44040192);
  EXPECT_NEAR(static_cast<double>(counts.total), 671.03e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(counts.active), 37.55e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(counts.mtp), 11.5e9, 0.15e9);

  Json v31 = v3_json();
  v31["quantization_config"]["scale_fmt"] = "ue8m0";
  EXPECT_TRUE(parsed(v31).scale_fmt_ue8m0);
}

TEST(ModelConfig, yarn_frequencies_golden) {
  const std::vector<double> freqs = rope_inv_freq(parsed(v3_json()));
  ASSERT_EQ(freqs.size(), 32u);
  const std::vector<std::pair<size_t, double>> golden = {
      {0, 1.0},     {1, 0.7498942093},   {10, 0.0562341325},    {11, 0.0390069266},
      {16, 0.0055}, {22, 1.77827941e-4}, {23, 3.3338035804e-5}, {31, 3.3338035804e-6}};
  for (const auto& [i, value] : golden) EXPECT_NEAR(freqs[i], value, value * 1e-8) << i;
}

TEST(ModelConfig, v2_lite_as_published) {
  const ModelConfig c = parsed(v2_lite_json());
  EXPECT_EQ(c.architecture, Architecture::kDeepseekV2);
  EXPECT_EQ(c.q_lora_rank, 0);
  EXPECT_EQ(c.topk_method, TopkMethod::kGreedy);
  EXPECT_EQ(c.scoring_func, ScoringFunc::kSoftmax);
  EXPECT_NEAR(attention_softmax_scale(c), 0.1147213868, 1e-10);
  EXPECT_DOUBLE_EQ(rope_attention_factor(c), 1.0);
  EXPECT_EQ(kv_bytes_per_token(c, DType::kBf16), 31104);
  EXPECT_NEAR(static_cast<double>(count_parameters(c).total), 15.706e9, 0.0006e9);
  EXPECT_EQ(count_parameters(c).mtp, 0);
}

TEST(ModelConfig, moonlight_has_no_yarn) {
  const ModelConfig c = parsed(moonlight_json());
  EXPECT_FALSE(c.yarn.has_value());
  EXPECT_NEAR(attention_softmax_scale(c), 0.0721687836, 1e-10);
  EXPECT_DOUBLE_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_NEAR(rope_inv_freq(c)[1], std::pow(50000.0, -1.0 / 32), 1e-12);
  const ParameterCounts counts = count_parameters(c);
  EXPECT_NEAR(static_cast<double>(counts.total - counts.embedding - counts.head), 15.29e9, 0.006e9);
}

TEST(ModelConfig, v2_with_groups_and_kimi_shapes) {
  Json v2 = v2_lite_json();
  v2.merge_patch({{"topk_method", "group_limited_greedy"},
                  {"n_routed_experts", 160},
                  {"n_group", 8},
                  {"topk_group", 3},
                  {"num_hidden_layers", 60},
                  {"routed_scaling_factor", 16.0},
                  {"q_lora_rank", 1536}});
  const ModelConfig c = parsed(v2);
  EXPECT_EQ(c.topk_method, TopkMethod::kGroupLimitedGreedy);
  EXPECT_EQ(c.n_group, 8);
  EXPECT_EQ(kv_bytes_per_token(c, DType::kBf16), 69120);
  v2["norm_topk_prob"] = true;
  EXPECT_FALSE(parsed(v2).scales_routed_weights()) << "V2 normalises or scales, not both";

  Json kimi = v3_json();
  kimi.merge_patch({{"model_type", "kimi_k2"},
                    {"vocab_size", 163840},
                    {"num_attention_heads", 64},
                    {"num_key_value_heads", 64},
                    {"n_routed_experts", 384},
                    {"n_group", 1},
                    {"topk_group", 1},
                    {"first_k_dense_replace", 1},
                    {"routed_scaling_factor", 2.827},
                    {"rope_theta", 50000},
                    {"num_nextn_predict_layers", 0}});
  kimi["rope_scaling"]["factor"] = 32;
  EXPECT_NEAR(static_cast<double>(count_parameters(parsed(kimi)).total), 1026e9, 1e9);
}

TEST(ModelConfig, newer_spellings_mean_the_same) {
  Json json = v3_json();
  json["rope_parameters"] = kYarn;
  json["rope_parameters"].erase("type");
  json["rope_parameters"]["rope_type"] = "yarn";
  json["rope_parameters"]["rope_theta"] = 10000.0;
  json.erase("rope_scaling");
  json.erase("rope_theta");
  json.erase("torch_dtype");
  json["dtype"] = "float32";
  json["num_mtp_layers"] = json["num_nextn_predict_layers"];
  json.erase("num_nextn_predict_layers");
  const ModelConfig c = parsed(json);
  EXPECT_EQ(c.dtype, DType::kF32);
  EXPECT_EQ(c.num_nextn_predict_layers, 1);
  EXPECT_EQ(rope_inv_freq(c), rope_inv_freq(parsed(v3_json())));
  EXPECT_EQ(attention_softmax_scale(c), attention_softmax_scale(parsed(v3_json())));

  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 50000.0}};
  EXPECT_EQ(rope_inv_freq(parsed(json)), rope_inv_freq(parsed(moonlight_json())));
}

TEST(ModelConfig, mscale_conventions) {
  Json json = v3_json();
  json["rope_scaling"]["mscale_all_dim"] = 0;
  const ModelConfig c = parsed(json);
  EXPECT_NEAR(attention_softmax_scale(c), 0.0721687836, 1e-10) << "no m² without mscale_all_dim";
  EXPECT_NEAR(rope_attention_factor(c), 0.1 * std::log(40.0) + 1, 1e-12);
  json["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_EQ(rope_attention_factor(parsed(json)), 1.5);
  json["rope_scaling"]["factor"] = nullptr;
  EXPECT_EQ(parsed(json).yarn->factor, 40.0) << "max_position_embeddings / original";
}

TEST(ModelConfig, optional_keys_have_their_published_defaults) {
  Json json = v3_json();
  for (const char* key :
       {"topk_method", "scoring_func", "norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group",
        "first_k_dense_replace", "moe_layer_freq", "num_nextn_predict_layers", "rope_theta", "rms_norm_eps",
        "bos_token_id", "eos_token_id", "hidden_act", "attention_bias", "tie_word_embeddings", "torch_dtype",
        "num_key_value_heads", "model_type"}) {
    json.erase(key);
  }
  const ModelConfig c = parsed(json);
  EXPECT_EQ(c.topk_method, TopkMethod::kNoauxTc);
  EXPECT_EQ(c.n_group, 8);
  EXPECT_EQ(c.topk_group, 4);
  EXPECT_EQ(c.first_k_dense_replace, 3);
  EXPECT_DOUBLE_EQ(c.routed_scaling_factor, 2.5);
  EXPECT_EQ(c.num_nextn_predict_layers, 0);
  EXPECT_EQ(c.dtype, DType::kBf16);
  EXPECT_TRUE(c.eos_token_ids.empty());

  Json lite = v2_lite_json();
  for (const char* key : {"topk_method", "scoring_func", "norm_topk_prob", "n_group", "topk_group"})
    lite.erase(key);
  EXPECT_EQ(parsed(lite).topk_method, TopkMethod::kGreedy);
  EXPECT_FALSE(parsed(lite).norm_topk_prob);
  lite["topk_method"] = "gready";
  EXPECT_EQ(parsed(lite).topk_method, TopkMethod::kGreedy);

  Json dense = v3_json();
  dense["n_routed_experts"] = nullptr;
  EXPECT_EQ(parsed(dense).num_moe_layers(), 0);
}

TEST(ModelConfig, every_second_layer_can_be_moe) {
  Json json = v3_json();
  json["moe_layer_freq"] = 2;
  const ModelConfig c = parsed(json);
  EXPECT_FALSE(c.is_moe_layer(3));
  EXPECT_TRUE(c.is_moe_layer(4));
}

TEST(ModelConfig, generation_config_decides_the_eos_list) {
  EXPECT_EQ(parse(v3_json(), R"({"eos_token_id":[5,7]})")->eos_token_ids, (std::vector<int32_t>{5, 7}));
  EXPECT_EQ(parse(v3_json(), R"({"temperature":0.6})")->eos_token_ids, (std::vector<int32_t>{1}));
  EXPECT_EQ(parse(v3_json(), R"({"eos_token_id":129280})").status().message(),
            "model/generation_config.json: eos_token_id: 129280 is not a token id below vocab_size 129280");
  EXPECT_EQ(parse(v3_json(), "[]").status().message(), "model/generation_config.json: not a JSON object");
}

struct Refusal {
  Json patch;  // merged into V3's config; null removes the key
  std::string_view message;
};

void expect_refusals(const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    Json json = v3_json();
    json.merge_patch(refusal.patch);
    const auto config = parse(json);
    ASSERT_FALSE(config.ok()) << refusal.patch.dump();
    const std::string message = config.status().message();
    EXPECT_NE(message.find(refusal.message), std::string::npos)
        << message << "\n  lacks: " << refusal.message;
    EXPECT_TRUE(message.starts_with("model/config.json: ")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(ModelConfig, refusals_name_file_key_and_reason) {
  expect_refusals({
      {{{"architectures", {"LlamaForCausalLM"}}},
       "model/config.json: architectures: 'LlamaForCausalLM' is not supported (known: DeepseekV2ForCausalLM, "
       "DeepseekV3ForCausalLM)"},
      {{{"architectures", "DeepseekV3ForCausalLM"}}, "architectures: expected a list of one name"},
      {{{"architectures", nullptr}, {"model_type", "llama"}}, "architectures: missing"},
      {{{"vocab_size", nullptr}}, "model/config.json: vocab_size: missing"},
      {{{"hidden_size", 0}}, "hidden_size: expected an integer from 1 to 131072, got 0"},
      {{{"hidden_size", "7168"}}, "hidden_size: expected an integer from 1 to 131072, got '7168'"},
      {{{"hidden_size", 7168.0}}, "hidden_size: expected an integer"},
      {{{"num_hidden_layers", -1}}, "num_hidden_layers: expected"},
      {{{"num_hidden_layers", 18446744073709551615u}}, "num_hidden_layers: expected"},
      {{{"kv_lora_rank", {1}}}, "kv_lora_rank: expected an integer from 1 to 131072, got an array"},
      {{{"q_lora_rank", 0}}, "q_lora_rank: expected an integer from 1"},
      {{{"qk_rope_head_dim", 63}}, "qk_rope_head_dim: must be even"},
      {{{"num_key_value_heads", 8}}, "num_key_value_heads: 8 differs from num_attention_heads 128"},
      {{{"attention_bias", true}}, "attention_bias: true is not supported"},
      {{{"attention_bias", 1}}, "attention_bias: expected true or false, got 1"},
      {{{"rope_interleave", false}}, "rope_interleave: false is not supported"},
      {{{"hidden_act", "gelu"}}, "hidden_act: 'gelu' is not supported (known: silu)"},
      {{{"torch_dtype", "float64"}}, "torch_dtype: 'float64' is not supported"},
      {{{"rms_norm_eps", -1.0}}, "rms_norm_eps: expected a number from 0 to 1, got -1.0"},
      {{{"num_experts_per_tok", 0}}, "num_experts_per_tok: expected an integer from 1 to 256, got 0"},
      {{{"num_experts_per_tok", 129}},
       "num_experts_per_tok: 129 is more than the 128 experts in 4 group(s) of 32"},
      {{{"n_group", 7}}, "n_group: 7 does not divide n_routed_experts 256"},
      {{{"topk_group", 9}}, "topk_group: 9 is more than n_group 8"},
      {{{"n_group", 256}, {"topk_group", 256}}, "groups need at least two"},
      {{{"topk_method", "greedy"}},
       "topk_method: 'greedy' is not supported for DeepseekV3ForCausalLM (known: noaux_tc)"},
      {{{"scoring_func", "softmax"}}, "scoring_func: 'softmax' is not supported for DeepseekV3ForCausalLM"},
  });
}

TEST(ModelConfig, refusals_name_the_key_within_an_object) {
  expect_refusals({
      {{{"rope_scaling", {{"type", "linear"}}}},
       "model/config.json: rope_scaling: type: 'linear' is not supported (known: default, yarn)"},
      {{{"rope_scaling", {{"original_max_position_embeddings", nullptr}}}},
       "rope_scaling: original_max_position_embeddings: missing"},
      {{{"rope_scaling", {{"factor", 0.5}}}}, "rope_scaling: factor: expected a number from 1"},
      {{{"rope_scaling", 3}}, "rope_scaling: expected an object"},
      {{{"rope_theta", 1}}, "rope_theta: expected"},
      {{{"quantization_config", {{"quant_method", "awq"}}}},
       "model/config.json: quantization_config: quant_method: 'awq' is not supported (known: fp8, fathom)"},
      {{{"quantization_config", {{"weight_block_size", {64, 64}}}}},
       "weight_block_size: only [128, 128] is supported"},
      {{{"quantization_config", {{"weight_block_size", nullptr}}}}, "weight_block_size: missing"},
      {{{"quantization_config", {{"fmt", "e5m2"}}}}, "fmt: 'e5m2' is not supported"},
      {{{"quantization_config", {{"activation_scheme", "static"}}}},
       "activation_scheme: 'static' is not supported"},
      {{{"quantization_config", {{"scale_fmt", "x"}}}}, "scale_fmt: 'x' is not supported"},
      {{{"quantization_config", {{"quant_method", "fathom"}, {"format_version", 3}, {"weights", "int8"}}}},
       "format_version: 3 is newer"},
      {{{"quantization_config", {{"quant_method", "fathom"}, {"format_version", 1}}}}, "weights: missing"},
      {{{"quantization_config", "fp8"}}, "quantization_config: expected an object"},
      {{{"eos_token_id", -1}}, "eos_token_id: -1 is not a token id"},
      {{{"eos_token_id", {1, "x"}}}, "eos_token_id: 'x' is not a token id"},
  });
}

TEST(ModelConfig, unknown_layouts_of_converted_folders_are_refused) {
  const auto message = [](Json layout) {
    Json config = v3_json();
    config["quantization_config"] = {{"quant_method", "fathom"}, {"format_version", 2}, {"weights", "int8"}};
    if (!layout.is_null()) config["quantization_config"]["layout"] = std::move(layout);
    return parse_model_config("model", config.dump()).status().message();
  };
  EXPECT_EQ(message("panels-1"), "");
  EXPECT_NE(message(nullptr).find("layout: '' is not known (known: panels-1)"), std::string::npos);
  EXPECT_NE(message("panels-2").find("'panels-2' is not known (known: panels-1); convert the original again"),
            std::string::npos);
}

TEST(ModelConfig, malformed_json_is_refused_with_its_position) {
  const auto message = [](std::string_view text) { return parse_model_config("m", text).status().message(); };
  EXPECT_NE(message("{\"a\": }").find("m/config.json: malformed JSON: parse error at line 1, column 7"),
            std::string::npos)
      << message("{\"a\": }");
  EXPECT_NE(message("").find("malformed JSON"), std::string::npos);
  EXPECT_NE(message("{\"a\": 1e999}").find("malformed JSON: number overflow"), std::string::npos)
      << message("{\"a\": 1e999}");
  EXPECT_EQ(message(std::string_view("{}\0 garbage", 11)), "m/config.json: malformed JSON: it holds a NUL");
  EXPECT_EQ(message("[]"), "m/config.json: not a JSON object");
  EXPECT_EQ(message(R"({"a":{"b":1,"c":{"b":1},"d":[{"b":1},{"b":1}]},"b":1,"a":2})"),
            "m/config.json: 'a' occurs twice");
  EXPECT_NE(message(R"({"a":{"x":{}, "b":1,"b":1}})").find("'b' occurs twice"), std::string::npos);
  EXPECT_EQ(message(R"({"a":)" + std::string(200000, '[') + std::string(200000, ']') + "}"),
            "m/config.json: nested deeper than 64");
}

TEST(ModelConfig, no_mutation_of_a_config_stops_the_process) {
  EXPECT_TRUE(rc::check("a changed byte gives a config or one line", [] {
    static const std::string text = v3_json().dump();
    std::string changed = text;
    const int edits = *rc::gen::inRange(1, 4);
    for (int i = 0; i < edits; ++i)
      changed[*rc::gen::inRange<size_t>(0, text.size())] = *rc::gen::arbitrary<char>();
    const auto config = parse_model_config("m", changed);
    if (config.ok()) {
      RC_ASSERT(count_parameters(*config).total > 0);
      RC_ASSERT(rope_inv_freq(*config).size() == static_cast<size_t>(config->qk_rope_head_dim / 2));
    } else {
      RC_ASSERT(config.status().message().find('\n') == std::string::npos);
    }
  }));
}

}  // namespace
}  // namespace fathom
