// The reference linear layer: weights row-major as they are saved, one output at a time.
#include <algorithm>
#include <cstring>

#include "kernels/dispatch_tables.h"
#include "kernels/linear.h"
#include "kernels/weight_tile.h"

namespace fathom {
namespace {

// Codes row-major with rows of row_bytes, then one scale per (row, 128 of K) or F16 (row, 32 of K).
struct RefLayout {
  int64_t code_bits, row_bytes, scale_cols, scale_bytes, scales_at, total;

  RefLayout(WeightFormat format, int64_t n, int64_t k) {
    constexpr int kBits[kNumWeightFormats] = {32, 16, 16, 8, 8, 4};
    const bool int4 = format == WeightFormat::kInt4;
    code_bits = kBits[static_cast<int>(format)];
    row_bytes = round_up(k, kScaleBlock) * code_bits / 8;
    const bool scaled = format == WeightFormat::kFp8 || format == WeightFormat::kInt8;
    scale_cols = int4 ? round_up(k, kScaleBlock) / kInt4Group : scaled ? ceil_div(k, kScaleBlock) : 0;
    scale_bytes = int4 ? 2 : 4;
    scales_at = round_up(n * row_bytes, 64);
    total = scales_at + round_up(n * scale_cols * scale_bytes, 64);
  }
};

int64_t packed_bytes(WeightFormat format, int64_t n, int64_t k) { return RefLayout(format, n, k).total; }

void pack(const PackedWeight& w, int64_t first_row, int64_t num_rows, const WeightSource& source,
          int64_t source_row) {
  const RefLayout layout(w.format, w.n, w.k);
  const int64_t block_bytes = kScaleBlock * layout.code_bits / 8;
  WeightTile tile;
  for (int64_t done = 0; done < num_rows; done += kLinearTileN) {
    const int64_t rows = std::min(kLinearTileN, num_rows - done);
    for (int64_t block = 0; block * kScaleBlock < w.k; ++block) {
      load_weight_tile(w.format, source, source_row + done, rows, block * kScaleBlock, tile);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t row = first_row + done + r;
        std::memcpy(w.data + row * layout.row_bytes + block * block_bytes,
                    reinterpret_cast<const std::byte*>(tile.f32) + r * block_bytes,
                    static_cast<size_t>(block_bytes));
        std::byte* scales = w.data + layout.scales_at + row * layout.scale_cols * layout.scale_bytes;
        if (w.format == WeightFormat::kInt4) {
          std::memcpy(scales + block * sizeof(tile.group_scales[r]), tile.group_scales[r],
                      sizeof(tile.group_scales[r]));
        } else if (layout.scale_cols > 0) {
          std::memcpy(scales + block * 4, &tile.scales[r], 4);
        }
      }
    }
  }
}

float weight_value(WeightFormat format, const std::byte* row, int64_t k) {
  switch (format) {
    case WeightFormat::kF32:
      return reinterpret_cast<const float*>(row)[k];
    case WeightFormat::kF16:
      return f16_to_f32(reinterpret_cast<const F16*>(row)[k]);
    case WeightFormat::kBf16:
      return bf16_to_f32(reinterpret_cast<const Bf16*>(row)[k]);
    case WeightFormat::kFp8:
      return fp8_e4m3_to_f32(reinterpret_cast<const Fp8E4m3*>(row)[k]);
    case WeightFormat::kInt8:
      return reinterpret_cast<const int8_t*>(row)[k];
    case WeightFormat::kInt4:
      return static_cast<float>(((std::to_integer<int>(row[k / 2]) >> (k % 2 * 4)) & 15) - 8);
  }
  return 0;
}

float act_value(ActFormat format, const std::byte* row, int64_t k) {
  switch (format) {
    case ActFormat::kF32:
      return reinterpret_cast<const float*>(row)[k];
    case ActFormat::kBf16:
      return bf16_to_f32(reinterpret_cast<const Bf16*>(row)[k]);
    case ActFormat::kFp8:
      return fp8_e4m3_to_f32(reinterpret_cast<const Fp8E4m3*>(row)[k]);
    case ActFormat::kInt8:
      return reinterpret_cast<const int8_t*>(row)[k];
  }
  return 0;
}

float one_output(const Activations& x, int64_t row, const PackedWeight& w, const RefLayout& layout,
                 int64_t col) {
  const std::byte* w_row = w.data + col * layout.row_bytes;
  const std::byte* scales = w.data + layout.scales_at + col * layout.scale_cols * layout.scale_bytes;
  const auto dot = [&](int64_t begin, int64_t end) {
    double sum = 0;
    for (int64_t k = begin; k < std::min(end, w.k); ++k) {
      sum += static_cast<double>(act_value(x.format, x.row(row), k)) * weight_value(w.format, w_row, k);
    }
    return static_cast<float>(sum);
  };
  if (layout.scale_cols == 0) return dot(0, w.k);
  float sum = 0;
  for (int64_t block = 0; block * kScaleBlock < w.k; ++block) {
    const int64_t begin = block * kScaleBlock;
    const float x_scale = x.row_scales(row)[block];
    if (w.format == WeightFormat::kInt4) {
      const auto* group_scales = reinterpret_cast<const F16*>(scales);
      float block_sum = 0;
      for (int64_t k = begin; k < std::min(begin + kScaleBlock, w.k); k += kInt4Group) {
        block_sum += dot(k, k + kInt4Group) * f16_to_f32(group_scales[k / kInt4Group]);
      }
      sum += block_sum * x_scale;
    } else {
      sum += dot(begin, begin + kScaleBlock) * x_scale * reinterpret_cast<const float*>(scales)[block];
    }
  }
  return sum;
}

void run(const Activations& x, const PackedWeight& w, const LinearTile& tile, const ResultRows& y) {
  const RefLayout layout(w.format, w.n, w.k);
  for (int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    for (int64_t col = tile.n_begin; col < tile.n_end; ++col) {
      const float sum = one_output(x, row, w, layout, col);
      if (y.dtype == DType::kF32) {
        std::memcpy(y.at(row, col), &sum, sizeof(sum));
      } else {
        const Bf16 rounded = f32_to_bf16(sum);
        std::memcpy(y.at(row, col), &rounded, sizeof(rounded));
      }
    }
  }
}

template <WeightFormat kFormat>
constexpr LinearKernel kKernel = {
    kFormat, Isa::kRef, [](int64_t n, int64_t k) { return packed_bytes(kFormat, n, k); }, pack, run};

}  // namespace

void add_ref_linear(KernelTable& table) {
  table.linear[static_cast<int>(WeightFormat::kF32)] = &kKernel<WeightFormat::kF32>;
  table.linear[static_cast<int>(WeightFormat::kF16)] = &kKernel<WeightFormat::kF16>;
  table.linear[static_cast<int>(WeightFormat::kBf16)] = &kKernel<WeightFormat::kBf16>;
  table.linear[static_cast<int>(WeightFormat::kFp8)] = &kKernel<WeightFormat::kFp8>;
  table.linear[static_cast<int>(WeightFormat::kInt8)] = &kKernel<WeightFormat::kInt8>;
  table.linear[static_cast<int>(WeightFormat::kInt4)] = &kKernel<WeightFormat::kInt4>;
}

}  // namespace fathom
