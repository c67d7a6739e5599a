// What a model folder holds, for people and programs. The config is enough for the counts; weights, where
// they are there, are checked as loading would check them.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "model/config.h"
#include "model/weights.h"
#include "tensor/model_source.h"

namespace fathom {

struct ModelInspection {
  std::string label;
  ModelConfig config;
  ParameterCounts parameters;
  DType kv_dtype = DType::kBf16;
  int64_t kv_bytes_per_token = 0;

  struct Weights {
    int num_files = 0;
    int64_t checkpoint_bytes = 0;                // tensors' data
    std::map<std::string, int64_t> dtype_bytes;  // "BF16" → bytes, of the checkpoint
    int64_t mtp_modules = 0;                     // with weights
    std::map<std::string, WeightBytes>
        loaded;  // "native", "int8", … → bytes in memory; only what is possible
    std::vector<std::string> warnings;
  };
  std::optional<Weights> weights;  // absent: no safetensors file there
};

Result<ModelInspection> inspect_model(const ModelSource& source);

std::string inspection_text(const ModelInspection& model);
std::string inspection_json(const ModelInspection& model);

}  // namespace fathom
