// One line for a command line or a configuration file that cannot be read.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace fathom::cli {

// What is wrong with a flag's value.
std::string explain_value(const CLI::ParseError& error);

// What is wrong and where.
std::string explain(const CLI::ParseError& error, const CLI::App& app);

}  // namespace fathom::cli
