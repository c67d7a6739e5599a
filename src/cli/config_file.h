// The TOML file of --config, read once by toml++ and handed to CLI11 as values: CLI11's own reader would take
// much of TOML for something else.
#pragma once

#include <CLI/CLI.hpp>

namespace fathom::cli {

// Adds --config to `app`. Before its subcommands: they inherit the reader.
void add_config_option(CLI::App& app);

}  // namespace fathom::cli
