// Packed weights on disk: names, sizes and checksums of the tensors of a folder whose layout is panels
// (docs/weight-formats.md). Loading maps them; nothing is copied or packed again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/linear.h"
#include "model/config.h"

namespace fathom {

// quantization_config.layout of config.json: changes when panels or this page's rules do.
inline constexpr std::string_view kPanelLayout = "panels-1";
// One such tensor per file, U64 [the file's other tensors]: their checksums, in the order of their bytes.
inline constexpr std::string_view kChecksumsPrefix = "fathom.checksums.";
// A tensor's checksum is made from those of its pieces of so many bytes.
inline constexpr int64_t kChecksumPieceBytes = int64_t{1} << 20;

// "model.layers.0.self_attn.o_proj.int8_panels".
std::string panels_name(std::string_view name, WeightFormat format);
// Bytes of an [n, k] matrix; always a multiple of 64.
int64_t panels_bytes(WeightFormat format, int64_t n, int64_t k);

// kv_b_proj is saved as the attention core reads it: for each head w_uk, w_uk_t and w_uv, one after the
// other.
struct KvBHeadPanels {
  int64_t w_uk_bytes = 0, w_uk_t_bytes = 0, w_uv_bytes = 0;

  KvBHeadPanels(const ModelConfig& config, WeightFormat format);
  int64_t bytes() const { return w_uk_bytes + w_uk_t_bytes + w_uv_bytes; }
};

// XXH3-64 of a piece, and of the little-endian checksums of a tensor's pieces.
uint64_t piece_checksum(std::span<const std::byte> piece);
uint64_t tensor_checksum(std::span<const uint64_t> pieces);

}  // namespace fathom
