// The linear layer: y[r, n] = Σ_k x[r, k] · w[n, k], for every weight format.
// Weights are packed once, in the order in which the chosen kernel reads them, and stay in their format: FP8,
// INT8 and INT4 are decoded in registers, never expanded in memory.
//
// Rounding. F32, F16 and BF16: products and sums in F32. FP8 and INT8: per 128 of K, acc += dot · sx · sw in
// F32 with `dot` exact (INT8) or in F32 (FP8); INT4: dot over each 32 of K exact, summed with its group scale
// in F32 within 128 of K, then times sx. Invariance: for one kernel, a row's result depends on that row and
// the weights only: K is reduced in the same order whatever the number of rows, the tile and the row's place
// in it. Results are F32, or F32 rounded to BF16 as from_f32 does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cpu.h"
#include "kernels/formats.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace fathom {

struct LinearKernel;

// Weights in the order `kernel` reads. A view: the memory belongs to the model. Immutable once packed.
struct PackedWeight {
  WeightFormat format = WeightFormat::kF32;
  int64_t n = 0;  // outputs
  int64_t k = 0;  // inputs
  std::byte* data = nullptr;
  const LinearKernel* kernel = nullptr;

  int64_t bytes() const;
};

// A rectangle of y. n_begin is a multiple of kLinearTileN, and n_end too unless it is n.
struct LinearTile {
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t n_begin = 0;
  int64_t n_end = 0;
};

// Where results go: rows of F32 or BF16, row r starting at data + r * stride elements.
struct ResultRows {
  DType dtype;
  std::byte* data;
  int64_t rows, cols, stride;

  ResultRows(MatrixView<float> y)
      : ResultRows(DType::kF32, reinterpret_cast<std::byte*>(y.data), y.rows, y.cols, y.stride) {}
  ResultRows(DType dtype, std::byte* data, int64_t rows, int64_t cols, int64_t stride)
      : dtype(dtype), data(data), rows(rows), cols(cols), stride(stride) {}

  std::byte* at(int64_t row, int64_t col) const { return data + dtype_bytes(dtype, row * stride + col); }
};

// One implementation for one weight format and instruction set.
struct LinearKernel {
  WeightFormat format;
  Isa isa;
  int64_t (*packed_bytes)(int64_t n, int64_t k);
  void (*pack)(const PackedWeight& w, int64_t first_row, int64_t num_rows, const WeightSource& source,
               int64_t source_row);
  void (*run)(const Activations& x, const PackedWeight& w, const LinearTile& tile, const ResultRows& y);
};

// The best kernel for `format` among those for `isa` and the levels below it.
const LinearKernel& find_linear_kernel(WeightFormat format, Isa isa);

// Bytes that packed weights take, padding and scales included.
int64_t packed_weight_bytes(WeightFormat format, int64_t n, int64_t k, Isa isa = active_isa());
// `memory`: packed_weight_bytes bytes aligned to 64, zero. Nothing is packed yet.
PackedWeight make_packed_weight(WeightFormat format, int64_t n, int64_t k, std::byte* memory,
                                Isa isa = active_isa());

// Fills rows [first_row, first_row + num_rows) of w from rows [source_row, …) of source. F32, BF16, F16
// and FP8 (times its scale) go into any format, quantised as kernels/quantize.h says; a source already in w's
// format keeps its codes and scales bit for bit; INT8 and INT4 go into their own format only.
// first_row and source_row are multiples of kLinearTileN; num_rows is too, or the range ends at w.n.
// A format other than FP8 may take source rows in any pieces; quantising to FP8 looks at the whole aligned
// block of 128 source rows around a row. Ranges that do not overlap may be packed on several threads.
void pack_rows(const PackedWeight& w, int64_t first_row, int64_t num_rows, const WeightSource& source,
               int64_t source_row);
// Whether pack_rows accepts the pair.
bool can_pack(WeightFormat format, DType source);

// The layout that every vector instruction set reads, and that is saved (docs/weight-formats.md): what one
// machine packed, another can use where it lies.
constexpr Isa kPanelIsa = Isa::kAvx2;
// Whether weights for `isa` lie in that layout; the reference kernels have their own.
bool reads_panels(WeightFormat format, Isa isa);
// Fills all of w, whatever its layout, from the same weights in panels.
void pack_from_panels(const PackedWeight& w, const std::byte* panels);

// Computes the tile of y ([x.rows, w.n]); the rest of y is not touched. x.format is act_format_for(w.format),
// x.k is w.k. y must not overlap x or w.
void linear(const Activations& x, const PackedWeight& w, const LinearTile& tile, const ResultRows& y);
// All of y on the calling thread.
void linear(const Activations& x, const PackedWeight& w, const ResultRows& y);

// Rows of the tallest tile that plan_linear makes.
inline constexpr int64_t kLinearTileRowsMax = 256;

// How a product is cut into tiles: tile i of num_tiles(). Results do not depend on it.
struct LinearTiling {
  int64_t rows = 0;
  int64_t n = 0;
  int64_t rows_per_tile = 1;
  int64_t n_per_tile = kLinearTileN;

  int64_t num_row_tiles() const { return ceil_div(rows, rows_per_tile); }
  int64_t num_n_tiles() const { return ceil_div(n, n_per_tile); }
  int64_t num_tiles() const { return num_row_tiles() * num_n_tiles(); }
  // Consecutive tiles share weights: rows run fastest.
  LinearTile tile(int64_t i) const;
};
// Tiles for `num_threads` threads: enough of them to share evenly, large enough to reuse what they load.
LinearTiling plan_linear(int64_t rows, int64_t n, int64_t k, int num_threads);

}  // namespace fathom
