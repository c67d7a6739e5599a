// The gate and the rotary constants against an independent implementation (tests/fixtures/unit).
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "model/moe.h"

namespace fathom {
namespace {

struct GateCase {
  ModelConfig config;
  std::string name;
  std::vector<float> bias;
};

ModelConfig parse_gate_config(std::istringstream& line, std::string& name) {
  ModelConfig c;
  std::string method, key;
  line >> method >> name;
  c.topk_method = method == "noaux_tc" ? TopkMethod::kNoauxTc
                  : method == "greedy" ? TopkMethod::kGreedy
                                       : TopkMethod::kGroupLimitedGreedy;
  const bool v3 = c.topk_method == TopkMethod::kNoauxTc;
  c.architecture = v3 ? Architecture::kDeepseekV3 : Architecture::kDeepseekV2;
  c.scoring_func = v3 ? ScoringFunc::kSigmoid : ScoringFunc::kSoftmax;
  c.norm_topk_prob = v3;
  double value;
  while (line >> key >> value) {
    if (key == "experts") c.n_routed_experts = static_cast<int64_t>(value);
    if (key == "groups") c.n_group = static_cast<int64_t>(value);
    if (key == "topk_group") c.topk_group = static_cast<int64_t>(value);
    if (key == "top") c.num_experts_per_tok = static_cast<int64_t>(value);
    if (key == "scale") c.routed_scaling_factor = value;
  }
  return c;
}

template <typename T>
std::vector<T> rest_of(std::istringstream& line) {
  std::vector<T> values;
  for (T value; line >> value;) values.push_back(value);
  return values;
}

TEST(GateGolden, ChoosesWhatTheOracleChooses) {
  std::ifstream file(std::string(FATHOM_SOURCE_DIR) + "/tests/fixtures/unit/gates.txt");
  ASSERT_TRUE(file.is_open());
  GateCase current;
  std::map<int32_t, float> chosen;
  int checked = 0;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string kind;
    line >> kind;
    const GateConfig gate = gate_config(current.config);
    if (kind == "case") {
      current = {};
      current.config = parse_gate_config(line, current.name);
    } else if (kind == "bias") {
      current.bias = rest_of<float>(line);
    } else if (kind == "logits") {
      const auto logits = rest_of<float>(line);
      std::vector<int32_t> experts(gate.top_k);
      std::vector<float> weights(gate.top_k);
      gate_choose(gate, logits.data(), current.bias.empty() ? nullptr : current.bias.data(), experts.data(),
                  weights.data());
      chosen.clear();
      for (int i = 0; i < gate.top_k; ++i) chosen[experts[i]] = weights[i];
    } else if (kind == "chosen") {
      std::vector<int32_t> got;
      for (auto [expert, weight] : chosen) got.push_back(expert);
      EXPECT_EQ(got, rest_of<int32_t>(line)) << current.name;
    } else if (kind == "weights") {
      const auto want = rest_of<float>(line);
      ASSERT_EQ(want.size(), chosen.size());
      size_t i = 0;
      for (auto [expert, weight] : chosen) {
        EXPECT_NEAR(weight, want[i], 2e-6 * std::abs(want[i])) << current.name << ", expert " << expert;
        ++i;
      }
      ++checked;
    }
  }
  EXPECT_GE(checked, 10);
}

TEST(GateGolden, PublishedExampleInDoubles) {
  // 16 experts in 4 groups, 2 groups kept, top 4, scale 2.5; logit_i = 2 sin(1.7 i + 0.3), bias_i = 0.2
  // cos(0.9 i).
  std::vector<float> logits, bias;
  for (int i = 0; i < 16; ++i) {
    logits.push_back(static_cast<float>(2 * std::sin(1.7 * i + 0.3)));
    bias.push_back(static_cast<float>(0.2 * std::cos(0.9 * i)));
  }
  const GateConfig gate{.num_experts = 16, .top_k = 4, .num_groups = 4, .top_groups = 2, .scale = 2.5f};
  int32_t experts[4];
  float weights[4];
  gate_choose(gate, logits.data(), bias.data(), experts, weights);
  const int32_t want_experts[] = {1, 15, 0, 12};
  const float want_weights[] = {0.682518f, 0.614901f, 0.510545f, 0.692036f};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(experts[i], want_experts[i]);
    EXPECT_NEAR(weights[i], want_weights[i], 1e-6);
  }
}

// The settings that tests/fixtures/unit/yarn.txt names.
ModelConfig rotary_config(const std::string& name) {
  const bool uneven = name == "uneven";
  ModelConfig c;
  c.qk_rope_head_dim = uneven ? 8 : 64;
  c.qk_nope_head_dim = uneven ? 20 : 128;
  c.rope_theta = name == "kimi-k2" || name == "moonlight" ? 50000 : 10000;
  if (name == "moonlight") return c;
  c.yarn = YarnScaling{.factor = 40,
                       .original_max_position_embeddings = 4096,
                       .beta_fast = 32,
                       .beta_slow = 1,
                       .mscale = 1,
                       .mscale_all_dim = 1};
  if (name == "v2-lite") c.yarn->mscale = c.yarn->mscale_all_dim = 0.707;
  if (name == "kimi-k2") {
    c.yarn->factor = 32;
    c.yarn->beta_fast = 1;
  }
  if (uneven) {
    c.yarn->factor = 8;
    c.yarn->original_max_position_embeddings = 32;
    c.yarn->mscale = 0.707;
  }
  return c;
}

// The file holds nine digits of F32 values.
TEST(RotaryGolden, FrequenciesAndScalesAreTheOracles) {
  std::ifstream file(std::string(FATHOM_SOURCE_DIR) + "/tests/fixtures/unit/yarn.txt");
  ASSERT_TRUE(file.is_open());
  std::map<std::string, int> checked;
  std::string setting, name;
  size_t index = 0;
  for (double want = 0; file >> setting >> name >> index >> want;) {
    const ModelConfig c = rotary_config(setting);
    const std::vector<double> freqs = rope_inv_freq(c);
    ASSERT_TRUE(name != "inv_freq" || index < freqs.size()) << setting;
    const double got = name == "inv_freq"        ? freqs[index]
                       : name == "softmax_scale" ? attention_softmax_scale(c)
                                                 : rope_attention_factor(c);
    EXPECT_NEAR(got, want, 3e-7 * want) << setting << " " << name << " " << index;
    ++checked[setting];
  }
  const std::map<std::string, int> all = {
      {"v3", 34}, {"v2-lite", 34}, {"kimi-k2", 34}, {"moonlight", 34}, {"uneven", 6}};
  EXPECT_EQ(checked, all);
}

}  // namespace
}  // namespace fathom
