// One walk over the bytes that says how long a control character is, and what to put in its place.
#include "base/printable.h"

#include <fmt/format.h>

#include <algorithm>

namespace fathom {
namespace {

// Bytes of the control character that begins `text`; 0 if it begins with another.
size_t control_bytes(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  if (byte < 0x20 || byte == 0x7f) return 1;
  // C1 controls are U+0080 to U+009F: terminals take them for escape sequences too.
  const bool c1 = byte == 0xc2 && text.size() > 1 && (static_cast<unsigned char>(text[1]) & 0xe0) == 0x80;
  return c1 ? 2 : 0;
}

template <typename Replace>
std::string replace_controls(std::string_view text, Replace replace) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t bytes = control_bytes(text);
    if (bytes == 0) {
      out += text[0];
    } else {
      replace(text.substr(0, bytes), out);
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) {
  return replace_controls(text, [](std::string_view control, std::string& out) {
    for (const char c : control) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  });
}

std::string without_controls(std::string_view text) {
  return replace_controls(text, [](std::string_view control, std::string& out) {
    if (control == "\n" || control == "\t") out += control;
  });
}

bool has_control_characters(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (control_bytes(text.substr(i)) != 0) return true;
  }
  return false;
}

}  // namespace fathom
