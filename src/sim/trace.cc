// Reading traces (JSON lines and CSV), and what they can hit at best.
#include "sim/trace.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <unordered_set>

#include "sim/csv.h"

namespace fathom::sim {
namespace {

constexpr int32_t kTokensMax = 10'000'000;
constexpr std::string_view kSpaces = " \t\r\n";
constexpr double kTimestampMsMax = 1e14;  // times since 1970 are 1.7e12

// Reads the flat objects of a trace's lines: numbers and one list of numbers, in any order.
class LineReader {
 public:
  LineReader(const std::string& file, int line, std::string_view text)
      : file_(file), line_(line), text_(text) {}

  Status error(std::string_view field, std::string_view what) const {
    return invalid_argument("{}:{}: {}: {}", file_, line_, field, what);
  }
  void skip_space() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\t' || text_.front() == '\r')) {
      text_.remove_prefix(1);
    }
  }
  bool take(char c) {
    skip_space();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  Result<std::string_view> key() {
    if (!take('"')) return error("object", "expected a field name");
    const size_t end = text_.find('"');
    if (end == std::string_view::npos) return error("object", "the line ends inside a field name");
    const std::string_view name = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    if (!take(':')) return error(name, "expected ':'");
    return name;
  }
  Result<double> number(std::string_view field, double min, double max) {
    skip_space();
    double value = 0;
    const auto [end, code] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (code != std::errc()) return error(field, text_.empty() ? "the line ends early" : "not a number");
    text_.remove_prefix(static_cast<size_t>(end - text_.data()));
    if (!(value >= min && value <= max))
      return error(field, fmt::format("{} is outside {}..{}", value, min, max));
    return value;
  }
  Result<double> whole_number(std::string_view field, double min, double max) {
    ASSIGN_OR_RETURN(const double value, number(field, min, max));
    if (value != std::floor(value)) return error(field, fmt::format("{} is not a whole number", value));
    return value;
  }
  bool at_end() {
    skip_space();
    return text_.empty();
  }

 private:
  const std::string& file_;
  const int line_;
  std::string_view text_;
};

Result<TraceRequest> parse_json_line(const std::string& file, int line, std::string_view text) {
  LineReader in(file, line, text);
  TraceRequest request;
  request.arrival_us = -1;
  if (in.take('[')) return in.error("object", "'[': a trace is one object per line, not a list");
  if (!in.take('{')) return in.error("object", "expected '{'");
  do {
    ASSIGN_OR_RETURN(const std::string_view field, in.key());
    if (field == "hash_ids") {
      if (!request.blocks.empty()) return in.error(field, "given twice");
      if (!in.take('[')) return in.error(field, "expected a list");
      if (in.take(']')) continue;
      do {
        ASSIGN_OR_RETURN(const double id, in.whole_number(field, 0, UINT32_MAX));
        request.blocks.push_back(static_cast<uint32_t>(id));
      } while (in.take(','));
      if (!in.take(']')) return in.error(field, "the list does not end");
    } else if (field == "timestamp") {
      if (request.arrival_us >= 0) return in.error(field, "given twice");
      ASSIGN_OR_RETURN(const double value, in.number(field, 0, kTimestampMsMax));
      request.arrival_us = static_cast<int64_t>(value * 1000);
    } else if (field == "input_length" || field == "output_length") {
      int32_t& tokens = field == "input_length" ? request.input_tokens : request.output_tokens;
      if (tokens > 0) return in.error(field, "given twice");
      ASSIGN_OR_RETURN(const double value, in.whole_number(field, 0, kTokensMax));
      tokens = static_cast<int32_t>(value);
    } else {
      ASSIGN_OR_RETURN([[maybe_unused]] const double ignored, in.number(field, -1e300, 1e300));
    }
  } while (in.take(','));
  if (!in.take('}') || !in.at_end()) return in.error("object", "expected '}' at the end of the line");
  if (request.arrival_us < 0) return in.error("timestamp", "missing");
  if (request.input_tokens <= 0) return in.error("input_length", "missing or 0");
  if (request.output_tokens <= 0) return in.error("output_length", "missing or 0");
  return request;
}

Result<Trace> parse_json_lines(const std::string& file, std::string_view text) {
  Trace trace{file, 512, {}};
  int line = 0;
  int64_t first_us = 0;
  while (!text.empty()) {
    ++line;
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (row.find_first_not_of(kSpaces) == std::string_view::npos) continue;
    ASSIGN_OR_RETURN(TraceRequest request, parse_json_line(file, line, row));
    if (trace.requests.empty()) first_us = request.arrival_us;
    request.arrival_us -= first_us;
    if (!trace.requests.empty() && request.arrival_us < trace.requests.back().arrival_us) {
      return invalid_argument("{}:{}: timestamp: earlier than the line before", file, line);
    }
    const size_t need = (static_cast<size_t>(request.input_tokens) + 511) / 512;
    if (!request.blocks.empty() && request.blocks.size() != need) {
      return invalid_argument("{}:{}: hash_ids: {} blocks of 512 tokens for {} input tokens", file, line,
                              request.blocks.size(), request.input_tokens);
    }
    trace.requests.push_back(std::move(request));
    trace.end_place = fmt::format("{}:{}: timestamp", file, line);
  }
  return trace;
}

int days_in_month(int year, int month) {
  const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
  if (month == 2) return leap ? 29 : 28;
  return month == 4 || month == 6 || month == 9 || month == 11 ? 30 : 31;
}

// Days from 1970-01-01 in the Gregorian calendar.
int64_t days_of(int year, int month, int day) {
  const int y = month <= 2 ? year - 1 : year;  // years begin in March
  const int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return int64_t{365} * y + y / 4 - y / 100 + y / 400 + day_of_year - 719468;
}

// "2023-11-16 18:15:46.6805900" to microseconds since 1970.
Result<int64_t> parse_time(const std::string& file, const CsvRow& row, std::string_view text) {
  int part[5] = {};  // year, month, day, hour, minute
  constexpr struct {
    size_t at, size;
    int min, max;
    char after;
  } kParts[5] = {{0, 4, 1970, 9999, '-'},
                 {5, 2, 1, 12, '-'},
                 {8, 2, 1, 31, ' '},
                 {11, 2, 0, 23, ':'},
                 {14, 2, 0, 59, ':'}};
  const auto whole = [](std::string_view digits, auto& value) {
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return code == std::errc() && end == digits.data() + digits.size();
  };
  bool good = text.size() >= 19;
  for (int i = 0; i < 5 && good; ++i) {
    good = whole(text.substr(kParts[i].at, kParts[i].size), part[i]) && part[i] >= kParts[i].min &&
           part[i] <= kParts[i].max && text[kParts[i].at + kParts[i].size] == kParts[i].after;
  }
  good = good && part[2] <= days_in_month(part[0], part[1]);
  const bool plain = good && text.substr(17).find_first_not_of("0123456789.") == std::string_view::npos;
  double second = 0;
  good = plain && (text.size() == 19 || text[19] == '.') && whole(text.substr(17), second) && second < 61;
  if (!good)
    return invalid_argument("{}:{}: TIMESTAMP: \"{}\" is not a time", file, row.line,
                            printable_excerpt(text));
  const int64_t minutes = (days_of(part[0], part[1], part[2]) * 24 + part[3]) * 60 + part[4];
  return minutes * 60'000'000 + static_cast<int64_t>(second * 1e6);
}

constexpr std::string_view kColumns[] = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"};

// Which field holds which of kColumns. A header may have them in any order, and others beside them: what a
// log says of a request besides is of no use to a replay.
Result<std::array<size_t, 3>> csv_columns(const std::string& file, const CsvRow& header) {
  std::array<size_t, 3> column{};
  for (size_t i = 0; i < std::size(kColumns); ++i) {
    const auto found = std::find(header.fields.begin(), header.fields.end(), kColumns[i]);
    if (found == header.fields.end())
      return invalid_argument("{}:{}: {}: no such column in the header", file, header.line, kColumns[i]);
    if (std::find(found + 1, header.fields.end(), kColumns[i]) != header.fields.end())
      return invalid_argument("{}:{}: {}: two columns of that name", file, header.line, kColumns[i]);
    column[i] = static_cast<size_t>(found - header.fields.begin());
  }
  return column;
}

// The same fields in every row, so that a torn line is seen; without a header, the three alone.
Status check_fields(const std::string& file, const CsvRow& row, const CsvRow* header) {
  const size_t wanted = header != nullptr ? header->fields.size() : std::size(kColumns);
  if (row.fields.size() <= wanted) return ok_status();
  if (header == nullptr) {
    return invalid_argument(
        "{}:{}: column {}: \"{}\" has no name; more than TIMESTAMP,ContextTokens,GeneratedTokens needs a "
        "header",
        file, row.line, wanted + 1, row.fields[wanted]);
  }
  return invalid_argument("{}:{}: column {}: \"{}\", but the header names {} columns", file, row.line,
                          wanted + 1, row.fields[wanted], wanted);
}

// What to say of a file's end: of the last row's last field, where it is one that is read.
std::string doubt_of_the_end(const std::string& file, std::string_view text, const CsvRow& last,
                             const std::array<size_t, 3>& column) {
  if (text.ends_with('\n')) return {};
  for (size_t i = 0; i < std::size(kColumns); ++i) {
    if (column[i] + 1 != last.fields.size()) continue;
    return fmt::format(
        "{}:{}: {}: the file ends without a line feed: {} may be cut short, it is read as it is", file,
        last.line, kColumns[i], printable_excerpt(last.fields.back()));
  }
  return {};
}

Result<Trace> parse_csv(const std::string& file, std::string_view text) {
  Trace trace{file, 512, {}};
  int64_t first = -1;
  std::array<size_t, 3> column = {0, 1, 2};
  const std::vector<CsvRow> rows = csv_rows(text);
  const auto is_header = [](const CsvRow& row) {
    return std::find(row.fields.begin(), row.fields.end(), kColumns[0]) != row.fields.end();
  };
  const CsvRow* header = !rows.empty() && is_header(rows.front()) ? &rows.front() : nullptr;
  if (header != nullptr) {
    ASSIGN_OR_RETURN(column, csv_columns(file, *header));
  }
  for (const CsvRow& row : std::span(rows).subspan(header != nullptr ? 1 : 0)) {
    RETURN_IF_ERROR(check_fields(file, row, header));
    if (column[0] >= row.fields.size()) return invalid_argument("{}:{}: TIMESTAMP: missing", file, row.line);
    ASSIGN_OR_RETURN(const int64_t at, parse_time(file, row, row.fields[column[0]]));
    ASSIGN_OR_RETURN(const int64_t input, csv_integer(file, row, column[1], kColumns[1], 1, kTokensMax));
    ASSIGN_OR_RETURN(const int64_t output, csv_integer(file, row, column[2], kColumns[2], 1, kTokensMax));
    if (first < 0) first = at;
    if (at - first < (trace.requests.empty() ? 0 : trace.requests.back().arrival_us)) {
      return invalid_argument("{}:{}: TIMESTAMP: earlier than the line before", file, row.line);
    }
    trace.requests.push_back({at - first, static_cast<int32_t>(input), static_cast<int32_t>(output), {}});
  }
  if (!trace.requests.empty()) {
    trace.doubt = doubt_of_the_end(file, text, rows.back(), column);
    trace.end_place = fmt::format("{}:{}: {}", file, rows.back().line, kColumns[0]);
  }
  return trace;
}

}  // namespace

Result<Trace> parse_trace(const std::string& file, std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const std::string_view content = text.substr(std::min(text.find_first_not_of(kSpaces), text.size()));
  const bool json = content.starts_with('{') || content.starts_with('[');
  ASSIGN_OR_RETURN(Trace trace, json ? parse_json_lines(file, text) : parse_csv(file, text));
  if (trace.requests.empty()) return invalid_argument("{}:1: trace: no requests", file);
  return trace;
}

std::vector<int32_t> shared_tokens(const Trace& trace) {
  std::vector<int32_t> shared;
  std::unordered_set<uint32_t> seen;
  for (const TraceRequest& r : trace.requests) {
    size_t matched = 0;
    while (matched < r.blocks.size() && seen.contains(r.blocks[matched])) ++matched;
    const int64_t tokens = static_cast<int64_t>(matched) * trace.block_tokens;
    shared.push_back(static_cast<int32_t>(std::min<int64_t>(tokens, r.input_tokens)));
    seen.insert(r.blocks.begin(), r.blocks.end());
  }
  return shared;
}

TraceStats trace_stats(const Trace& trace) {
  TraceStats s;
  double in = 0, in2 = 0, out = 0, out2 = 0, hit = 0;
  PromptSums prompts;
  const std::vector<int32_t> shared = shared_tokens(trace);
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& r = trace.requests[i];
    in += r.input_tokens;
    in2 += static_cast<double>(r.input_tokens) * r.input_tokens;
    out += r.output_tokens;
    out2 += static_cast<double>(r.output_tokens) * r.output_tokens;
    s.input_max = std::max(s.input_max, r.input_tokens);
    const double cached = shared[i];
    hit += cached;
    // The last token is computed in any case: it gives the first answer token.
    prompts.add(1, std::min<double>(cached, r.input_tokens - 1), std::max(1.0, r.input_tokens - cached));
  }
  const auto n = static_cast<double>(trace.requests.size());
  s.duration_s =
      static_cast<double>(trace.requests.back().arrival_us - trace.requests.front().arrival_us) / 1e6;
  s.requests_per_s = s.duration_s > 0 ? n / s.duration_s : 0;
  s.input_mean = in / n;
  s.input_cv2 = std::max(1e-3, in2 / n / (s.input_mean * s.input_mean) - 1);
  s.output_mean = out / n;
  s.output_cv2 = std::max(1e-3, out2 / n / (s.output_mean * s.output_mean) - 1);
  s.hit_share_bound = hit / in;
  s.mix = prompts.mix();
  return s;
}

Result<Trace> first_part_of_each_hour(const Trace& trace, double fraction, double hour_s) {
  Trace part{trace.name, trace.block_tokens, {}, trace.doubt, trace.end_place};
  const auto hour_us = static_cast<int64_t>(hour_s * 1e6);
  const auto window_us = static_cast<int64_t>(hour_s * 1e6 * fraction);
  for (const TraceRequest& r : trace.requests) {
    const int64_t inside_us = r.arrival_us % hour_us;
    if (inside_us >= window_us) continue;
    part.requests.push_back(r);
    part.requests.back().arrival_us = r.arrival_us / hour_us * window_us + inside_us;
  }
  if (part.requests.empty())
    return invalid_argument("--fraction: no request arrives in the first {:.3g} s of any hour",
                            hour_s * fraction);
  return part;
}

}  // namespace fathom::sim
