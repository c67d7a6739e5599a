// Alignment, zeroing, ownership and exhaustion of buffers and arenas; bounds of views.
#include "tensor/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

namespace fathom {
namespace {

bool all_zero(const AlignedBuffer& buffer) {
  return std::all_of(buffer.data(), buffer.data() + buffer.size_bytes(),
                     [](std::byte b) { return b == std::byte{0}; });
}

TEST(AlignedBuffer, is_aligned_and_zeroed_at_every_size) {
  for (size_t size : {size_t{1}, size_t{63}, size_t{64}, size_t{4097}, kHugePageBytes - 1, kHugePageBytes,
                      3 * kHugePageBytes + 5}) {
    AlignedBuffer buffer(size);
    EXPECT_EQ(buffer.size_bytes(), size);
    const size_t alignment = size >= kHugePageBytes ? kHugePageBytes : kBufferAlignmentBytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % alignment, 0u) << size;
    EXPECT_TRUE(all_zero(buffer)) << size;
    buffer.data()[size - 1] = std::byte{1};
  }
  EXPECT_EQ(AlignedBuffer(0).data(), nullptr);
}

TEST(AlignedBuffer, what_no_system_has_room_for_is_no_crash) {
  const int64_t before = AlignedBuffer::live_bytes();
  EXPECT_THROW(AlignedBuffer(size_t{1} << 60), std::bad_alloc);
  EXPECT_EQ(AlignedBuffer::live_bytes(), before);
}

TEST(AlignedBuffer, moves_its_memory) {
  AlignedBuffer a(100);
  a.as<uint8_t>()[7] = 42;
  const std::byte* where = a.data();
  AlignedBuffer b(std::move(a));
  EXPECT_EQ(b.data(), where);
  AlignedBuffer c(3 * kHugePageBytes);
  c = std::move(b);
  EXPECT_EQ(c.data(), where);
  EXPECT_EQ(c.size_bytes(), 100u);
  EXPECT_EQ(c.as<uint8_t>()[7], 42);
}

TEST(MatrixView, ranges_share_the_stride) {
  std::vector<int> data(40);
  for (int i = 0; i < 40; ++i) data[static_cast<size_t>(i)] = i;
  MatrixView<int> view(data.data(), 4, 7, 10);
  EXPECT_EQ(view.at(2, 3), 23);
  MatrixView<const int> part = view.row_range(1, 3).col_range(2, 5);
  EXPECT_EQ(part.rows, 2);
  EXPECT_EQ(part.cols, 3);
  EXPECT_EQ(part.at(1, 2), 24);
  EXPECT_EQ(part.row_span(0)[0], 12);
}

}  // namespace
}  // namespace fathom
