// Multi-head latent attention over stored KV. A stored token is one row [latent | rope]; rows come in blocks
// of 64 tokens. Two forms of the same function: absorbed (all heads against the latent itself, for decode)
// and per head (keys and values expanded from the latent, for prefill).
//
// Rounding. BF16 storage: q, keys, values and the unnormalised probabilities are BF16, sums F32. F32 storage:
// F32 throughout. Softmax is online in F32 over key tiles of 64 tokens counted from token 0; a row's result
// depends on its query, its visible tokens and nothing else: not on the other rows, the chunk or the tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace fathom {

inline constexpr int64_t kAttentionTile = 64;  // tokens of a block, and keys of a softmax tile
// Per head: query rows that share one preparation of a key tile, and those that share one tile of scores.
inline constexpr int64_t kPerHeadGroupRows = 256;
inline constexpr int64_t kPerHeadBlockRows = 64;

// One layer's KV of one sequence. Token t is row t % 64 of block[t / 64].
struct LatentBlocks {
  const void* const* block = nullptr;  // row 0 of this layer in each block
  DType dtype = DType::kBf16;          // kBf16 or kF32
  int64_t row_stride = 0;              // elements
  int64_t latent_dim = 0;
  int64_t rope_dim = 0;
};

// One query token and a range of its heads.
struct AbsorbedQuery {
  const float* latent = nullptr;  // [num_heads, latent_dim]: q_nope · W_UK
  int64_t latent_stride = 0;
  const float* rope = nullptr;  // [num_heads, rope_dim]
  int64_t rope_stride = 0;
  int64_t num_heads = 0;
  int64_t visible = 0;   // sees tokens [0, visible), ≥ 1
  float scale = 1.0f;    // > 0
  float* out = nullptr;  // [num_heads, latent_dim]: Σ_t p_t · latent_t, normalised
  int64_t out_stride = 0;
  // What the thread reads next (the first block of its next query, or weights), to be brought into the cache
  // meanwhile; may be null.
  const void* next = nullptr;
};

// Reads each latent block once for all the heads. `scratch`: mla_absorbed_scratch_bytes, aligned to 64.
void mla_absorbed(const LatentBlocks& kv, const AbsorbedQuery& query, std::byte* scratch);
int64_t mla_absorbed_scratch_bytes(int64_t num_heads, int64_t latent_dim, int64_t rope_dim);

// One head's keys and values for tokens [0, start + rows), expanded from the latent. dtype is that of the
// blocks, which give the rope part.
struct PerHeadKeys {
  const void* nope = nullptr;  // [tokens, nope_dim]
  int64_t nope_stride = 0;     // elements
  int64_t nope_dim = 0;
  const void* v = nullptr;  // [tokens, v_dim]
  int64_t v_stride = 0;
  int64_t v_dim = 0;
};

// Consecutive query tokens of one head: row r is token start + r and sees tokens [0, start + r].
struct PerHeadQuery {
  const float* q = nullptr;  // [rows, nope_dim + rope_dim]
  int64_t q_stride = 0;
  int64_t rows = 0;
  int64_t start = 0;
  float scale = 1.0f;    // > 0
  float* out = nullptr;  // [rows, v_dim]
  int64_t out_stride = 0;
};

// Any number of rows; the more at a time (up to 256), the better the use of what is loaded.
// `scratch`: mla_per_head_scratch_bytes, aligned to 64.
void mla_per_head(const LatentBlocks& kv, const PerHeadKeys& keys, const PerHeadQuery& query,
                  std::byte* scratch);
int64_t mla_per_head_scratch_bytes(int64_t nope_dim, int64_t rope_dim, int64_t v_dim);

}  // namespace fathom
