// Layout arithmetic of the KV blocks.
#include "kv/storage.h"

#include "base/check.h"

namespace fathom {

int64_t KvLayout::row_stride_bytes() const {
  return static_cast<int64_t>(
      align_up(static_cast<size_t>(dtype_bytes(dtype, row_values())), kBufferAlignmentBytes));
}

std::string KvLayout::to_string() const {
  return fmt::format("kv1:layers={}:latent={}:rope={}:{}", num_layers, latent_dim, rope_dim,
                     dtype_name(dtype));
}

KvStorage::KvStorage(const KvLayout& layout, int32_t num_blocks)
    : layout_(layout),
      num_blocks_(num_blocks),
      row_stride_bytes_(layout.row_stride_bytes()),
      layer_bytes_(layout.layer_bytes()),
      block_bytes_(layout.block_bytes()),
      buffer_(static_cast<size_t>(num_blocks) * static_cast<size_t>(layout.block_bytes())) {
  CHECK(num_blocks > 0 && layout.num_layers > 0 && layout.row_values() > 0);
}

}  // namespace fathom
