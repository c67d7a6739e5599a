// Text in which special tokens are marks apart from what users wrote.
#include "text/marked_text.h"

#include <algorithm>

namespace fathom {
namespace {

bool starts_character(char c) { return (c & 0xC0) != 0x80; }

size_t character_size(std::string_view text, size_t begin) {
  size_t end = begin + 1;
  while (end < text.size() && !starts_character(text[end])) ++end;
  return end - begin;
}

uint8_t byte_at(std::string_view text, size_t i) { return static_cast<uint8_t>(text[i]); }

}  // namespace

void SentinelChooser::avoid(std::string_view text) {
  for (size_t i = 0; i + 2 < text.size(); ++i) {
    if (byte_at(text, i) == 0xEF && byte_at(text, i + 1) == 0xB7) {
      // EF B7 90 .. EF B7 AF
      const uint32_t low = byte_at(text, i + 2);
      if (low >= 0x90 && low < 0x90 + kNumNoncharacters) used_[low - 0x90] = true;
    } else if (byte_at(text, i) == 0xF4 && byte_at(text, i + 1) == 0x8F && i + 3 < text.size()) {
      // F4 8F 80 80 .. F4 8F BF BF
      const uint32_t offset = (byte_at(text, i + 2) & 0x3Fu) << 6 | (byte_at(text, i + 3) & 0x3Fu);
      used_[kNumNoncharacters + offset] = true;
    }
  }
}

std::optional<std::string> SentinelChooser::choose() const {
  const auto free = std::find(used_.begin(), used_.end(), false);
  if (free == used_.end()) return std::nullopt;
  const auto i = static_cast<uint32_t>(free - used_.begin());
  if (i < kNumNoncharacters) return std::string{'\xEF', '\xB7', static_cast<char>(0x90 + i)};
  const uint32_t offset = i - kNumNoncharacters;
  return std::string{'\xF4', '\x8F', static_cast<char>(0x80 | offset >> 6),
                     static_cast<char>(0x80 | (offset & 0x3F))};
}

void LookAlikeMarker::Trie::add(std::string_view word) {
  uint32_t node = 0;
  for (const char byte : word) {
    const uint64_t key = uint64_t{node} << 8 | static_cast<uint8_t>(byte);
    const auto [it, is_new] = children.emplace(key, static_cast<uint32_t>(is_end.size()));
    if (is_new) is_end.push_back(false);
    node = it->second;
  }
  is_end[node] = true;
}

std::optional<uint32_t> LookAlikeMarker::Trie::step(uint32_t node, char byte) const {
  const auto it = children.find(uint64_t{node} << 8 | static_cast<uint8_t>(byte));
  if (it == children.end()) return std::nullopt;
  return it->second;
}

LookAlikeMarker::LookAlikeMarker(std::span<const std::string> added_tokens) {
  for (const std::string& token : added_tokens) {
    if (token.empty()) continue;
    tokens_.add(token);
    for (size_t i = 1; i < token.size(); ++i) {
      if (starts_character(token[i])) endings_.add(std::string_view(token).substr(i));
    }
  }
}

LookAlikeMarker::Match LookAlikeMarker::match_at(const Trie& trie, std::string_view text, size_t begin,
                                                 std::span<const std::string> allowed) {
  uint32_t node = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    const auto next = trie.step(node, text[i]);
    if (!next) return Match::kNone;
    node = *next;
    if (!trie.is_end[node]) continue;
    const std::string_view word = text.substr(begin, i + 1 - begin);
    if (std::find(allowed.begin(), allowed.end(), word) == allowed.end()) return Match::kWhole;
    if (i + 1 == text.size()) return Match::kNone;
  }
  return begin < text.size() ? Match::kRunsOut : Match::kNone;
}

std::string LookAlikeMarker::mark(std::string_view text, std::string_view sentinel, bool also_ends,
                                  std::span<const std::string> allowed) const {
  std::string out;
  out.reserve(text.size() + 16);
  if (also_ends && match_at(endings_, text, 0, {}) != Match::kNone) out.append(sentinel);
  for (size_t i = 0; i < text.size();) {
    const size_t size = character_size(text, i);
    out.append(text.substr(i, size));
    const Match match = match_at(tokens_, text, i, allowed);
    if (match == Match::kWhole || (also_ends && match == Match::kRunsOut)) out.append(sentinel);
    i += size;
  }
  return out;
}

}  // namespace fathom
