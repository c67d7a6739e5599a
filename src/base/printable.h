// Text from outside (file names, flags, a server's words) made fit for one line of a terminal or a log.
#pragma once

#include <string>
#include <string_view>

namespace fathom {

// Control characters (C0, DEL, and C1 in UTF-8) as \x1b; everything else as it is.
std::string printable(std::string_view text);

// Without its control characters but for line breaks and tabs: text that may be long and many-lined.
std::string without_controls(std::string_view text);

// Whether printable() would change it.
bool has_control_characters(std::string_view text);

}  // namespace fathom
