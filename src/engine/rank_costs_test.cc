// Costs from a model's shape: V3's are the fleet profile's, a small model's are not, and the choice of a rank
// follows them.
#include "engine/rank_costs.h"

#include <gtest/gtest.h>

#include "balance/decode_balancer.h"
#include "engine/rank_choice.h"

namespace fathom {
namespace {

ModelConfig deepseek_v3() {
  ModelConfig c;
  c.vocab_size = 129280, c.hidden_size = 7168, c.num_hidden_layers = 61, c.num_attention_heads = 128;
  c.intermediate_size = 18432, c.q_lora_rank = 1536, c.kv_lora_rank = 512;
  c.qk_nope_head_dim = 128, c.qk_rope_head_dim = 64, c.v_head_dim = 128;
  c.n_routed_experts = 256, c.n_shared_experts = 1, c.num_experts_per_tok = 8;
  c.moe_intermediate_size = 2048, c.first_k_dense_replace = 3;
  return c;
}

// The built-in model's shape.
ModelConfig small_model() {
  ModelConfig c;
  c.vocab_size = 2048, c.hidden_size = 128, c.num_hidden_layers = 5, c.num_attention_heads = 4;
  c.intermediate_size = 384, c.q_lora_rank = 96, c.kv_lora_rank = 64;
  c.qk_nope_head_dim = 32, c.qk_rope_head_dim = 32, c.v_head_dim = 32;
  c.n_routed_experts = 16, c.n_shared_experts = 1, c.num_experts_per_tok = 4;
  c.moe_intermediate_size = 96, c.first_k_dense_replace = 1;
  return c;
}

double pair_over_token(const PrefillCost& cost) { return cost.ns_per_pair / cost.ns_per_token; }

TEST(RankCosts, FollowTheModelsShape) {
  const PrefillCost v3 = rank_costs_of(deepseek_v3(), false).prefill;
  // 187.1 M parameters of attention and 9 experts of 44.04 M each in most of 61 layers, two FLOP each.
  EXPECT_NEAR(v3.ns_per_token, 2e-3 * (187.1e6 + 9 * 44.04e6), 0.02 * v3.ns_per_token);
  EXPECT_NEAR(v3.ns_per_pair, 2e-3 * 128 * (192 + 128), 1e-9);
  // An H800 attends at half to two thirds of its matrices' speed.
  EXPECT_NEAR(pair_over_token(v3) / pair_over_token(PrefillCost{}), 0.7, 0.1);
  EXPECT_NEAR(rank_costs_of(deepseek_v3(), true).prefill.ns_per_pair, 2e-3 * 128 * (576 + 512), 1e-9);
  EXPECT_GT(pair_over_token(rank_costs_of(small_model(), false).prefill),
            10 * pair_over_token(PrefillCost{}));
}

// One long prompt against four short ones with a third more tokens. On V3 the tokens decide, on a small model
// the long prompt's attention.
TEST(RankCosts, DecideThePrefillRank) {
  const auto rank_of = [](const PrefillCost& cost) {
    std::vector<RankLoad> loads(2);
    loads[0] += {1, 6000, cost.cost_ns(6000, 0)};
    for (int i = 0; i < 4; ++i) loads[1] += {1, 2000, cost.cost_ns(2000, 0)};
    return make_prefill_choice(2, cost)(loads, {1, 100, cost.cost_ns(100, 0)});
  };
  EXPECT_EQ(rank_of(PrefillCost{}), 0);
  EXPECT_EQ(rank_of(rank_costs_of(deepseek_v3(), false).prefill), 0);
  EXPECT_EQ(rank_of(rank_costs_of(small_model(), false).prefill), 1);
}

// By shape alone; an H800 attends at about half its matrices' speed, which the default takes in.
TEST(RankCosts, SayWhenADecodeRanksCountGoesFirst) {
  const int64_t v3 = rank_costs_of(deepseek_v3(), false).request_kv_tokens;
  EXPECT_GT(v3, DecodeBalancerOptions{}.request_kv_tokens);
  EXPECT_LT(v3, 2 * DecodeBalancerOptions{}.request_kv_tokens);
  const int64_t small = rank_costs_of(small_model(), false).request_kv_tokens;
  EXPECT_LT(small, v3 / 5);
  // 200 KV tokens a request are little on V3, where counts decide; on the small model KV does.
  const std::vector<RankLoad> loads = {{40, 8000, 0}, {41, 7600, 0}, {40, 8100, 0}, {40, 8200, 0}};
  EXPECT_EQ(make_decode_choice({4, 64, v3})(loads, {1, 450, 100}), 0);
  EXPECT_EQ(make_decode_choice({4, 64, small})(loads, {1, 450, 100}), 1);
}

}  // namespace
}  // namespace fathom
