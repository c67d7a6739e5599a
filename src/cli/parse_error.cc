// CLI11's messages in our own form; a file's syntax errors from toml++.
#include "cli/parse_error.h"

#include <fmt/format.h>

#include <string_view>

#include "base/toml.h"

namespace fathom::cli {
namespace {

// Line and description of the file's first syntax error; empty if it is TOML.
std::string syntax_error(const std::string& path) {
  const toml::parse_result result = toml::parse_file(path);
  if (result) return {};
  const toml::source_position place = result.error().source().begin;
  if (place.line == 0) return fmt::format("{}: cannot be read", path);
  return fmt::format("{}:{}:{}: {}", path, place.line, place.column, result.error().description());
}

std::string explain_config(std::string_view what, const std::string& path) {
  constexpr std::string_view kUnknownKey = "INI was not able to parse ";
  if (what.starts_with(kUnknownKey)) {
    return fmt::format("{}: unknown key {}", path, what.substr(kUnknownKey.size()));
  }
  return fmt::format("{}: {}", path, what);
}

}  // namespace

CLI::Validator toml_file() {
  return CLI::Validator([](std::string& path) { return syntax_error(path); }, "FILE");
}

std::string explain(const CLI::ParseError& error, const std::string& config_path) {
  const std::string_view what = error.what();
  if (error.get_name() == "ConfigError" && !config_path.empty()) return explain_config(what, config_path);
  constexpr std::string_view kConversion = "Could not convert: ";
  if (what.starts_with(kConversion))
    return fmt::format("cannot read the value of {}", what.substr(kConversion.size()));
  return std::string(what);
}

}  // namespace fathom::cli
