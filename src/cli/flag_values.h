// What a flag's text must look like before CLI11 converts it: CLI11 reads an empty text as 0, lets "nan"
// through every range and takes any number for a switch.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

namespace fathom::cli {

// For every flag of `app` and its subcommands, whatever their files say: a number is not empty, one with a
// range is finite, a switch is true or false. After all flags are there.
void refuse_odd_values(CLI::App& app);

// An empty text, as from an unset variable in a script, is refused instead of meaning the default.
CLI::Validator not_empty();

// "512M", "2G", "1048576": bytes, with binary suffixes, from `min` to `max`.
CLI::Validator byte_size(int64_t min, int64_t max);

}  // namespace fathom::cli
