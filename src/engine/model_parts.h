// The parts of an engine on a real model: KV memory in the model's layout, and a forward group per phase.
#pragma once

#include "base/clock.h"
#include "base/status.h"
#include "engine/executor.h"
#include "engine/options.h"
#include "model/weights.h"

namespace fathom {

// The KV rows the model writes.
KvLayout kv_layout_of(const Model& model);

// kResourceExhausted when kv_memory_bytes is less than one block. `model` and `clock` must outlive the parts.
Result<EngineParts> make_model_parts(const EngineOptions& options, const Model& model, const Clock& clock);

// Where the weights should lie: dense parts over all nodes in turn, each expert near the decode rank that has
// it at first. Empty on one node.
WeightPages weight_pages(const EngineOptions& options, int64_t num_experts);

}  // namespace fathom
