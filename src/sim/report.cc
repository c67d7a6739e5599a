// summary.json, numbers for people, and the comparison of two runs.
#include "sim/report.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace fathom::sim {

const Figure* Report::find(std::string_view name) const {
  for (const Figure& figure : figures) {
    if (figure.name == name) return &figure;
  }
  return nullptr;
}

std::string json_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out;
}

std::string summary_json(const Report& report) {
  std::string out = "{\n";
  const auto separator = [&] { return out.size() > 2 ? ",\n" : ""; };
  for (const auto& [name, value] : report.facts) {
    out += fmt::format("{}  \"{}\": \"{}\"", separator(), json_escape(name), json_escape(value));
  }
  for (const Figure& figure : report.figures) {
    const std::string value = std::isfinite(figure.value) ? fmt::format("{}", figure.value) : "null";
    out += fmt::format("{}  \"{}\": {}", separator(), json_escape(figure.name), value);
  }
  return out + "\n}\n";
}

Result<Summary> parse_summary_json(const std::string& file, std::string_view text) {
  Summary summary;
  int line = 0;
  bool closed = false;
  while (!text.empty()) {
    ++line;
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    while (row.starts_with(' ')) row.remove_prefix(1);
    if (row == "{" || row.empty()) continue;
    if (row == "}") {
      closed = true;
      continue;
    }
    const size_t colon = row.find("\": ");
    if (!row.starts_with('"') || colon == std::string_view::npos) {
      return invalid_argument("{}:{}: expected \"name\": value", file, line);
    }
    const std::string name(row.substr(1, colon - 1));
    std::string_view value = row.substr(colon + 3);
    if (value.ends_with(',')) value.remove_suffix(1);
    if (value == "null") continue;
    if (value.size() > 1 && value.starts_with('"') && value.ends_with('"')) {
      summary.facts[name] = value.substr(1, value.size() - 2);
      continue;
    }
    if (value.starts_with('"'))
      return make_status(StatusCode::kDataLoss, "{}:{}: {}: the text does not end", file, line, name);
    double number = 0;
    const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || stop != value.data() + value.size() || !std::isfinite(number)) {
      return invalid_argument("{}:{}: {}: \"{}\" is not a number", file, line, name, value);
    }
    summary.figures[name] = number;
  }
  if (!closed) {
    return make_status(StatusCode::kDataLoss, "{}:{}: the file ends early", file, std::max(1, line));
  }
  return summary;
}

std::string pretty_number(double value) {
  if (!std::isfinite(value)) return "-";
  const double magnitude = std::abs(value);
  if (magnitude != 0 && magnitude < 0.001) return fmt::format("{:.2e}", value);
  if (magnitude < 10) return fmt::format("{:.3f}", value);
  if (magnitude < 1000) return fmt::format("{:.2f}", value);
  const std::string digits = fmt::format("{:.0f}", magnitude);
  std::string out = value < 0 ? "-" : "";
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

Table compare_table(const Report& report, const Summary& other, const std::string& other_name) {
  Table table{"Two runs side by side", "", {"figure", "this run", other_name, "change"}, {}};
  for (const auto& [name, value] : report.facts) {
    const auto found = other.facts.find(name);
    const std::string theirs = found == other.facts.end() ? "-" : found->second;
    if (theirs != json_escape(value)) table.rows.push_back({name, value, theirs, "set differently"});
  }
  for (const auto& [name, theirs] : other.facts) {
    const auto is_same = [&name = name](const auto& fact) { return fact.first == name; };
    if (std::none_of(report.facts.begin(), report.facts.end(), is_same))
      table.rows.push_back({name, "-", theirs, "set differently"});
  }
  for (const Figure& figure : report.figures) {
    const auto found = other.figures.find(figure.name);
    if (found == other.figures.end()) continue;
    const double from = found->second;
    const std::string change = !std::isfinite(figure.value) ? "-"
                               : from != 0 ? fmt::format("{:+.2f} %", 100 * (figure.value / from - 1))
                               : figure.value == from ? "+0.00 %"
                                                      : "from 0";
    table.rows.push_back({figure.name, pretty_number(figure.value), pretty_number(from), change});
  }
  return table;
}

}  // namespace fathom::sim
