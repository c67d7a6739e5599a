// The weights of a model, packed in the order the chosen kernels read them. Immutable once loaded and shared
// by every rank of a process. Members have the checkpoint's names, which are DeepSeek's own.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/numa.h"
#include "base/status.h"
#include "base/thread_team.h"
#include "kernels/linear.h"
#include "model/config.h"
#include "model/memory_plan.h"
#include "tensor/arena.h"
#include "tensor/model_source.h"

namespace fathom {

// down(silu(gate(x)) · up(x)). w.n == 0 in all three: there is none.
struct SwigluWeights {
  PackedWeight gate, up;  // [width, hidden]
  PackedWeight down;      // [hidden, width]

  bool present() const { return down.n > 0; }
};

// kv_b_proj, rows per head [k_nope | v], is held per head: prefill expands keys and values from the latent
// with w_uk and w_uv, decode absorbs w_uk_t into the query and w_uv into the output. BF16, also where the
// checkpoint is FP8 or the other layers are quantised, since the attention core is; F32 or F16 in models that
// run in F32.
struct AttentionWeights {
  PackedWeight q_proj;    // [heads · (nope + rope), hidden]; only when q_lora_rank is 0, else the next three
  PackedWeight q_a_proj;  // [q_lora, hidden]
  const float* q_a_layernorm = nullptr;   // [q_lora]
  PackedWeight q_b_proj;                  // [heads · (nope + rope), q_lora]
  PackedWeight kv_a_proj_with_mqa;        // [kv_lora + rope, hidden]
  const float* kv_a_layernorm = nullptr;  // [kv_lora]
  std::vector<PackedWeight> w_uk;         // per head [nope, kv_lora]
  std::vector<PackedWeight> w_uk_t;       // per head [kv_lora, nope]
  std::vector<PackedWeight> w_uv;         // per head [v, kv_lora]
  PackedWeight o_proj;                    // [hidden, heads · v]
};

struct MoeWeights {
  PackedWeight gate;                               // F32 [n_routed_experts, hidden]
  const float* e_score_correction_bias = nullptr;  // [n_routed_experts]; null without noaux_tc
  std::vector<SwigluWeights> experts;              // n_routed_experts of width moe_intermediate_size
  SwigluWeights
      shared_experts;  // one of width n_shared_experts · moe_intermediate_size; not present() if none
};

struct LayerWeights {
  const float* input_layernorm = nullptr;  // [hidden]
  AttentionWeights self_attn;
  const float* post_attention_layernorm = nullptr;  // [hidden]
  bool is_moe = false;
  SwigluWeights mlp;  // dense layers
  MoeWeights moe;     // MoE layers
};

// One multi-token-prediction module: h' = eh_proj [enorm(Emb(t)) ; hnorm(h)], one layer, its own norm, then
// the main model's head. The embedding and head copies some checkpoints carry are not read.
struct MtpWeights {
  const float* enorm = nullptr;  // [hidden]
  const float* hnorm = nullptr;  // [hidden]
  PackedWeight eh_proj;          // [hidden, 2 · hidden]
  LayerWeights layer;
  const float* shared_head_norm = nullptr;  // [hidden]
};

// Bytes in memory, by what they are for.
struct WeightBytes {
  int64_t embedding = 0;
  int64_t head = 0;
  int64_t attention = 0;
  int64_t dense_mlp = 0;
  int64_t routed_experts = 0;
  int64_t shared_experts = 0;
  int64_t gate_and_norms = 0;
  int64_t mtp = 0;

  int64_t total() const {
    return embedding + head + attention + dense_mlp + routed_experts + shared_experts + gate_and_norms + mtp;
  }
};

struct ModelWeights {
  DType embed_dtype = DType::kBf16;    // F32, BF16 or F16: as in the checkpoint
  const void* embed_tokens = nullptr;  // [vocab, hidden] row-major
  std::vector<LayerWeights> layers;
  const float* norm = nullptr;  // [hidden]
  PackedWeight lm_head;         // [vocab, hidden]
  std::vector<MtpWeights> mtp;  // empty when the checkpoint has none

  // What the linear layers of each kind read, the same in all layers.
  ActFormat attention_act = ActFormat::kBf16;  // q, kv_a and o projections
  ActFormat ffn_act = ActFormat::kBf16;        // dense, shared and routed experts
  ActFormat head_act = ActFormat::kBf16;
  // Attention core, KV and combine: F32 where the attention's linear layers run in F32, else BF16.
  DType core_dtype = DType::kBf16;

  WeightBytes bytes;
  // Hex SHA-256 over config, tensor names, formats and samples of every tensor: KV made by one model is never
  // taken for another's. Equal on every machine and for every ISA.
  std::string fingerprint;
  std::vector<std::string> warnings;  // one line each; for the start-up log

  std::vector<AlignedBuffer> memory;                    // what everything above points into, and
  std::vector<std::shared_ptr<const ModelFile>> files;  // where panels are used as they are mapped
  // Of bytes.total(), what lies in pages of these files: they count as the system's cache, not as memory of
  // this process, but must stay there for steps to keep their speed.
  int64_t mapped_bytes = 0;
};

// On which nodes the pages of the weights lie.
struct WeightPages {
  std::vector<NumaNode> nodes;    // all weights in turn over these; empty: wherever the system likes
  std::vector<int> expert_nodes;  // [routed experts] instead, where not kAnyNode; or empty
};

struct LoadOptions {
  // Re-quantises linear layers: routed, shared and dense experts, attention projections, and the head unless
  // FP8. Embedding, norms, gate and kv_b stay. Unset: every tensor stays as the checkpoint has it.
  std::optional<WeightFormat> weights;
  bool load_mtp = true;  // MTP modules, if the checkpoint has them
  // Checked before anything is read: with weights_bytes as planned, does it all fit? Unset: not checked.
  std::optional<MemoryDemand> demand;
  AvailableMemory available;
  Isa isa = active_isa();
  WeightPages pages;
  // Called on the loading thread after each part, with bytes of the checkpoint read so far and in all.
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
};

// "native", "bf16", "fp8", "int8" or "int4" (also "f32" and "f16"), as --weights takes them.
Result<std::optional<WeightFormat>> parse_weights_option(std::string_view text);

// A checkpoint in memory. Pointers into weights() stay valid as long as the model.
class Model {
 public:
  // Reads config and weights; every tensor's shape is checked against the config before the first is packed.
  // Errors are one line naming file, tensor and reason; kResourceExhausted when options.demand does not fit.
  static Result<std::unique_ptr<Model>> load(const ModelSource& source, const LoadOptions& options,
                                             ThreadTeam& team);
  Model(ModelConfig config, ModelWeights weights)
      : config_(std::move(config)), weights_(std::move(weights)) {}

  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return weights_; }

 private:
  ModelConfig config_;
  ModelWeights weights_;
};

}  // namespace fathom
