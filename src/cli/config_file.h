// The TOML file of --config, read once by toml++, its values given to the flags here: CLI11's own reader
// would take much of TOML for something else, and its messages know no line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace fathom::cli {

// Adds --config to `app`. Before its subcommands: they inherit the reader.
void add_config_option(CLI::App& app);

}  // namespace fathom::cli
