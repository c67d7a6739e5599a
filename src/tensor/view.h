// Views of memory owned elsewhere. A view knows the device its memory is on; nothing here owns or copies.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include "base/check.h"

namespace fathom {

enum class Device : uint8_t { kCpu, kCuda };

// `rows` rows of `cols` elements, row i starting at data + i * stride. Elements of a row are adjacent.
template <typename T>
struct MatrixView {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements from one row to the next, ≥ cols
  Device device = Device::kCpu;

  MatrixView() = default;
  MatrixView(T* data, int64_t rows, int64_t cols) : MatrixView(data, rows, cols, cols) {}
  MatrixView(T* data, int64_t rows, int64_t cols, int64_t stride, Device device = Device::kCpu)
      : data(data), rows(rows), cols(cols), stride(stride), device(device) {}
  // A mutable view is also a read-only one.
  template <typename U>
    requires(std::is_same_v<T, const U>)
  MatrixView(const MatrixView<U>& other)
      : data(other.data), rows(other.rows), cols(other.cols), stride(other.stride), device(other.device) {}

  T* row(int64_t i) const { return data + i * stride; }
  std::span<T> row_span(int64_t i) const { return {row(i), static_cast<size_t>(cols)}; }
  T& at(int64_t i, int64_t j) const { return data[i * stride + j]; }

  MatrixView row_range(int64_t begin, int64_t end) const {
    CHECK(0 <= begin && begin <= end && end <= rows);
    return {row(begin), end - begin, cols, stride, device};
  }
  MatrixView col_range(int64_t begin, int64_t end) const {
    CHECK(0 <= begin && begin <= end && end <= cols);
    return {data + begin, rows, end - begin, stride, device};
  }
};

}  // namespace fathom
