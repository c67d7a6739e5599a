// Checks of shapes and the choice of instruction set for matrix products.
#include "kernels/linear.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/dispatch.h"
#include "kernels/panel_layout.h"

namespace fathom {

int64_t PackedWeight::bytes() const { return kernel == nullptr ? 0 : kernel->packed_bytes(n, k); }

const LinearKernel& find_linear_kernel(WeightFormat format, Isa isa) {
  return *kernel_table(isa).linear[static_cast<int>(format)];
}

int64_t packed_weight_bytes(WeightFormat format, int64_t n, int64_t k, Isa isa) {
  return find_linear_kernel(format, isa).packed_bytes(n, k);
}

PackedWeight make_packed_weight(WeightFormat format, int64_t n, int64_t k, std::byte* memory, Isa isa) {
  CHECK(n > 0 && k > 0 && reinterpret_cast<uintptr_t>(memory) % 64 == 0);
  return {format, n, k, memory, &find_linear_kernel(format, isa)};
}

bool can_pack(WeightFormat format, DType source) {
  switch (source) {
    case DType::kF32:
    case DType::kBf16:
    case DType::kF16:
    case DType::kFp8E4m3:
      return true;
    case DType::kInt8:
      return format == WeightFormat::kInt8;
    case DType::kInt4:
      return format == WeightFormat::kInt4;
    default:
      return false;
  }
}

void pack_rows(const PackedWeight& w, int64_t first_row, int64_t num_rows, const WeightSource& source,
               int64_t source_row) {
  CHECK(can_pack(w.format, source.dtype) && source.k == w.k);
  CHECK(first_row % kLinearTileN == 0 && source_row % kLinearTileN == 0);
  CHECK(0 <= first_row && 0 <= num_rows && first_row + num_rows <= w.n);
  CHECK(num_rows % kLinearTileN == 0 || first_row + num_rows == w.n);
  CHECK(0 <= source_row && source_row + num_rows <= source.n);
  w.kernel->pack(w, first_row, num_rows, source, source_row);
}

bool reads_panels(WeightFormat format, Isa isa) {
  return find_linear_kernel(format, isa).pack == pack_panels;
}

void pack_from_panels(const PackedWeight& w, const std::byte* panels) {
  PanelRows rows(w.format, w.n, w.k, panels);
  for (int64_t row = 0; row < w.n; row += kLinearTileN) {
    pack_rows(w, row, std::min(kLinearTileN, w.n - row), rows.read(row / kLinearTileN), 0);
  }
}

void linear(const Activations& x, const PackedWeight& w, const LinearTile& tile, const ResultRows& y) {
  CHECK(x.format == act_format_for(w.format) && x.k == w.k);
  CHECK(y.dtype == DType::kF32 || y.dtype == DType::kBf16);
  CHECK(y.cols == w.n && y.rows >= tile.row_end && x.rows >= tile.row_end);
  CHECK(tile.n_begin % kLinearTileN == 0 && (tile.n_end % kLinearTileN == 0 || tile.n_end == w.n));
  CHECK(0 <= tile.n_begin && tile.n_end <= w.n && 0 <= tile.row_begin);
  if (tile.row_begin >= tile.row_end || tile.n_begin >= tile.n_end) return;
  w.kernel->run(x, w, tile, y);
}

void linear(const Activations& x, const PackedWeight& w, const ResultRows& y) {
  linear(x, w, LinearTile{0, x.rows, 0, w.n}, y);
}

LinearTile LinearTiling::tile(int64_t i) const {
  const int64_t row = i % num_row_tiles() * rows_per_tile;
  const int64_t col = i / num_row_tiles() * n_per_tile;
  return {row, std::min(row + rows_per_tile, rows), col, std::min(col + n_per_tile, n)};
}

LinearTiling plan_linear(int64_t rows, int64_t n, int64_t k, int num_threads) {
  // A tile's weights are read once from memory and then once per block of rows from the cache, so tiles are
  // tall; four tiles a thread even out what a neighbour takes away. A tile under 32 Ki multiply-adds costs
  // more to hand out than it is worth splitting.
  constexpr int64_t kTilesPerThread = 4;
  constexpr int64_t kMultiplyAddsMin = 32 * 1024;
  LinearTiling tiling;
  tiling.rows = rows;
  tiling.n = n;
  tiling.rows_per_tile =
      std::max<int64_t>(1, ceil_div(rows, ceil_div(std::max<int64_t>(rows, 1), kLinearTileRowsMax)));
  const int64_t panels = ceil_div(n, kLinearTileN);
  const int64_t row_tiles = std::max<int64_t>(1, tiling.num_row_tiles());
  const int64_t wanted = num_threads > 1 ? ceil_div(kTilesPerThread * num_threads, row_tiles) : 1;
  int64_t panels_per_tile = std::max<int64_t>(1, panels / std::max<int64_t>(1, wanted));
  const int64_t panel_work = tiling.rows_per_tile * kLinearTileN * std::max<int64_t>(k, 1);
  panels_per_tile = std::max(panels_per_tile, std::min(panels, kMultiplyAddsMin / panel_work));
  tiling.n_per_tile = std::max<int64_t>(1, panels_per_tile) * kLinearTileN;
  return tiling;
}

}  // namespace fathom
