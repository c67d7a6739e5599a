// A prompt's whole blocks as a router knows them: 64-bit hashes, chained, so that one stands for a block and
// all before it. Not the keys of the KV store (kv/block_key.h), which must withstand an adversary and cost
// twenty times as much: a router hashes every prompt of the fleet, and where two prefixes collide it expects
// a hit that the rank, which compares keys, does not have. Workers compute the same hashes of what they cache
// and report them with their inserts and evictions.
//
// Invariants, by name:
// * prefix_only: a block's hash depends on the root and the tokens up to its end
// * same_everywhere: on every machine and in every run
// * grows: hashing a longer prompt on from a shorter one's hashes gives the longer one's
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace fathom {

// What a model's and a tenant's prompts start from: caches are shared within both only.
uint64_t route_root(std::string_view model_fingerprint, std::string_view tenant);

// Appends the hashes of all whole blocks of `tokens` that `hashes` does not have yet. Those it has are of the
// same tokens.
void append_route_hashes(uint64_t root, std::span<const int32_t> tokens, int block_tokens,
                         std::vector<uint64_t>& hashes);

}  // namespace fathom
