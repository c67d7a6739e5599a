// Validation, replacement of invalid bytes, and incomplete characters at the end of a piece.
#include "text/utf8.h"

#include <algorithm>

namespace fathom {
namespace {
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
}

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  size_t i = 0;
  while (i < bytes.size()) {
    if (pending_.empty() && static_cast<unsigned char>(bytes[i]) < 0x80) {
      const size_t begin = i;
      while (i < bytes.size() && static_cast<unsigned char>(bytes[i]) < 0x80) ++i;
      out.append(bytes.substr(begin, i - begin));
    } else {
      push_byte(static_cast<unsigned char>(bytes[i]), out);
      ++i;
    }
  }
}

void Utf8Stream::push_byte(unsigned char byte, std::string& out) {
  if (!pending_.empty()) {
    if (byte >= next_min_ && byte <= next_max_) {
      pending_.push_back(static_cast<char>(byte));
      next_min_ = 0x80;
      next_max_ = 0xBF;
      if (--num_missing_ == 0) {
        out.append(pending_);
        pending_.clear();
      }
      return;
    }
    flush(out);
  }
  next_min_ = 0x80;
  next_max_ = 0xBF;
  if (byte < 0x80) {
    out.push_back(static_cast<char>(byte));
    return;
  }
  if (byte >= 0xC2 && byte <= 0xDF) {
    num_missing_ = 1;
  } else if (byte >= 0xE0 && byte <= 0xEF) {
    num_missing_ = 2;
    if (byte == 0xE0) next_min_ = 0xA0;  // no overlong forms
    if (byte == 0xED) next_max_ = 0x9F;  // no surrogates
  } else if (byte >= 0xF0 && byte <= 0xF4) {
    num_missing_ = 3;
    if (byte == 0xF0) next_min_ = 0x90;
    if (byte == 0xF4) next_max_ = 0x8F;  // nothing above U+10FFFF
  } else {
    out.append(kReplacement);
    return;
  }
  pending_.push_back(static_cast<char>(byte));
}

void Utf8Stream::flush(std::string& out) {
  if (pending_.empty()) return;
  out.append(kReplacement);
  pending_.clear();
}

bool is_valid_utf8(std::string_view bytes) {
  // A replacement character in the input is valid, so comparing the text decides.
  return replace_invalid_utf8(bytes) == bytes;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  Utf8Stream stream;
  stream.push(bytes, out);
  stream.flush(out);
  return out;
}

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace fathom
