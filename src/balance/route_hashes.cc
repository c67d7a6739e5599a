// XXH3 of a block's tokens, mixed into its parent's hash: blocks are hashed side by side, chained in one step
// each.
#include "balance/route_hashes.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>

#include "base/check.h"
#include "base/rng.h"

namespace fathom {

static_assert(std::endian::native == std::endian::little, "tokens are hashed in place");

uint64_t route_root(std::string_view model_fingerprint, std::string_view tenant) {
  return hash_u64(XXH3_64bits(model_fingerprint.data(), model_fingerprint.size()),
                  XXH3_64bits(tenant.data(), tenant.size()));
}

void append_route_hashes(uint64_t root, std::span<const int32_t> tokens, int block_tokens,
                         std::vector<uint64_t>& hashes) {
  CHECK(block_tokens > 0);
  const auto block_size = static_cast<size_t>(block_tokens);
  const size_t num_whole = tokens.size() / block_size;
  CHECK(num_whole >= hashes.size());
  hashes.reserve(num_whole);
  uint64_t parent = hashes.empty() ? root : hashes.back();
  for (size_t block = hashes.size(); block < num_whole; ++block) {
    const std::span<const int32_t> of_block = tokens.subspan(block * block_size, block_size);
    parent = mix64(parent ^ XXH3_64bits(of_block.data(), of_block.size_bytes()));
    hashes.push_back(parent);
  }
}

}  // namespace fathom
