// Keeps user text from becoming special tokens in a rendered prompt. Before a template sees a message, a
// sentinel character is put inside everything that looks like an added token; after rendering, the tokenizer
// splits at the added tokens that are still whole (the template's own) and removes every sentinel.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fathom {

// How the sentinel of one prompt is found: a character that occurs in none of the texts, so that removing it
// afterwards restores exactly what was written.
class SentinelChooser {
 public:
  void avoid(std::string_view text);
  // Empty when the texts hold every candidate (more than four thousand unassigned characters).
  std::optional<std::string> choose() const;

 private:
  static constexpr uint32_t kNumNoncharacters = 32;  // U+FDD0..U+FDEF, never assigned
  static constexpr uint32_t kNumPrivate = 0x1000;    // U+10F000..U+10FFFF
  std::vector<bool> used_ = std::vector<bool>(kNumNoncharacters + kNumPrivate);
};

// Immutable after construction; const calls may run on many threads at once.
class LookAlikeMarker {
 public:
  explicit LookAlikeMarker(std::span<const std::string> added_tokens);

  // `text` with `sentinel` put after the first character of every occurrence of an added token, overlapping
  // ones too; tokens in `allowed` are left alone. With `also_ends`, it is put as well
  //  * into an ending that could be completed to an added token by what follows it in the prompt;
  //  * before a beginning that could complete an added token begun before it.
  // Both texts must be valid UTF-8.
  std::string mark(std::string_view text, std::string_view sentinel, bool also_ends,
                   std::span<const std::string> allowed = {}) const;

 private:
  // A byte trie; node 0 is the root.
  struct Trie {
    std::unordered_map<uint64_t, uint32_t> children;  // key: node << 8 | byte
    std::vector<bool> is_end = {false};
    void add(std::string_view word);
    std::optional<uint32_t> step(uint32_t node, char byte) const;
  };

  enum class Match { kNone, kWhole, kRunsOut };
  // Whether a word of `trie` starts at text[begin] (not one in `allowed`), or text ends within one.
  static Match match_at(const Trie& trie, std::string_view text, size_t begin,
                        std::span<const std::string> allowed);

  Trie tokens_;
  Trie endings_;  // of tokens: every proper suffix
};

}  // namespace fathom
