// Text to token ids and back, equal to Hugging Face's tokenizers on byte-level BPE files (the DeepSeek
// family). What a user writes and what the server writes are encoded by different calls, so that user text
// can never become a special token.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/text_assets.h"

namespace fathom {

// A longer text is refused (kInvalidArgument).
inline constexpr size_t kEncodeBytesMax = size_t{64} << 20;

// Asked now and then while a text is encoded, with the tokens so far; a Status that is not ok ends the
// encoding, which returns it. Not asked within one word, nor at all where a pre-tokenizer needs the whole
// text (Metaspace), nor for a few kilobytes.
using EncodeCheck = std::function<Status(size_t num_tokens)>;

// Copies share one immutable tokenizer. Every const call may run on many threads at once.
class Tokenizer {
 public:
  // Errors (kInvalidArgument) name the file and the reason.
  static Result<Tokenizer> load(const TextAssets& assets);
  static Result<Tokenizer> load_folder(const std::string& folder);

  // In all three, bytes that are no UTF-8 are replaced by U+FFFD first (utf8.h), and no BOS is added.
  //
  // Text of a user: added tokens ("<｜User｜>", "<think>", ...) are never recognised, they become plain
  // pieces.
  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeCheck& check = {}) const;
  // Text that is trusted as a whole: every added token is recognised, as in Hugging Face's encode().
  Result<std::vector<int32_t>> encode_with_special(std::string_view text,
                                                   const EncodeCheck& check = {}) const;
  // A prompt whose user parts were broken up by `sentinel` (marked_text.h): added tokens are recognised where
  // they are whole; then every sentinel is removed and what lies between is encoded as user text.
  Result<std::vector<int32_t>> encode_marked(std::string_view text, std::string_view sentinel,
                                             const EncodeCheck& check = {}) const;

  // The text of `ids`, invalid bytes replaced. Unknown ids are dropped. detokenizer.h does this in pieces.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;
  // The bytes that `id` adds to a text; empty for an unknown id. Valid as long as any copy of this tokenizer.
  std::string_view token_bytes(int32_t id) const;
  size_t longest_token_bytes() const;  // at least 1

  // One past the largest id; ids between may be unused.
  int32_t vocab_size() const;
  bool is_known(int32_t id) const;
  // In tokenizer.json's added_tokens, special or not ("<｜User｜>" is added but not marked special).
  bool is_added(int32_t id) const;
  // Marked special: not part of the text with skip_special_tokens.
  bool is_special(int32_t id) const;
  std::optional<int32_t> added_token_id(std::string_view content) const;
  const std::vector<std::string>& added_tokens() const;

  // From tokenizer_config.json, where it names them.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  // The special tokens that templates may print: ("bos_token", "<｜begin▁of▁sentence｜>"), ...
  const std::vector<std::pair<std::string, std::string>>& named_tokens() const;
  // Whether a plain prompt (not a rendered chat) starts with BOS: add_bos_token, else the class's habit.
  bool add_bos() const;

 private:
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace fathom
