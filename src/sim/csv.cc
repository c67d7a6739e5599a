// Splitting rows and reading numbers, with errors that name file, line and field.
#include "sim/csv.h"

#include <algorithm>
#include <charconv>

namespace fathom::sim {
namespace {

constexpr size_t kExcerptMax = 40;

template <typename T>
Result<T> parse_field(const std::string& file, const CsvRow& row, size_t idx, std::string_view name, T min,
                      T max) {
  if (idx >= row.fields.size()) return invalid_argument("{}:{}: {}: missing", file, row.line, name);
  const std::string_view text = row.fields[idx];
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return invalid_argument("{}:{}: {}: \"{}\" is not a number", file, row.line, name,
                            printable_excerpt(text));
  }
  if (!(value >= min && value <= max)) {
    return invalid_argument("{}:{}: {}: {} is outside {}..{}", file, row.line, name, value, min, max);
  }
  return value;
}

}  // namespace

std::string printable_excerpt(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kExcerptMax)) out += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > kExcerptMax ? out + "..." : out;
}

std::vector<CsvRow> csv_rows(std::string_view text) {
  std::vector<CsvRow> rows;
  int line = 0;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  while (!text.empty()) {
    ++line;
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view rest = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (rest.ends_with('\r')) rest.remove_suffix(1);
    if (rest.empty() || rest.starts_with('#')) continue;
    CsvRow row{line, {}};
    while (true) {
      const size_t comma = rest.find(',');
      row.fields.push_back(rest.substr(0, comma));
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Status csv_width(const std::string& file, const CsvRow& row, size_t num_fields) {
  if (row.fields.size() == num_fields) return ok_status();
  if (row.fields.size() > num_fields) {
    return invalid_argument("{}:{}: column {}: \"{}\", expected {} columns", file, row.line, num_fields + 1,
                            printable_excerpt(row.fields[num_fields]), num_fields);
  }
  return invalid_argument("{}:{}: column {}: missing, expected {} columns", file, row.line,
                          row.fields.size() + 1, num_fields);
}

Status csv_whole(const std::string& file, std::string_view text) {
  if (text.empty() || text.ends_with('\n')) return ok_status();
  const std::string_view last = text.substr(text.rfind('\n') + 1);
  return invalid_argument("{}:{}: \"{}\" does not end in a line feed: the file may be torn", file,
                          std::count(text.begin(), text.end(), '\n') + 1, printable_excerpt(last));
}

Result<double> csv_number(const std::string& file, const CsvRow& row, size_t field_idx, std::string_view name,
                          double min, double max) {
  return parse_field<double>(file, row, field_idx, name, min, max);
}

Result<int64_t> csv_integer(const std::string& file, const CsvRow& row, size_t field_idx,
                            std::string_view name, int64_t min, int64_t max) {
  return parse_field<int64_t>(file, row, field_idx, name, min, max);
}

}  // namespace fathom::sim
