// How the vector kernels hold weights: panels of 32 outputs, K running sequentially through a panel, so that
// a product with few rows reads memory in one forward stream. One layout per format, shared by all
// instruction sets.
//
//   format  unit (what one 32-bit lane multiplies)   a panel
//   F32     1 of K, 4 bytes                          [k][32 outputs]
//   F16     1 of K, 2 bytes                          [k][32]
//   BF16    2 of K, 4 bytes                          [k/2][32]
//   FP8     2 of K, 2 bytes                          [k/2][32 in kFp8Column order]; F32 scales after all
//   panels:
//                                                    [panel][128 of K]
//   INT8    4 of K, 4 bytes (code + 128)             per 128 of K: 32 F32 scales, [32][32]
//   INT4    4 + 4 of K, 4 bytes (code + 8)           per 32 of K: 32 F16 scales, [4][32]: byte i of a unit
//   holds
//                                                    element 8s + i low, 8s + 4 + i high
// K is padded with zeros to whole units (INT4: whole groups); outputs to 32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/linear.h"

namespace fathom {

inline constexpr int64_t kInt8BlockBytes = 32 * 4 + kScaleBlock * 32;
inline constexpr int64_t kInt4GroupBytes = 32 * 2 + kInt4Group * 32 / 2;

// Position u of an FP8 step holds this output: interleaving bytes within 128-bit lanes (unpacklo, unpackhi)
// then leaves outputs 0-15 and 16-31 in order, in two vectors.
constexpr int64_t fp8_column(int64_t u) { return u % 8 < 4 ? u / 8 * 4 + u % 8 : 16 + u / 8 * 4 + u % 8 - 4; }

// Bytes from a panel's start to element k (a multiple of 128) of its columns.
constexpr int64_t panel_offset(WeightFormat format, int64_t k) {
  switch (format) {
    case WeightFormat::kF32:
      return k * 128;
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
      return k * 64;
    case WeightFormat::kFp8:
      return k * 32;
    case WeightFormat::kInt8:
      return k / kScaleBlock * kInt8BlockBytes;
    case WeightFormat::kInt4:
      return k / kInt4Group * kInt4GroupBytes;
  }
  return 0;
}

int64_t panel_bytes(WeightFormat format, int64_t k);
// FP8: bytes from the start of the packed weights to the scales.
int64_t panel_scales_at(int64_t n, int64_t k);
// LinearKernel::pack for this layout.
void pack_panels(const PackedWeight& w, int64_t first_row, int64_t num_rows, const WeightSource& source,
                 int64_t source_row);

// Reads panels back, 32 rows at a time, into the row-major form that WeightSource describes.
class PanelRows {
 public:
  // `panels`: what pack_panels filled for an [n, k] matrix; must outlive the object.
  PanelRows(WeightFormat format, int64_t n, int64_t k, const std::byte* panels);
  // The rows of one panel; valid until the next call.
  WeightSource read(int64_t panel);

 private:
  void read_units(const std::byte* panel, int64_t unit_bytes);
  void read_fp8(const std::byte* panel);
  void read_int8(const std::byte* panel);
  void read_int4(const std::byte* panel);

  const WeightFormat format_;
  const int64_t n_, k_;
  const std::byte* const panels_;
  WeightSource rows_;
  std::vector<std::byte> codes_, scales_;
};

// LinearKernel::packed_bytes. Defined in panel_layout.cc, which is compiled for any processor.
template <WeightFormat kFormat>
int64_t panels_packed_bytes(int64_t n, int64_t k);

// A LinearKernel over panels.
template <WeightFormat kFormat>
constexpr LinearKernel make_panel_kernel(Isa isa, decltype(LinearKernel::run) run) {
  return {kFormat, isa, panels_packed_bytes<kFormat>, pack_panels, run};
}

}  // namespace fathom
