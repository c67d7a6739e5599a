// What the engines' buffers will take, known before a weight is read: for refusing a model early.
#pragma once

#include <cstdint>

#include "engine/options.h"
#include "model/config.h"

namespace fathom {

// The most of ForwardOptions::expanded_bytes beside so much KV memory.
constexpr int64_t expanded_bytes_max(int64_t kv_memory_bytes) { return kv_memory_bytes / 16; }

// Bytes of both engines' forward passes, from their declared maxima: each rank's activations, the rows its
// experts may receive and return, each thread's scratch, keys and values of prompts in progress, and the
// logits. An upper estimate: every element is charged as F32, whatever the weights' formats make of it.
int64_t activation_bytes(const ModelConfig& config, const EngineOptions& options);

}  // namespace fathom
