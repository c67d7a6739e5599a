// Route hashes: chained, the same everywhere, and apart for other models, tenants and tokens.
#include "balance/route_hashes.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/rng.h"

namespace fathom {
namespace {

std::vector<int32_t> some_tokens(uint64_t seed, size_t count) {
  Rng rng(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.next_below(129'280));
  return tokens;
}
std::vector<uint64_t> hashes_of(std::span<const int32_t> tokens, uint64_t root = route_root("model", "")) {
  std::vector<uint64_t> hashes;
  append_route_hashes(root, tokens, 64, hashes);
  return hashes;
}

TEST(RouteHashes, DependOnThePrefixOnly) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<int32_t> tokens = some_tokens(seed, 64 * 20 + 17);
    const std::vector<uint64_t> hashes = hashes_of(tokens);
    ASSERT_EQ(hashes.size(), 20u);
    const size_t at = Rng(seed).next_below(64 * 20);
    ++tokens[at];
    const std::vector<uint64_t> changed = hashes_of(tokens);
    for (size_t b = 0; b < hashes.size(); ++b)
      EXPECT_EQ(hashes[b] == changed[b], b < at / 64) << "prefix_only, block " << b;
  }
}

TEST(RouteHashes, GrowWithThePrompt) {
  const std::vector<int32_t> tokens = some_tokens(1, 1000);
  std::vector<uint64_t> hashes;
  for (const size_t length : {10u, 64u, 200u, 777u, 1000u})
    append_route_hashes(route_root("model", ""), std::span(tokens).first(length), 64, hashes);
  EXPECT_EQ(hashes, hashes_of(tokens)) << "grows";
}

TEST(RouteHashes, TellModelsTenantsAndOrdersApart) {
  std::set<uint64_t> all;
  size_t count = 0;
  for (const char* model : {"a", "b"}) {
    for (const char* tenant : {"", "a", "b"}) {
      for (int first = 0; first < 100; ++first) {
        std::vector<int32_t> tokens(128);
        std::iota(tokens.begin(), tokens.end(), first);
        for (const uint64_t hash : hashes_of(tokens, route_root(model, tenant))) all.insert(hash), ++count;
      }
    }
  }
  EXPECT_EQ(all.size(), count);
}

// Committed: routers and workers on different machines must agree.
TEST(RouteHashes, AreTheSameEverywhere) {
  std::vector<int32_t> tokens(128);
  std::iota(tokens.begin(), tokens.end(), 0);
  EXPECT_EQ(hashes_of(tokens), (std::vector<uint64_t>{5415753437658643415u, 481225753785047125u}))
      << "same_everywhere";
}

}  // namespace
}  // namespace fathom
