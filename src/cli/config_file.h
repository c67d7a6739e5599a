// The TOML file of --config, read once by toml++ and handed to CLI11 as values: CLI11's own reader would take
// much of TOML for something else.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace fathom::cli {

// Adds --config to `app`. Before its subcommands: they inherit the reader.
void add_config_option(CLI::App& app);

// FILE:LINE where --config set `flag` ("--port") of the command that runs; empty if it did not, or if the
// command line set it too.
std::string place_in_config(const CLI::App& app, const std::string& flag);

}  // namespace fathom::cli
