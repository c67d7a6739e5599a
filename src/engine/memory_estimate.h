// What the engines' buffers will take, known before a weight is read: for refusing a model early.
#pragma once

#include <cstdint>

#include "engine/options.h"
#include "model/config.h"

namespace fathom {

// Bytes of both engines' forward passes, from their declared maxima: each rank's activations, the rows its
// experts may receive and return, each thread's scratch, and the logits. An upper estimate: every element is
// charged as F32, whatever the weights' formats make of it.
int64_t activation_bytes(const ModelConfig& config, const EngineOptions& options);

}  // namespace fathom
