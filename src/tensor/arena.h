// Memory for weights, KV and activations: 64-byte aligned, zeroed, on huge pages where the kernel gives them.
// Everything is allocated at start, from declared maxima.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "tensor/view.h"

namespace fathom {

inline constexpr size_t kBufferAlignmentBytes = 64;
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Rounds up to a whole number of `unit`s (a power of two).
constexpr size_t align_up(size_t bytes, size_t unit) { return (bytes + unit - 1) & ~(unit - 1); }

// Owns zeroed memory. From 2 MiB on it is a mapping of its own, aligned to and advised for huge pages: its
// physical pages appear when first written and go back to the system when the buffer dies.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(
      size_t size_bytes);  // std::bad_alloc, as from new, when the system has no room for it
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept { swap(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    AlignedBuffer(std::move(other)).swap(*this);
    return *this;
  }

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  bool empty() const { return size_bytes_ == 0; }

  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }
  std::span<std::byte> bytes() { return {data_, size_bytes_}; }
  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }

  void swap(AlignedBuffer& other) noexcept;

  // Of all buffers of the process, touched or not; what a memory plan is checked against.
  static int64_t live_bytes();

 private:
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  void* mapping_ = nullptr;  // null: from the heap
  size_t mapping_bytes_ = 0;
};

}  // namespace fathom
