// From a checkpoint's matrices to packed weights: what loading does in memory and converting for a file.
#pragma once

#include <cstdint>

#include "kernels/linear.h"
#include "model/config.h"

namespace fathom {

// One head of kv_b_proj (rows [k_nope | v]) as the attention core reads it, the keys also transposed.
struct KvBHead {
  PackedWeight w_uk, w_uk_t, w_uv;
};
void pack_kv_b_head(const KvBHead& out, const WeightSource& source, const ModelConfig& config, int64_t head);

}  // namespace fathom
