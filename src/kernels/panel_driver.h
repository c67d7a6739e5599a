// The loops around every linear micro-kernel: rows in blocks, K in blocks, panels of 32 outputs.
// Included by instruction-set files only. Everything is in an unnamed namespace so that each file gets its
// own copy, compiled for its own instruction set: the linker must never merge them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/panel_layout.h"
#include "kernels/simd.h"

namespace fathom {
namespace {

// One block of rows against one panel over [k, k + k_count): c[r, 0..32) (+)= Σ a[r, ·] · w[·].
struct MicroArgs {
  const std::byte* a;  // row 0 at the first element
  int64_t a_stride;    // bytes
  const std::byte* w;  // the panel at the first element
  int64_t k_count;     // a multiple of 128, or up to the end of K
  float* c;
  int64_t c_stride;  // elements
  bool first;        // c starts at zero
  // Where a kernel of kScaledSums writes its sums after the last 128 of this part of K; c has rows of
  // kLinearTileN then.
  float* to;
  int64_t to_stride;
  const float* x_scales;  // FP8, INT8: of the first 128 of K; one more per 128
  int64_t x_scale_stride;
  const float* w_scales;  // FP8
  const int32_t* x_sums;  // INT8, INT4: what the kernel's prepare left for row 0
  int64_t x_sum_stride;
  const std::byte* ahead;  // what to fetch meanwhile, forward from here; null: the panel itself, further on
};

// Where sums go after the block-th 128 of K.
struct SumsPlace {
  float* to;
  int64_t stride;
};
FATHOM_INLINE SumsPlace sums_place(const MicroArgs& args, int64_t block) {
  const bool last = (block + 1) * kScaleBlock >= args.k_count;
  return last ? SumsPlace{args.to, args.to_stride} : SumsPlace{args.c, kLinearTileN};
}

// Rows [row, row + rows) of x over [k, k + k_count): what is prepared at a time.
struct RowGroup {
  const Activations& x;
  int64_t row, rows;
  int64_t k, k_count;

  FATHOM_INLINE const std::byte* data(int64_t element_bytes) const {
    return static_cast<const std::byte*>(x.data) + row * x.row_stride_bytes + k * element_bytes;
  }
};

// Room for a sum per row and group of 32, which the INT4 kernels' prepare fills.
template <int64_t kGroupRows, int64_t kKBlock>
struct Int4Sums {
  static constexpr int64_t kCount = kGroupRows * kKBlock / kInt4Group;
  int32_t sums[kCount];
  static int64_t max_k(int64_t rows) { return kCount * kInt4Group / rows / kScaleBlock * kScaleBlock; }
};

// A kernel K has:
//   Args = MicroArgs; kFormat; kMaxRows (rows of the largest block); kKBlock (most of K at a time when there
//   are several blocks of rows); kGroupRows (rows prepared at a time, a multiple of kMaxRows);
//   run<rows>(MicroArgs); Scratch: what prepare fills; prepare(group, scratch, args) sets args.a and
//   a_stride, or x_sums and x_sum_stride, for these rows; max_k(rows): the most of K the scratch takes for
//   that many rows.
// The run<rows> of a kernel K for every number of rows up to K::kMaxRows.
template <class K>
using MicroKernel = void (*)(const typename K::Args&);
template <class K, int... kRowsLess1>
constexpr std::array<MicroKernel<K>, sizeof...(kRowsLess1)> micro_kernels(
    std::integer_sequence<int, kRowsLess1...>) {
  return {K::template run<kRowsLess1 + 1>...};
}
template <class K>
constexpr auto kMicroKernels = micro_kernels<K>(std::make_integer_sequence<int, K::kMaxRows>());

// Formats that add to c once per 128 of K: c is then a tile of our own, whose rows cannot fall on the same
// cache sets as rows of y a power of two apart do.
template <WeightFormat kFormat>
constexpr bool kScaledSums =
    kFormat == WeightFormat::kFp8 || kFormat == WeightFormat::kInt8 || kFormat == WeightFormat::kInt4;

// Cuts `rows` into blocks as even as can be and calls block(first, count).
template <class K, class Block>
FATHOM_INLINE void for_row_blocks(int64_t rows, Block block) {
  const int64_t blocks = (rows + K::kMaxRows - 1) / K::kMaxRows;
  int64_t done = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t count = (rows - done + blocks - b - 1) / (blocks - b);
    block(done, count);
    done += count;
  }
}

// Up to a panel's columns of one row. A known size becomes a few moves, where a call would cost as much
// again.
FATHOM_INLINE void copy_columns(const void* from, int64_t columns, void* to, int64_t element_bytes) {
  if (columns == kLinearTileN && element_bytes == 4) {
    __builtin_memcpy(to, from, kLinearTileN * 4);
  } else {
    __builtin_memcpy(to, from, static_cast<size_t>(columns * element_bytes));
  }
}

// The same rounded to BF16. V: the vectors of the file's instruction set (simd_avx2.h, …).
template <class V>
FATHOM_INLINE void store_rounded(const float* sums, int64_t columns, std::byte* to) {
  alignas(64) std::byte part[kLinearTileN * 2];
  std::byte* const out = columns == kLinearTileN ? to : part;
  FATHOM_UNROLL
  for (int64_t i = 0; i < kLinearTileN; i += V::kLanes) V::store_bf16(out + i * 2, V::load(sums + i));
  if (out == part) copy_columns(part, columns, to, 2);
}

// Brings the places of results into the cache while they are computed: rows are too far apart for hardware
// prefetchers, and stores that miss would hold up the next block's.
FATHOM_INLINE void ask_for_columns(const std::byte* out, int64_t stride_bytes, int64_t rows,
                                   int64_t last_byte) {
  for (int64_t r = 0; r < rows; ++r) {
    _mm_prefetch(reinterpret_cast<const char*>(out + r * stride_bytes), _MM_HINT_T0);
    if (last_byte >= 64)
      _mm_prefetch(reinterpret_cast<const char*>(out + r * stride_bytes + last_byte), _MM_HINT_T0);
  }
}

// BF16 results: all of K at once.
template <typename K, typename V>
void run_panel(const MicroArgs& base, int64_t rows, const PackedWeight& w, int64_t panel, const ResultRows& y,
               int64_t row) {
  const int64_t columns = smaller(kLinearTileN, w.n - panel * kLinearTileN);
  const bool rounds = y.dtype == DType::kBf16;
  const int64_t element_bytes = rounds ? 2 : 4, stride_bytes = y.stride * element_bytes;
  const bool in_place = columns == kLinearTileN && !rounds;
  alignas(64) float sums[K::kMaxRows * kLinearTileN];
  for_row_blocks<K>(rows, [&](int64_t done, int64_t count) {
    MicroArgs args = base;
    // Several blocks of rows: all but the first find the panel in the cache, so the last brings the next one.
    const bool brings_next = done > 0 && done + count == rows;
    args.ahead = brings_next ? base.ahead : nullptr;
    args.a += done * base.a_stride;
    if (base.x_scales != nullptr) args.x_scales += done * base.x_scale_stride;
    if (base.x_sums != nullptr) args.x_sums += done * base.x_sum_stride;
    std::byte* const out = y.at(row + done, panel * kLinearTileN);
    if (args.first) ask_for_columns(out, stride_bytes, count, columns * element_bytes - 1);
    if (in_place) {
      args.to = reinterpret_cast<float*>(out);
      args.to_stride = y.stride;
    } else {
      args.to = sums;
      args.to_stride = kLinearTileN;
    }
    if (in_place && !kScaledSums<K::kFormat>) {
      args.c = args.to;
      args.c_stride = y.stride;
    } else {
      args.c = sums;
      args.c_stride = kLinearTileN;
      for (int64_t r = 0; r < count && !args.first; ++r)
        copy_columns(out + r * stride_bytes, columns, sums + r * kLinearTileN, 4);
    }
    kMicroKernels<K>[count - 1](args);
    for (int64_t r = 0; r < count && !in_place; ++r) {
      if (rounds) {
        store_rounded<V>(sums + r * kLinearTileN, columns, out + r * stride_bytes);
      } else {
        copy_columns(sums + r * kLinearTileN, columns, out + r * stride_bytes, 4);
      }
    }
  });
}

template <typename K, typename V>
void run_panels(const Activations& x, const PackedWeight& w, const LinearTile& tile, const ResultRows& y);

// BF16 results where K does not fit at once: F32 sums of a part of the tile, then rounded.
template <typename K, typename V>
void run_panels_rounded(const Activations& x, const PackedWeight& w, const LinearTile& tile,
                        const ResultRows& y) {
  constexpr int64_t kRows = 128, kColumns = 128;
  alignas(64) float sums[kRows * kColumns];
  for (int64_t n = tile.n_begin; n < tile.n_end; n += kColumns) {
    for (int64_t row = tile.row_begin; row < tile.row_end; row += kRows) {
      const LinearTile part{row, smaller(row + kRows, tile.row_end), n, smaller(n + kColumns, tile.n_end)};
      const MatrixView<float> part_y(sums - (row * kColumns + n), part.row_end, w.n, kColumns);
      run_panels<K, V>(x, w, part, part_y);
      for (int64_t r = row; r < part.row_end; ++r) {
        for (int64_t c = n; c < part.n_end; c += kLinearTileN) {
          store_rounded<V>(sums + (r - row) * kColumns + c - n, smaller(kLinearTileN, part.n_end - c),
                           y.at(r, c));
        }
      }
    }
  }
}

template <typename K, typename V>
void run_panels(const Activations& x, const PackedWeight& w, const LinearTile& tile, const ResultRows& y) {
  typename K::Scratch scratch;
  const int64_t rows = tile.row_end - tile.row_begin;
  const int64_t group_rows = smaller(rows, K::kGroupRows);
  int64_t k_block = rows > K::kMaxRows ? smaller(w.k, K::kKBlock) : w.k;
  k_block = smaller(k_block, K::max_k(group_rows));
  if (y.dtype == DType::kBf16 && k_block < w.k) return run_panels_rounded<K, V>(x, w, tile, y);
  const int64_t bytes = panel_bytes(K::kFormat, w.k);
  const int64_t scale_cols = ceil_div(w.k, kScaleBlock);
  const auto* w_scales = reinterpret_cast<const float*>(w.data + panel_scales_at(w.n, w.k));
  for (int64_t k = 0; k < w.k; k += k_block) {
    for (int64_t row = tile.row_begin; row < tile.row_end; row += group_rows) {
      const RowGroup group{x, row, smaller(group_rows, tile.row_end - row), k, smaller(k_block, w.k - k)};
      MicroArgs args{};
      args.k_count = group.k_count;
      args.first = k == 0;
      if (x.scales != nullptr) {
        args.x_scales = x.scales + row * x.scale_stride + k / kScaleBlock;
        args.x_scale_stride = x.scale_stride;
      }
      K::prepare(group, scratch, args);
      const int64_t last = ceil_div(tile.n_end, kLinearTileN);
      for (int64_t panel = tile.n_begin / kLinearTileN; panel < last; ++panel) {
        args.w = w.data + panel * bytes + panel_offset(K::kFormat, k);
        args.ahead = args.w + bytes;
        if (K::kFormat == WeightFormat::kFp8) args.w_scales = w_scales + panel * scale_cols + k / kScaleBlock;
        if constexpr (requires { K::widen_panel(scratch, args); }) {
          if (K::kWidensPanels && group.rows > K::kMaxRows) {
            K::widen_panel(scratch, args);
            run_panel<typename K::Widened, V>(args, group.rows, w, panel, y, row);
            continue;
          }
        }
        run_panel<K, V>(args, group.rows, w, panel, y, row);
      }
    }
  }
}

}  // namespace
}  // namespace fathom
