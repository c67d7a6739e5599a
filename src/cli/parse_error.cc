// CLI11's messages in our own form.
#include "cli/parse_error.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "cli/config_file.h"

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

}  // namespace

std::string explain(const CLI::ParseError& error, const CLI::App& app) {
  const std::string_view what = error.what();
  const CLI::Option* config = app.get_config_ptr();
  const std::string config_path = config->count() > 0 ? config->results().back() : "";
  if (error.get_name() == "FileError" && !config_path.empty()) return explain_file(config_path);
  // By its code: CLI11 names this one after the program.
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError))
    return explain_extras(app, what);
  constexpr std::string_view kConversion = "Could not convert: ";
  const bool conversion = what.starts_with(kConversion);
  const std::string_view subject =
      conversion ? what.substr(kConversion.size()) : what;  // starts with the flag
  const std::string place =
      place_in_config(app, std::string(subject.substr(0, subject.find_first_of(": ="))));
  return fmt::format("{}{}{}{}", place, place.empty() ? "" : ": ",
                     conversion ? "cannot read the value of " : "", subject);
}

}  // namespace fathom::cli
