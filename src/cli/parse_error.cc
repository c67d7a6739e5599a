// CLI11's messages in our own form.
#include "cli/parse_error.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

namespace fathom::cli {
namespace {

// The file of --config could not be opened; CLI11 does not say why.
std::string explain_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return fmt::format("--config {}: is a folder", path);
  if (error) return fmt::format("--config {}: {}", path, error.message());
  return fmt::format("--config {}: cannot be read", path);
}

// CLI11 names what is left over from the last to the first, and the values before their flag.
std::string explain_extras(const CLI::App& app, std::string_view what) {
  const std::vector<std::string> left = app.remaining(/*recurse=*/true);
  for (const std::string& word : left) {
    if (word.starts_with('-')) return fmt::format("{}: no such flag", word);
  }
  return left.empty() ? std::string(what) : fmt::format("{}: not expected here", left.front());
}

// A command that is nothing without a subcommand got none, or a word that is none.
std::string explain_subcommand(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  std::string known;
  for (const CLI::App* inner : command->get_subcommands([](const CLI::App*) { return true; }))
    known += fmt::format("{}{}", known.empty() ? "" : ", ", inner->get_name());
  const std::vector<std::string> left = app.remaining(/*recurse=*/true);
  const bool misspelt = !left.empty() && !left.front().starts_with('-');
  const std::string place = command == &app ? "" : fmt::format("{}: ", command->get_name());
  return fmt::format("{}{}: {}", place,
                     misspelt ? left.front() + ": no such subcommand, there are" : "a subcommand is required",
                     known);
}

}  // namespace

std::string explain_value(const CLI::ParseError& error) {
  constexpr std::string_view kConversion = "Could not convert: ";
  const std::string_view what = error.what();  // starts with the flag, but for this
  if (!what.starts_with(kConversion)) return std::string(what);
  return fmt::format("cannot read the value of {}", what.substr(kConversion.size()));
}

std::string explain(const CLI::ParseError& error, const CLI::App& app) {
  const std::string_view what = error.what();
  const CLI::Option* config = app.get_config_ptr();
  const std::string config_path = config->count() > 0 ? config->results().back() : "";
  if (error.get_name() == "FileError" && !config_path.empty()) return explain_file(config_path);
  // By its code: CLI11 names this one after the program.
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError))
    return explain_extras(app, what);
  if (what == "A subcommand is required") return explain_subcommand(app);
  return explain_value(error);
}

}  // namespace fathom::cli
