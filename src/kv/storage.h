// Where the latent KV lives: one big buffer cut into blocks of 64 tokens, block-major, all layers of a block
// together, so that a block moves (to a rank, to disk) as one piece of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "tensor/arena.h"
#include "tensor/dtype.h"

namespace fathom {

// The unit of storing, sharing and moving KV.
inline constexpr int32_t kBlockTokens = 64;

// A block of the pool; its number is its place in KvStorage.
enum class BlockId : int32_t {};
inline constexpr BlockId kNoBlock{-1};
constexpr int32_t index_of(BlockId block) { return static_cast<int32_t>(block); }

// Blocks that `num_tokens` tokens take.
constexpr int32_t blocks_for_tokens(int64_t num_tokens) {
  return static_cast<int32_t>((num_tokens + kBlockTokens - 1) / kBlockTokens);
}

// Per token and layer one row: [latent_dim latent values | rope_dim rotated key values].
struct KvLayout {
  int32_t num_layers = 0;
  int32_t latent_dim = 0;  // kv_lora_rank
  int32_t rope_dim = 0;    // qk_rope_head_dim
  DType dtype = DType::kBf16;

  int64_t row_values() const { return int64_t{latent_dim} + rope_dim; }
  // Distance of two tokens' rows; padded so that every row starts at a multiple of 64 bytes.
  int64_t row_stride_bytes() const;
  int64_t layer_bytes() const { return kBlockTokens * row_stride_bytes(); }  // one layer of one block
  int64_t block_bytes() const { return num_layers * layer_bytes(); }
  int64_t bytes_per_token() const { return num_layers * row_stride_bytes(); }
  // "kv1:layers=61:latent=512:rope=64:BF16"; part of the key of every cached block.
  std::string to_string() const;

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

// The memory of all blocks. Holds no books: who may touch which block is the block pool's business. Distinct
// rows may be written and read by distinct threads at the same time.
class KvStorage {
 public:
  KvStorage(const KvLayout& layout, int32_t num_blocks);

  const KvLayout& layout() const { return layout_; }
  int32_t num_blocks() const { return num_blocks_; }
  int64_t row_stride_bytes() const { return row_stride_bytes_; }
  int64_t block_bytes() const { return block_bytes_; }
  int64_t bytes_per_token() const { return layout_.bytes_per_token(); }

  // All of it, for placing its pages.
  std::span<std::byte> bytes() { return buffer_.bytes(); }

  // The row of the token at `offset` (0 … 63) of `block` in `layer`; 64-byte aligned.
  std::byte* row(BlockId block, int32_t layer, int32_t offset) {
    return const_cast<std::byte*>(std::as_const(*this).row(block, layer, offset));
  }
  const std::byte* row(BlockId block, int32_t layer, int32_t offset) const {
    CHECK(index_of(block) >= 0 && index_of(block) < num_blocks_);
    return buffer_.data() + index_of(block) * block_bytes_ + layer * layer_bytes_ +
           offset * row_stride_bytes_;
  }

 private:
  const KvLayout layout_;
  const int32_t num_blocks_;
  const int64_t row_stride_bytes_;
  const int64_t layer_bytes_;
  const int64_t block_bytes_;
  AlignedBuffer buffer_;
};

}  // namespace fathom
