// Buffers from mmap (large) or the heap (small).
#include "tensor/arena.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace fathom {
namespace {

std::atomic<int64_t> live_bytes_of_all{0};

}  // namespace

AlignedBuffer::AlignedBuffer(size_t size_bytes) : size_bytes_(size_bytes) {
  if (size_bytes == 0) return;
  if (size_bytes < kHugePageBytes) {
    const size_t rounded = align_up(size_bytes, kBufferAlignmentBytes);
    data_ = static_cast<std::byte*>(std::aligned_alloc(kBufferAlignmentBytes, rounded));
    if (data_ == nullptr) throw std::bad_alloc();
    std::memset(data_, 0, rounded);
    live_bytes_of_all.fetch_add(static_cast<int64_t>(size_bytes), std::memory_order_relaxed);
    return;
  }
  // One huge page more than needed, so that an aligned start always fits.
  mapping_bytes_ = align_up(size_bytes, kHugePageBytes) + kHugePageBytes;
  mapping_ = mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  live_bytes_of_all.fetch_add(static_cast<int64_t>(size_bytes), std::memory_order_relaxed);
  data_ = reinterpret_cast<std::byte*>(align_up(reinterpret_cast<uintptr_t>(mapping_), kHugePageBytes));
  // Only advice: without huge pages everything works, slower.
  madvise(data_, align_up(size_bytes, kHugePageBytes), MADV_HUGEPAGE);
}

int64_t AlignedBuffer::live_bytes() { return live_bytes_of_all.load(std::memory_order_relaxed); }

AlignedBuffer::~AlignedBuffer() {
  live_bytes_of_all.fetch_sub(static_cast<int64_t>(size_bytes_), std::memory_order_relaxed);
  if (mapping_ != nullptr) {
    munmap(mapping_, mapping_bytes_);
  } else {
    std::free(data_);
  }
}

void AlignedBuffer::swap(AlignedBuffer& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
}

}  // namespace fathom
