// Small models with random weights, and a driver of a ForwardGroup, for tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "model/forward.h"
#include "model/weights.h"

namespace fathom::testing {

// A V3 model of tiny width: one dense layer, the others MoE.
inline ModelConfig tiny_config() {
  ModelConfig c;
  c.dtype = DType::kF32;
  c.vocab_size = 96;
  c.hidden_size = 48;
  c.num_hidden_layers = 3;
  c.num_attention_heads = 3;
  c.intermediate_size = 80;
  c.q_lora_rank = 40;
  c.kv_lora_rank = 32;
  c.qk_nope_head_dim = 16;
  c.qk_rope_head_dim = 8;
  c.v_head_dim = 20;
  c.n_routed_experts = 12;
  c.n_shared_experts = 1;
  c.num_experts_per_tok = 3;
  c.moe_intermediate_size = 24;
  c.n_group = 4;
  c.topk_group = 2;
  c.routed_scaling_factor = 2.5;
  c.first_k_dense_replace = 1;
  c.max_position_embeddings = 4096;
  return c;
}

class RandomModelMaker {
 public:
  RandomModelMaker(const ModelConfig& config, WeightFormat format, uint64_t seed)
      : config_(config), format_(format), rng_(seed) {}

  std::unique_ptr<Model> make(int64_t weights_bytes) {
    w_.bytes.routed_experts = weights_bytes;
    w_.embed_dtype = DType::kF32;
    w_.embed_tokens = random(config_.vocab_size * config_.hidden_size, 1.0);
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer)
      w_.layers.push_back(make_layer(layer));
    w_.norm = ones(config_.hidden_size);
    w_.lm_head = matrix(config_.vocab_size, config_.hidden_size, format_);
    w_.attention_act = w_.ffn_act = w_.head_act = act_format_for(format_);
    w_.core_dtype = format_ == WeightFormat::kF32 ? DType::kF32 : DType::kBf16;
    return std::make_unique<Model>(config_, std::move(w_));
  }

 private:
  float* random(int64_t count, double scale) {
    w_.memory.emplace_back(count * sizeof(float));
    float* const values = w_.memory.back().as<float>();
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>((rng_.next_double() * 2 - 1) * scale);
    return values;
  }
  const float* ones(int64_t count) {
    float* const values = random(count, 0.2);
    for (int64_t i = 0; i < count; ++i) values[i] += 1.0f;
    return values;
  }
  PackedWeight pack(const float* values, int64_t n, int64_t k, WeightFormat format) {
    w_.memory.emplace_back(packed_weight_bytes(format, n, k));
    const PackedWeight w = make_packed_weight(format, n, k, w_.memory.back().data());
    pack_rows(w, 0, n, {.dtype = DType::kF32, .data = values, .n = n, .k = k}, 0);
    return w;
  }
  PackedWeight matrix(int64_t n, int64_t k, WeightFormat format) {
    return pack(random(n * k, std::sqrt(3.0 / static_cast<double>(k))), n, k, format);
  }
  SwigluWeights swiglu(int64_t width) {
    return {matrix(width, config_.hidden_size, format_), matrix(width, config_.hidden_size, format_),
            matrix(config_.hidden_size, width, format_)};
  }

  AttentionWeights make_attention() {
    AttentionWeights a;
    const ModelConfig& c = config_;
    const int64_t queries = c.num_attention_heads * c.qk_head_dim();
    if (c.q_lora_rank > 0) {
      a.q_a_proj = matrix(c.q_lora_rank, c.hidden_size, format_);
      a.q_a_layernorm = ones(c.q_lora_rank);
      a.q_b_proj = matrix(queries, c.q_lora_rank, format_);
    } else {
      a.q_proj = matrix(queries, c.hidden_size, format_);
    }
    a.kv_a_proj_with_mqa = matrix(c.kv_row_dim(), c.hidden_size, format_);
    a.kv_a_layernorm = ones(c.kv_lora_rank);
    const WeightFormat core = format_ == WeightFormat::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16;
    for (int64_t head = 0; head < c.num_attention_heads; ++head) {
      const int64_t nope = c.qk_nope_head_dim, latent = c.kv_lora_rank;
      const float* const w_uk = random(nope * latent, std::sqrt(3.0 / static_cast<double>(latent)));
      float* const w_uk_t = random(nope * latent, 1.0);
      for (int64_t i = 0; i < nope; ++i) {
        for (int64_t j = 0; j < latent; ++j) w_uk_t[j * nope + i] = w_uk[i * latent + j];
      }
      a.w_uk.push_back(pack(w_uk, nope, latent, core));
      a.w_uk_t.push_back(pack(w_uk_t, latent, nope, core));
      a.w_uv.push_back(matrix(c.v_head_dim, latent, core));
    }
    a.o_proj = matrix(c.hidden_size, c.num_attention_heads * c.v_head_dim, format_);
    return a;
  }

  LayerWeights make_layer(int64_t layer) {
    LayerWeights l;
    l.input_layernorm = ones(config_.hidden_size);
    l.self_attn = make_attention();
    l.post_attention_layernorm = ones(config_.hidden_size);
    l.is_moe = config_.is_moe_layer(layer);
    if (!l.is_moe) {
      l.mlp = swiglu(config_.intermediate_size);
      return l;
    }
    l.moe.gate = matrix(config_.n_routed_experts, config_.hidden_size, WeightFormat::kF32);
    l.moe.e_score_correction_bias = random(config_.n_routed_experts, 0.1);
    for (int64_t e = 0; e < config_.n_routed_experts; ++e)
      l.moe.experts.push_back(swiglu(config_.moe_intermediate_size));
    if (config_.n_shared_experts > 0) l.moe.shared_experts = swiglu(config_.shared_intermediate_size());
    return l;
  }

  const ModelConfig config_;
  const WeightFormat format_;
  Rng rng_;
  ModelWeights w_;
};

// weights_bytes: what the model says it takes, from which other memory is measured out.
inline std::unique_ptr<Model> random_model(const ModelConfig& config, WeightFormat format, uint64_t seed,
                                           int64_t weights_bytes = 0) {
  return RandomModelMaker(config, format, seed).make(weights_bytes);
}

inline KvLayout kv_layout(const Model& model) {
  return {.num_layers = static_cast<int32_t>(model.config().num_hidden_layers),
          .latent_dim = static_cast<int32_t>(model.config().kv_lora_rank),
          .rope_dim = static_cast<int32_t>(model.config().qk_rope_head_dim),
          .dtype = model.weights().core_dtype};
}

// A prompt's place in a KV storage: blocks [first_block, …) in order.
struct TestSequence {
  std::vector<int32_t> tokens;
  std::vector<BlockId> blocks;
  int32_t stored = 0;  // tokens whose KV has been computed
  uint64_t pass = 0;   // SequenceChunk::pass
};

inline TestSequence test_sequence(std::vector<int32_t> tokens, int32_t first_block, int32_t max_tokens) {
  TestSequence sequence{.tokens = std::move(tokens), .pass = static_cast<uint64_t>(first_block) + 1};
  for (int32_t i = 0; i < blocks_for_tokens(max_tokens); ++i)
    sequence.blocks.push_back(BlockId{first_block + i});
  return sequence;
}

// The next `count` tokens of a sequence as a chunk; call advance after the step.
inline SequenceChunk next_chunk(const TestSequence& sequence, int64_t count, bool want_logits) {
  const auto rest = static_cast<int64_t>(sequence.tokens.size()) - sequence.stored;
  return {.tokens = std::span(sequence.tokens).subspan(sequence.stored, std::min(count, rest)),
          .start = sequence.stored,
          .blocks = sequence.blocks,
          .want_logits = want_logits,
          .pass = sequence.pass};
}

}  // namespace fathom::testing
