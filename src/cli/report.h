// The one line on standard error that a failed command ends with.
#pragma once

#include <string_view>

#include "base/status.h"

namespace fathom::cli {

// "fathom COMMAND: message", with control characters escaped, whatever the message was made of.
void report(std::string_view command, std::string_view message);

// Writes out what standard output still holds. 0, or the errno of the first write that failed since the
// start; EIO where the stream kept none.
int flush_output();

}  // namespace fathom::cli
