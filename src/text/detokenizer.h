// Token ids to text, one at a time: the concatenation of all pieces equals Tokenizer::decode of all ids.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace fathom {

class Detokenizer {
 public:
  Detokenizer(Tokenizer tokenizer, bool skip_special_tokens)
      : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

  // Appends the characters that `id` completes. Bytes of an incomplete character wait for the next token;
  // bytes that are no UTF-8 become U+FFFD (utf8.h). Unknown ids add nothing.
  void push(int32_t id, std::string& out) {
    if (skip_special_tokens_ && tokenizer_.is_special(id)) return;
    utf8_.push(tokenizer_.token_bytes(id), out);
  }
  // The end: an incomplete character becomes U+FFFD.
  void flush(std::string& out) { utf8_.flush(out); }

 private:
  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  Utf8Stream utf8_;
};

}  // namespace fathom
