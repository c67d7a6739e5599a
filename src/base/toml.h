// toml++ in the one configuration all files share: units that see it with and without exceptions do not link
// into a working program. Include in .cc files only (slow to compile).
#pragma once

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>
