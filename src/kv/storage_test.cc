// Where KV rows lie: the published shape's bytes, and that rows of odd sizes never overlap.
#include "kv/storage.h"

#include <gtest/gtest.h>

#include <cstring>

namespace fathom {
namespace {

TEST(KvStorage, the_published_shape_takes_the_published_bytes) {
  // DeepSeek-V3: 61 layers x (512 + 64) BF16 = 70,272 bytes per token, rows need no padding.
  const KvLayout layout{.num_layers = 61, .latent_dim = 512, .rope_dim = 64};
  EXPECT_EQ(layout.bytes_per_token(), 70272);
  EXPECT_EQ(layout.block_bytes(), 64 * 70272);
  EXPECT_EQ(layout.to_string(), "kv1:layers=61:latent=512:rope=64:BF16");
}

TEST(KvStorage, odd_rows_are_padded_and_never_overlap) {
  const KvLayout layout{.num_layers = 3, .latent_dim = 37, .rope_dim = 6, .dtype = DType::kF32};
  EXPECT_EQ(layout.row_stride_bytes(), 192);
  KvStorage storage(layout, 5);
  const int64_t row_bytes = dtype_bytes(layout.dtype, layout.row_values());
  const auto fill_of = [](int block, int layer, int token) { return (block * 3 + layer) * 64 + token; };
  for (int block = 0; block < 5; ++block) {
    for (int layer = 0; layer < 3; ++layer) {
      for (int token = 0; token < kBlockTokens; ++token) {
        std::byte* row = storage.row(BlockId{block}, layer, token);
        ASSERT_EQ(reinterpret_cast<uintptr_t>(row) % 64, 0u);
        std::memset(row, fill_of(block, layer, token), row_bytes);
      }
    }
  }
  for (int block = 0; block < 5; ++block) {
    for (int layer = 0; layer < 3; ++layer) {
      for (int token = 0; token < kBlockTokens; ++token) {
        const std::byte* row = storage.row(BlockId{block}, layer, token);
        const auto want = static_cast<std::byte>(fill_of(block, layer, token));
        ASSERT_EQ(row[0], want);
        ASSERT_EQ(row[row_bytes - 1], want);
      }
    }
  }
}

}  // namespace
}  // namespace fathom
