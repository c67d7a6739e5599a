// Validators, put before those of the flags themselves.
#include "cli/flag_values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>

namespace fathom::cli {
namespace {

std::string number_problem(std::string& text) {
  return text.find_first_not_of(" \t\n\r") == std::string::npos ? "a number is missing" : "";
}

std::string real_problem(std::string& text) {
  double value = 0;
  if (CLI::detail::lexical_cast(text, value) && !std::isfinite(value))
    return text + " is not a finite number";
  return number_problem(text);
}

std::string switch_problem(std::string& text) {
  return text == "true" || text == "false" ? "" : text + " is neither true nor false";
}

// Bytes of "512M"; nothing if it is no such text or does not fit.
std::optional<int64_t> parse_bytes(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  std::string unit = CLI::detail::to_lower(std::string(end, text.data() + text.size()));
  for (const std::string_view tail : {"ib", "b"}) {
    if (unit.ends_with(tail)) {
      unit.resize(unit.size() - tail.size());
      break;
    }
  }
  constexpr std::string_view kUnits = "kmgtpe";
  const size_t at = unit.empty() ? 0 : kUnits.find(unit);
  if (unit.size() > 1 || at == std::string_view::npos) return std::nullopt;
  const int shift = unit.empty() ? 0 : 10 * (static_cast<int>(at) + 1);
  if (number > INT64_MAX >> shift) return std::nullopt;
  return number << shift;
}

std::string bytes_short(int64_t bytes) {
  constexpr std::string_view kUnits = "KMGTPE";
  size_t unit = 0;
  for (; bytes >= 1024 && bytes % 1024 == 0; bytes /= 1024) ++unit;
  return unit == 0 ? fmt::format("{}", bytes) : fmt::format("{}{}", bytes, kUnits[unit - 1]);
}

}  // namespace

void refuse_odd_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    const bool help = option == app.get_help_ptr() || option == app.get_version_ptr();
    if (option->get_expected_max() == 0) {
      if (!help) option->check(CLI::Validator(switch_problem, ""));
    } else if (type.starts_with("FLOAT:")) {  // it has a range; without one the command looks itself
      option->transform(CLI::Validator(real_problem, ""));  // transform() puts it first
    } else if (type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("FLOAT")) {
      option->transform(CLI::Validator(number_problem, ""));
    }
  }
  for (CLI::App* inner : app.get_subcommands([](CLI::App*) { return true; })) refuse_odd_values(*inner);
}

CLI::Validator not_empty() {
  return CLI::Validator([](std::string& text) { return text.empty() ? "is empty" : ""; }, "TEXT");
}

CLI::Validator byte_size(int64_t min, int64_t max) {
  const auto convert = [min, max](std::string& text) -> std::string {
    const std::optional<int64_t> bytes = parse_bytes(text);
    if (!bytes || *bytes < min || *bytes > max) {
      return fmt::format("{} is not a size from {} to {}, such as 512M or 8G", text, bytes_short(min),
                         bytes_short(max));
    }
    text = fmt::format("{}", *bytes);
    return {};
  };
  return CLI::Validator(convert, "SIZE");
}

}  // namespace fathom::cli
