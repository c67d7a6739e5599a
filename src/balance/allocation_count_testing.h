// Counts every operator new of a binary. For tests and benchmarks; it replaces the global operators, so one
// file of a binary includes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace fathom {

inline std::atomic<int64_t> num_allocations{0};

inline void* counted_allocation(size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(size > 0 ? size : 1);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace fathom

// Every form of new without an alignment; the library's nothrow forms call these, a sanitizer's do not. Out
// of line, or GCC takes a delete that was inlined for one of another allocator (-Wmismatched-new-delete).
#define FATHOM_COUNTED [[gnu::noinline]]
FATHOM_COUNTED void* operator new(size_t size) { return fathom::counted_allocation(size); }
FATHOM_COUNTED void* operator new[](size_t size) { return fathom::counted_allocation(size); }
FATHOM_COUNTED void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return fathom::counted_allocation(size);
}
FATHOM_COUNTED void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return fathom::counted_allocation(size);
}
FATHOM_COUNTED void operator delete(void* memory) noexcept { std::free(memory); }
FATHOM_COUNTED void operator delete[](void* memory) noexcept { std::free(memory); }
FATHOM_COUNTED void operator delete(void* memory, size_t) noexcept { std::free(memory); }
FATHOM_COUNTED void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
