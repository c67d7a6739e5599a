// Packs weights into panels of 32 columns, in the order the kernels read them.
#include "kernels/panel_layout.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/quantize.h"
#include "kernels/weight_tile.h"

namespace fathom {
namespace {

__m128i load16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
void store16(void* p, __m128i x) { _mm_storeu_si128(static_cast<__m128i*>(p), x); }

// Four rows of four 32-bit units, turned.
void turn(__m128i (&x)[4]) {
  const __m128i low01 = _mm_unpacklo_epi32(x[0], x[1]), high01 = _mm_unpackhi_epi32(x[0], x[1]);
  const __m128i low23 = _mm_unpacklo_epi32(x[2], x[3]), high23 = _mm_unpackhi_epi32(x[2], x[3]);
  x[0] = _mm_unpacklo_epi64(low01, low23);
  x[1] = _mm_unpackhi_epi64(low01, low23);
  x[2] = _mm_unpacklo_epi64(high01, high23);
  x[3] = _mm_unpackhi_epi64(high01, high23);
}

// Eight rows of eight 16-bit units, turned.
void turn(__m128i (&x)[8]) {
  __m128i left[4], right[4];
  for (int i = 0; i < 4; ++i) {
    left[i] = _mm_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
    right[i] = _mm_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
  }
  turn(left);  // of pairs of rows: what was unit u of all eight is now in one register
  turn(right);
  for (int i = 0; i < 4; ++i) {
    x[i] = left[i];
    x[4 + i] = right[i];
  }
}

// Turns [32 rows][units of 32 bits] of a tile into [units][32]; `flip` is exclusive-or'ed to each. The tile's
// rows are whole, so what is read beyond the last unit is there; it is not stored.
void store_units32(const void* tile, int64_t num_units, int64_t row_units, std::byte* out, uint32_t flip) {
  const auto* in = static_cast<const uint32_t*>(tile);
  const __m128i flips = _mm_set1_epi32(static_cast<int>(flip));
  for (int64_t u = 0; u < num_units; u += 4) {
    for (int64_t c = 0; c < kLinearTileN; c += 4) {
      __m128i x[4];
      for (int r = 0; r < 4; ++r) x[r] = load16(in + (c + r) * row_units + u);
      turn(x);
      for (int64_t i = 0; i < std::min<int64_t>(4, num_units - u); ++i)
        store16(out + ((u + i) * kLinearTileN + c) * 4, _mm_xor_si128(x[i], flips));
    }
  }
}

// The same for units of 16 bits; column(position) is the row that comes to a position.
template <class Column>
void store_units16(const void* tile, int64_t num_units, int64_t row_units, std::byte* out, Column column) {
  const auto* in = static_cast<const uint16_t*>(tile);
  for (int64_t u = 0; u < num_units; u += 8) {
    for (int64_t c = 0; c < kLinearTileN; c += 8) {
      __m128i x[8];
      for (int r = 0; r < 8; ++r) x[r] = load16(in + column(c + r) * row_units + u);
      turn(x);
      for (int64_t i = 0; i < std::min<int64_t>(8, num_units - u); ++i)
        store16(out + ((u + i) * kLinearTileN + c) * 2, x[i]);
    }
  }
}

void store_int8(const WeightTile& tile, int64_t num_units, std::byte* out) {
  std::memcpy(out, tile.scales, sizeof(tile.scales));
  store_units32(tile.int8, num_units, kScaleBlock / 4, out + sizeof(tile.scales), 0x80808080u);
}

// Bytes of elements (0,1) (2,3) (4,5) (6,7) of each 32 bits: byte i becomes elements i and 4 + i.
__m128i pair_with_fourth(__m128i x) {
  const __m128i nibbles = _mm_set1_epi32(0x0f0f0f0f), low_half = _mm_set1_epi32(0xffff);
  const __m128i even = _mm_and_si128(x, nibbles), odd = _mm_and_si128(_mm_srli_epi32(x, 4), nibbles);
  const auto join = [&](__m128i y) {  // bytes 0 and 1, with 2 and 3 above them, now in bytes 0 and 2
    const __m128i joined = _mm_and_si128(_mm_or_si128(y, _mm_srli_epi32(y, 12)), low_half);
    return _mm_and_si128(_mm_or_si128(joined, _mm_slli_epi32(joined, 8)), _mm_set1_epi32(0x00ff00ff));
  };
  return _mm_or_si128(join(even), _mm_slli_epi32(join(odd), 8));
}

void store_int4(const WeightTile& tile, int64_t num_groups, std::byte* out) {
  for (int64_t g = 0; g < num_groups; ++g, out += kInt4GroupBytes) {
    for (int64_t c = 0; c < kLinearTileN; ++c) std::memcpy(out + c * 2, &tile.group_scales[c][g], 2);
    std::byte* const units = out + kLinearTileN * 2;
    for (int64_t c = 0; c < kLinearTileN; c += 4) {
      __m128i x[4];
      for (int r = 0; r < 4; ++r) x[r] = pair_with_fourth(load16(tile.int4[c + r] + g * (kInt4Group / 2)));
      turn(x);
      for (int64_t s = 0; s < 4; ++s) store16(units + (s * kLinearTileN + c) * 4, x[s]);
    }
  }
}

void store_tile(WeightFormat format, const WeightTile& tile, std::byte* out) {
  switch (format) {
    case WeightFormat::kF32:
      return store_units32(tile.f32, tile.cols, kScaleBlock, out, 0);
    case WeightFormat::kF16:
      return store_units16(tile.half, tile.cols, kScaleBlock, out, [](int64_t c) { return c; });
    case WeightFormat::kBf16:
      return store_units32(tile.half, ceil_div(tile.cols, 2), kScaleBlock / 2, out, 0);
    case WeightFormat::kFp8:
      return store_units16(tile.fp8, ceil_div(tile.cols, 2), kScaleBlock / 2, out, fp8_column);
    case WeightFormat::kInt8:
      return store_int8(tile, ceil_div(tile.cols, 4), out);
    case WeightFormat::kInt4:
      return store_int4(tile, ceil_div(tile.cols, kInt4Group), out);
  }
}

float* panel_scales(const PackedWeight& w, int64_t panel) {
  return reinterpret_cast<float*>(w.data + panel_scales_at(w.n, w.k)) + panel * ceil_div(w.k, kScaleBlock);
}

// Quantises to FP8 block by block of 128 rows, which share a scale; a range may begin or end inside one.
void pack_as_fp8(const PackedWeight& w, int64_t first_row, int64_t num_rows, const WeightSource& source,
                 int64_t source_row) {
  const int64_t bytes = panel_bytes(w.format, w.k);
  Fp8E4m3 codes[kScaleBlock][kScaleBlock];
  WeightTile tile;
  for (int64_t block = source_row / kScaleBlock * kScaleBlock; block < source_row + num_rows;
       block += kScaleBlock) {
    const int64_t begin = std::max(block, source_row);
    const int64_t end = std::min(block + kScaleBlock, source_row + num_rows);
    for (int64_t k = 0; k < w.k; k += kScaleBlock) {
      const float scale = quantize_fp8_block(source, block, k, codes[0], kScaleBlock);
      tile.cols = std::min(kScaleBlock, w.k - k);
      for (int64_t row = begin; row < end; row += kLinearTileN) {
        const int64_t panel = (first_row + row - source_row) / kLinearTileN;
        tile.rows = std::min(kLinearTileN, end - row);
        std::memset(tile.fp8, 0, sizeof(tile.fp8));
        for (int64_t r = 0; r < tile.rows; ++r)
          std::memcpy(tile.fp8[r], codes[row - block + r], static_cast<size_t>(tile.cols));
        store_tile(w.format, tile, w.data + panel * bytes + panel_offset(w.format, k));
        panel_scales(w, panel)[k / kScaleBlock] = scale;
      }
    }
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
  if (w.format == WeightFormat::kFp8 && source.dtype != DType::kFp8E4m3)
    return pack_as_fp8(w, first_row, num_rows, source, source_row);
  const int64_t bytes = panel_bytes(w.format, w.k);
  WeightTile tile;
  for (int64_t done = 0; done < num_rows; done += kLinearTileN) {
    const int64_t panel = (first_row + done) / kLinearTileN;
    const int64_t rows = std::min(kLinearTileN, num_rows - done);
    for (int64_t k = 0; k < w.k; k += kScaleBlock) {
      load_weight_tile(w.format, source, source_row + done, rows, k, tile);
      store_tile(w.format, tile, w.data + panel * bytes + panel_offset(w.format, k));
      if (w.format == WeightFormat::kFp8) panel_scales(w, panel)[k / kScaleBlock] = tile.scales[0];
    }
  }
}

}  // namespace fathom
