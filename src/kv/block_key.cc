// The key chain, on OpenSSL's SHA-256.
#include "kv/block_key.h"

#include <openssl/sha.h>

#include <bit>
#include <cstring>
#include <string>

#include "base/check.h"

namespace fathom {
namespace {

static_assert(std::endian::native == std::endian::little, "keys are little-endian and hashed in place");

BlockKey sha256(const void* data, size_t size_bytes) {
  BlockKey key;
  SHA256(static_cast<const uint8_t*>(data), size_bytes, key.bytes.data());
  return key;
}

void append_field(std::string& text, std::string_view field) {
  const auto size_bytes = static_cast<uint32_t>(field.size());
  text.append(reinterpret_cast<const char*>(&size_bytes), sizeof size_bytes);
  text.append(field);
}

}  // namespace

size_t BlockKeyHash::operator()(const BlockKey& key) const {
  size_t hash;
  std::memcpy(&hash, key.bytes.data(), sizeof hash);
  return hash;
}

BlockKey root_key(std::string_view fingerprint, std::string_view layout, std::string_view tenant) {
  std::string text = "fathom-kv-1";
  append_field(text, fingerprint);
  append_field(text, layout);
  append_field(text, tenant);
  return sha256(text.data(), text.size());
}

BlockKey child_key(const BlockKey& parent, std::span<const int32_t> tokens) {
  CHECK(tokens.size() == size_t{kBlockTokens});
  std::array<uint8_t, sizeof(BlockKey) + kBlockTokens * sizeof(int32_t)> text;
  std::memcpy(text.data(), parent.bytes.data(), sizeof parent.bytes);
  std::memcpy(text.data() + sizeof parent.bytes, tokens.data(), tokens.size_bytes());
  return sha256(text.data(), text.size());
}

void KeyChain::extend(std::span<const int32_t> tokens) {
  const size_t num_whole = tokens.size() / kBlockTokens;
  CHECK(num_whole >= keys_.size());
  for (size_t block = keys_.size(); block < num_whole; ++block) {
    const BlockKey& parent = block == 0 ? root_ : keys_.back();
    const BlockKey key = child_key(parent, tokens.subspan(block * kBlockTokens, kBlockTokens));
    keys_.push_back(key);
  }
}

}  // namespace fathom
