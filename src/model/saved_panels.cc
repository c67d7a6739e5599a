// The saved form of packed weights: sizes from the kernels' panels, checksums by XXH3.
#include "model/saved_panels.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

namespace fathom {

std::string panels_name(std::string_view name, WeightFormat format) {
  return fmt::format("{}.{}_panels", name, weight_format_name(format));
}

int64_t panels_bytes(WeightFormat format, int64_t n, int64_t k) {
  return packed_weight_bytes(format, n, k, kPanelIsa);
}

KvBHeadPanels::KvBHeadPanels(const ModelConfig& config, WeightFormat format)
    : w_uk_bytes(panels_bytes(format, config.qk_nope_head_dim, config.kv_lora_rank)),
      w_uk_t_bytes(panels_bytes(format, config.kv_lora_rank, config.qk_nope_head_dim)),
      w_uv_bytes(panels_bytes(format, config.v_head_dim, config.kv_lora_rank)) {}

uint64_t piece_checksum(std::span<const std::byte> piece) { return XXH3_64bits(piece.data(), piece.size()); }

uint64_t tensor_checksum(std::span<const uint64_t> pieces) {
  return XXH3_64bits(pieces.data(), pieces.size_bytes());
}

}  // namespace fathom
