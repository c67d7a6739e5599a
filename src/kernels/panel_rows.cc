// Panels back to rows: for instruction sets that read another layout than the saved one.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/panel_layout.h"

namespace fathom {
namespace {

constexpr DType kDTypes[kNumWeightFormats] = {DType::kF32,     DType::kF16,  DType::kBf16,
                                              DType::kFp8E4m3, DType::kInt8, DType::kInt4};

}  // namespace

PanelRows::PanelRows(WeightFormat format, int64_t n, int64_t k, const std::byte* panels)
    : format_(format), n_(n), k_(k), panels_(panels) {
  rows_ = {.dtype = kDTypes[static_cast<int>(format)], .n = kLinearTileN, .k = k};
  codes_.resize(static_cast<size_t>(kLinearTileN * rows_.row_bytes()));
  const bool per_row = format == WeightFormat::kInt8 || format == WeightFormat::kInt4;
  const bool scaled = per_row || format == WeightFormat::kFp8;
  const int64_t scale_bytes = format == WeightFormat::kInt4 ? 2 : 4;
  if (scaled)
    scales_.resize(static_cast<size_t>((per_row ? kLinearTileN : 1) * rows_.scale_cols() * scale_bytes));
  rows_.data = codes_.data();
  rows_.scales = scaled ? scales_.data() : nullptr;
}

WeightSource PanelRows::read(int64_t panel) {
  CHECK(0 <= panel && panel * kLinearTileN < n_);
  const std::byte* begin = panels_ + panel * panel_bytes(format_, k_);
  switch (format_) {
    case WeightFormat::kF32:
    case WeightFormat::kBf16:
      read_units(begin, 4);
      break;
    case WeightFormat::kF16:
      read_units(begin, 2);
      break;
    case WeightFormat::kFp8:
      read_fp8(begin);
      std::memcpy(scales_.data(),
                  panels_ + panel_scales_at(n_, k_) + panel * static_cast<int64_t>(scales_.size()),
                  scales_.size());
      break;
    case WeightFormat::kInt8:
      read_int8(begin);
      break;
    case WeightFormat::kInt4:
      read_int4(begin);
      break;
  }
  return rows_;
}

// [units][32] to [32][units], cut where a row ends inside its last unit.
void PanelRows::read_units(const std::byte* panel, int64_t unit_bytes) {
  const int64_t row_bytes = rows_.row_bytes();
  for (int64_t at = 0, unit = 0; at < row_bytes; at += unit_bytes, ++unit) {
    const auto bytes = static_cast<size_t>(std::min(unit_bytes, row_bytes - at));
    for (int64_t row = 0; row < kLinearTileN; ++row) {
      std::memcpy(&codes_[static_cast<size_t>(row * row_bytes + at)],
                  panel + (unit * kLinearTileN + row) * unit_bytes, bytes);
    }
  }
}

void PanelRows::read_fp8(const std::byte* panel) {
  for (int64_t k = 0; k < k_; ++k) {
    for (int64_t position = 0; position < kLinearTileN; ++position) {
      codes_[static_cast<size_t>(fp8_column(position) * k_ + k)] =
          panel[(k / 2 * kLinearTileN + position) * 2 + k % 2];
    }
  }
}

void PanelRows::read_int8(const std::byte* panel) {
  const int64_t blocks = rows_.scale_cols();
  for (int64_t block = 0; block < blocks; ++block) {
    const std::byte* begin = panel + block * kInt8BlockBytes;
    for (int64_t row = 0; row < kLinearTileN; ++row) {
      std::memcpy(&scales_[static_cast<size_t>((row * blocks + block) * 4)], begin + row * 4, 4);
    }
    const std::byte* units = begin + kLinearTileN * 4;
    for (int64_t k = block * kScaleBlock; k < std::min((block + 1) * kScaleBlock, k_); ++k) {
      const int64_t in_block = k % kScaleBlock;
      for (int64_t row = 0; row < kLinearTileN; ++row) {
        codes_[static_cast<size_t>(row * k_ + k)] =
            units[(in_block / 4 * kLinearTileN + row) * 4 + in_block % 4] ^ std::byte{0x80};
      }
    }
  }
}

void PanelRows::read_int4(const std::byte* panel) {
  const int64_t groups = rows_.scale_cols();
  for (int64_t group = 0; group < groups; ++group) {
    const std::byte* begin = panel + group * kInt4GroupBytes;
    const std::byte* units = begin + kLinearTileN * 2;
    for (int64_t row = 0; row < kLinearTileN; ++row) {
      std::memcpy(&scales_[static_cast<size_t>((row * groups + group) * 2)], begin + row * 2, 2);
      std::byte* out = &codes_[static_cast<size_t>(row * rows_.row_bytes() + group * (kInt4Group / 2))];
      for (int64_t i = 0; i < kInt4Group / 2; ++i) {
        // Elements 2i and 2i + 1 are bytes b and b + 1 of step i / 4, in its low or its high half.
        const std::byte* unit = units + (i / 4 * kLinearTileN + row) * 4;
        const int64_t first = 2 * (i % 4);
        const int shift = first < 4 ? 0 : 4;
        const std::byte low = (unit[first % 4] >> shift) & std::byte{15};
        const std::byte high = (unit[first % 4 + 1] >> shift) & std::byte{15};
        out[i] = low | (high << 4);
      }
    }
  }
}

}  // namespace fathom
