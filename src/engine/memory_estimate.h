// What the engines' buffers will take, known before a weight is read: for refusing a model early.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/options.h"
#include "model/config.h"

namespace fathom {

// Memory for the keys and values of prompts in progress (ForwardOptions::expanded_bytes), beside so much KV
// memory and so many bytes of weights.
constexpr int64_t expanded_bytes(int64_t kv_memory_bytes, int64_t weights_bytes) {
  constexpr int64_t kPartOfKv = 16, kPartOfWeights = 32;
  return std::min(kv_memory_bytes / kPartOfKv, weights_bytes / kPartOfWeights);
}

// Bytes of both engines' forward passes, from their declared maxima: each rank's activations, the rows its
// experts may receive and return, each thread's scratch, keys and values of prompts in progress, and the
// logits. An upper estimate: every element is charged as F32, whatever the weights' formats make of it.
int64_t activation_bytes(const ModelConfig& config, const EngineOptions& options);

}  // namespace fathom
