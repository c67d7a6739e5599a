// What loading a checkpoint means, before any of it is done: which tensor becomes which packed weight, in
// which format, and what it will take. The same plan is loaded (weights.h), converted (convert.h) or only
// printed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/config.h"
#include "model/weights.h"
#include "tensor/safetensors.h"

namespace fathom {

// Weights whose activations are shared must agree in what they read.
enum class ActGroup : uint8_t { kAttention, kFfn, kHead, kMtpProjection, kGate /*always F32*/ };

struct LinearPlan {
  std::string name;                    // without ".weight"; "lm_head" also where it is the embedding, tied
  const TensorInfo* weight = nullptr;  // F32, BF16, F16, F8_E4M3, I8 or U8 (int4)
  const TensorInfo* scales = nullptr;  // for the last three
  bool panels = false;                 // weight is packed already (model/saved_panels.h), in `format`
  int64_t n = 0;
  int64_t k = 0;
  ActGroup group = ActGroup::kAttention;
  int64_t WeightBytes::* kind = nullptr;
  WeightFormat format = WeightFormat::kF32;
  PackedWeight* target = nullptr;

  WeightSource source() const;  // not for panels
};

struct KvBPlan {
  std::string name;
  const TensorInfo* weight = nullptr;
  const TensorInfo* scales = nullptr;
  bool panels = false;
  int64_t n = 0;  // heads · (nope + v)
  int64_t k = 0;  // kv_lora
  int64_t WeightBytes::* kind = nullptr;
  WeightFormat format = WeightFormat::kBf16;
  AttentionWeights* target = nullptr;

  WeightSource source() const;
};

struct VectorPlan {
  const TensorInfo* tensor = nullptr;  // F32, BF16 or F16; kept in F32
  int64_t WeightBytes::* kind = nullptr;
  const float** target = nullptr;
};

struct WeightPlan {
  ModelConfig config;
  Isa isa = Isa::kRef;
  std::unique_ptr<ModelWeights>
      weights;  // shapes, formats and byte counts; targets point into it, nothing loaded
  const TensorInfo* embed_tokens = nullptr;
  std::vector<LinearPlan> linears;  // gates among them, in F32
  std::vector<KvBPlan> kv_bs;
  std::vector<VectorPlan> vectors;
  std::unordered_map<const TensorInfo*, uint64_t> checksums;  // where the files state them
  std::vector<std::shared_ptr<const ModelFile>> files;        // what every tensor points into

  int64_t source_bytes() const;  // what will be read
};

// Checks every tensor the config asks for (present, shape, dtype, scales) and chooses formats. `tensors` must
// outlive the plan. Tensors nobody asks for: known ones (old rotary buffers, MTP copies) are passed over,
// others give a warning.
Result<WeightPlan> plan_weights(const ModelConfig& config, const SafeTensors& tensors,
                                const LoadOptions& options);

// Allocates and packs on the team, piece by piece; source pages are given back as they are used up. Saved
// panels are used where they are mapped, if the ISA reads them and pages need no node of their own.
// kDataLoss where bytes do not have the checksum stated for them.
Result<ModelWeights> load_weights(WeightPlan plan, const LoadOptions& options, ThreadTeam& team);

}  // namespace fathom
