// One line for a command line or a configuration file that cannot be read.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace fathom::cli {

// What is wrong and where; `config_path` is the file given with --config, empty if none.
std::string explain(const CLI::ParseError& error, const std::string& config_path);

// Refuses a file that is no TOML, with line and column: CLI11's own reader would pass over some mistakes.
CLI::Validator toml_file();

}  // namespace fathom::cli
