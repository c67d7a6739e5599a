// From a checkpoint's matrices to packed weights: what loading does in memory and converting for a file.
#pragma once

#include <cstdint>

#include "kernels/linear.h"
#include "model/config.h"

namespace fathom {

// Rows [begin, end) of source into the same rows of w; begin is a multiple of 128, end too unless it is w.n.
void pack_linear_rows(const PackedWeight& w, const WeightSource& source, int64_t begin, int64_t end);

// One head of kv_b_proj (rows [k_nope | v]) as the attention core reads it, the keys also transposed.
struct KvBHead {
  PackedWeight w_uk, w_uk_t, w_uv;
};
void pack_kv_b_head(const KvBHead& out, const WeightSource& source, const ModelConfig& config, int64_t head);

}  // namespace fathom
