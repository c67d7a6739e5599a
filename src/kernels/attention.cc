// Checks of shapes and the choice of instruction set for both forms of attention.
#include "kernels/attention.h"

#include "base/check.h"
#include "kernels/dispatch.h"

namespace fathom {

void mla_absorbed(const LatentBlocks& kv, const AbsorbedQuery& query, std::byte* scratch) {
  CHECK(kv.dtype == DType::kBf16 || kv.dtype == DType::kF32);
  CHECK(query.visible > 0 && reinterpret_cast<uintptr_t>(scratch) % 64 == 0);
  active_kernels().mla_absorbed(kv, query, scratch);
}

void mla_per_head(const LatentBlocks& kv, const PerHeadKeys& keys, const PerHeadQuery& query,
                  std::byte* scratch) {
  CHECK(kv.dtype == DType::kBf16 || kv.dtype == DType::kF32);
  CHECK(query.start >= 0 && reinterpret_cast<uintptr_t>(scratch) % 64 == 0);
  active_kernels().mla_per_head(kv, keys, query, scratch);
}

int64_t mla_absorbed_scratch_bytes(int64_t num_heads, int64_t latent_dim, int64_t rope_dim) {
  // Queries and sums for whole panels of 32 heads, a tile of keys and its scores, all as F32.
  const int64_t heads = round_up(num_heads, kLinearTileN);
  const int64_t dim = round_up(latent_dim, 32) + round_up(rope_dim, 32);
  return 4 * (2 * heads * dim + 2 * heads * kAttentionTile + kAttentionTile * dim + 4 * heads) + 1024;
}

int64_t mla_per_head_scratch_bytes(int64_t nope_dim, int64_t rope_dim, int64_t v_dim) {
  // Queries and sums of a group of rows, scores of a block, keys and values of a tile, all as F32.
  const int64_t key_dim = round_up(nope_dim + rope_dim, 32);
  const int64_t value_dim = round_up(v_dim, 32);
  return 4 * (kPerHeadGroupRows * (key_dim + value_dim + 4) + 2 * kPerHeadBlockRows * kAttentionTile +
              kAttentionTile * (key_dim + value_dim) + 2 * key_dim) +
         1024;
}

}  // namespace fathom
