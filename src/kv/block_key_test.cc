// Keys of KV blocks against another SHA-256, and that each part of what they stand for changes them.
#include "kv/block_key.h"

#include <gtest/gtest.h>

#include <numeric>

namespace fathom {
namespace {

std::string hex(const BlockKey& key) {
  std::string text;
  for (const uint8_t byte : key.bytes) text += fmt::format("{:02x}", byte);
  return text;
}

// Expected values from Python's hashlib and struct.
TEST(BlockKey, equals_an_independent_sha256) {
  const BlockKey root = root_key("model", "layout", "tenant");
  EXPECT_EQ(hex(root), "81c9eb223b803eb097b3c85c2161fb41a59d7d7a1f0fa99d3790b723e30ac420");
  std::vector<int32_t> tokens(128);
  std::iota(tokens.begin(), tokens.begin() + 64, 0);
  for (int i = 0; i < 64; ++i) tokens[64 + i] = 129279 - i;
  KeyChain chain(root);
  chain.extend(std::span(tokens).first(100));
  ASSERT_EQ(chain.size(), 1);
  chain.extend(tokens);
  ASSERT_EQ(chain.size(), 2);
  EXPECT_EQ(hex(chain[0]), "05dd1fd90cde8d341c53d2710e53be3407817575495a59fe28f7a15f93aef9a8");
  EXPECT_EQ(hex(chain[1]), "d39388c6884d500d9cfdbaa6a6507fdb5c6cf9076417953509965d02a81ac952");
}

TEST(BlockKey, every_part_of_the_root_tells_keys_apart) {
  const BlockKey root = root_key("ab", "c", "d");
  EXPECT_NE(root, root_key("a", "bc", "d"));
  EXPECT_NE(root, root_key("ab", "cd", ""));
  EXPECT_NE(root, root_key("ab", "c", "e"));
  EXPECT_EQ(root, root_key("ab", "c", "d"));
}

TEST(BlockKey, a_key_depends_on_all_tokens_before) {
  std::vector<int32_t> a(192, 7);
  std::vector<int32_t> b = a;
  b[63] = 8;
  KeyChain chain_a(root_key("m", "l", "t"));
  KeyChain chain_b(root_key("m", "l", "t"));
  chain_a.extend(a);
  chain_b.extend(b);
  for (int i = 0; i < 3; ++i) EXPECT_NE(chain_a[i], chain_b[i]);
}

}  // namespace
}  // namespace fathom
