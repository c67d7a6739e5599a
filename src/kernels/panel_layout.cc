// Packs weights into panels of 32 columns, in the order the kernels read them.
#include "kernels/panel_layout.h"

#include <algorithm>
#include <cstring>

#include "kernels/weight_tile.h"

namespace fathom {
namespace {

// Turns [32 rows][units] of a tile into [units][32].
template <typename Unit>
void store_units(const void* tile, int64_t num_units, int64_t row_units, std::byte* out, Unit flip = 0) {
  const auto* in = static_cast<const Unit*>(tile);
  auto* to = reinterpret_cast<Unit*>(out);
  for (int64_t u = 0; u < num_units; ++u) {
    for (int64_t c = 0; c < kLinearTileN; ++c) to[u * kLinearTileN + c] = in[c * row_units + u] ^ flip;
  }
}

void store_fp8(const WeightTile& tile, int64_t num_units, std::byte* out) {
  for (int64_t u = 0; u < num_units; ++u) {
    for (int64_t position = 0; position < kLinearTileN; ++position) {
      std::memcpy(out + (u * kLinearTileN + position) * 2, &tile.fp8[fp8_column(position)][2 * u], 2);
    }
  }
}

void store_int8(const WeightTile& tile, int64_t num_units, std::byte* out) {
  std::memcpy(out, tile.scales, sizeof(tile.scales));
  store_units<uint32_t>(tile.int8, num_units, kScaleBlock / 4, out + sizeof(tile.scales), 0x80808080u);
}

void store_int4(const WeightTile& tile, int64_t num_groups, std::byte* out) {
  for (int64_t g = 0; g < num_groups; ++g, out += kInt4GroupBytes) {
    for (int64_t c = 0; c < kLinearTileN; ++c) std::memcpy(out + c * 2, &tile.group_scales[c][g], 2);
    auto* units = reinterpret_cast<uint8_t*>(out) + kLinearTileN * 2;
    for (int64_t c = 0; c < kLinearTileN; ++c) {
      const uint8_t* in = tile.int4[c] + g * (kInt4Group / 2);
      for (int64_t s = 0; s < 4; ++s, in += 4) {
        // in: elements (0,1) (2,3) (4,5) (6,7) of this step; out byte i: elements i and 4 + i.
        uint8_t* unit = units + (s * kLinearTileN + c) * 4;
        unit[0] = static_cast<uint8_t>((in[0] & 15) | (in[2] << 4));
        unit[1] = static_cast<uint8_t>((in[0] >> 4) | (in[2] & 0xf0));
        unit[2] = static_cast<uint8_t>((in[1] & 15) | (in[3] << 4));
        unit[3] = static_cast<uint8_t>((in[1] >> 4) | (in[3] & 0xf0));
      }
    }
  }
}

void store_tile(WeightFormat format, const WeightTile& tile, std::byte* out) {
  switch (format) {
    case WeightFormat::kF32:
      return store_units<uint32_t>(tile.f32, tile.cols, kScaleBlock, out);
    case WeightFormat::kF16:
      return store_units<uint16_t>(tile.half, tile.cols, kScaleBlock, out);
    case WeightFormat::kBf16:
      return store_units<uint32_t>(tile.half, ceil_div(tile.cols, 2), kScaleBlock / 2, out);
    case WeightFormat::kFp8:
      return store_fp8(tile, ceil_div(tile.cols, 2), out);
    case WeightFormat::kInt8:
      return store_int8(tile, ceil_div(tile.cols, 4), out);
    case WeightFormat::kInt4:
      return store_int4(tile, ceil_div(tile.cols, kInt4Group), out);
  }
}

}  // namespace

int64_t panel_bytes(WeightFormat format, int64_t k) {
  const int64_t whole = k / kScaleBlock * kScaleBlock, rest = k - whole;
  const int64_t at = panel_offset(format, whole);
  switch (format) {
    case WeightFormat::kInt8:
      return at + (rest > 0 ? 32 * 4 + ceil_div(rest, 4) * 128 : 0);
    case WeightFormat::kInt4:
      return at + ceil_div(rest, kInt4Group) * kInt4GroupBytes;
    default:
      return panel_offset(format, round_up(k, 2));
  }
}

int64_t panel_scales_at(int64_t n, int64_t k) {
  return ceil_div(n, kLinearTileN) * panel_bytes(WeightFormat::kFp8, k);
}

template <WeightFormat kFormat>
int64_t panels_packed_bytes(int64_t n, int64_t k) {
  const int64_t panels = ceil_div(n, kLinearTileN);
  const int64_t scales =
      kFormat == WeightFormat::kFp8 ? round_up(panels * ceil_div(k, kScaleBlock) * 4, 64) : 0;
  return panels * panel_bytes(kFormat, k) + scales;
}
template int64_t panels_packed_bytes<WeightFormat::kF32>(int64_t, int64_t);
template int64_t panels_packed_bytes<WeightFormat::kF16>(int64_t, int64_t);
template int64_t panels_packed_bytes<WeightFormat::kBf16>(int64_t, int64_t);
template int64_t panels_packed_bytes<WeightFormat::kFp8>(int64_t, int64_t);
template int64_t panels_packed_bytes<WeightFormat::kInt8>(int64_t, int64_t);
template int64_t panels_packed_bytes<WeightFormat::kInt4>(int64_t, int64_t);

void pack_panels(const PackedWeight& w, int64_t first_row, int64_t num_rows, const WeightSource& source,
                 int64_t source_row) {
  const int64_t bytes = panel_bytes(w.format, w.k);
  WeightTile tile;
  for (int64_t done = 0; done < num_rows; done += kLinearTileN) {
    const int64_t panel = (first_row + done) / kLinearTileN;
    const int64_t rows = std::min(kLinearTileN, num_rows - done);
    for (int64_t k = 0; k < w.k; k += kScaleBlock) {
      load_weight_tile(w.format, source, source_row + done, rows, k, tile);
      store_tile(w.format, tile, w.data + panel * bytes + panel_offset(w.format, k));
      if (w.format == WeightFormat::kFp8) {
        auto* scales = reinterpret_cast<float*>(w.data + panel_scales_at(w.n, w.k));
        scales[panel * ceil_div(w.k, kScaleBlock) + k / kScaleBlock] = tile.scales[0];
      }
    }
  }
}

}  // namespace fathom
