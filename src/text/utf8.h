// UTF-8 as the output path needs it: bytes arrive in any pieces, text leaves as whole characters.
// Invalid bytes are replaced by U+FFFD by the Unicode rule of maximal subparts (one U+FFFD per longest prefix
// of a valid sequence), which is what Python's errors="replace" and Rust's from_utf8_lossy do.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fathom {

// Cuts a byte stream at character boundaries. The text of all push() calls and flush() is the same for every
// way of cutting the same bytes into pieces.
class Utf8Stream {
 public:
  // Appends to `out` every character that `bytes` completes; at most three bytes are held back.
  void push(std::string_view bytes, std::string& out);
  // The stream ends: a held, incomplete character becomes one U+FFFD.
  void flush(std::string& out);

 private:
  void push_byte(unsigned char byte, std::string& out);

  std::string pending_;     // a proper prefix of one valid sequence
  size_t num_missing_ = 0;  // bytes that complete it
  // The range of the next byte; the first continuation byte after E0, ED, F0 and F4 has a narrower one.
  unsigned char next_min_ = 0x80;
  unsigned char next_max_ = 0xBF;
};

bool is_valid_utf8(std::string_view bytes);
std::string replace_invalid_utf8(std::string_view bytes);
// `text` must be valid UTF-8.
size_t count_code_points(std::string_view text);

}  // namespace fathom
