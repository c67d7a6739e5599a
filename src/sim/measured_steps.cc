// Measurements of a running server as steps the cost model can be fitted to.
#include "sim/measured_steps.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "sim/csv.h"

namespace fathom::sim {
namespace {

constexpr std::string_view kPrefix = "fathom_";
constexpr double kMsPerSecond = 1e3;
constexpr double kCounterMax = 1e18;

// What is read; everything else in the text is left alone.
constexpr std::string_view kFamilies[] = {
    "decode_steps_total",      "decode_step_seconds_total",  "generated_tokens_total",
    "prefill_steps_total",     "prefill_step_seconds_total", "prefill_tokens_total",
    "prompt_hit_tokens_total", "prompt_miss_tokens_total",   "time_to_first_token_seconds_count"};

using Sums = std::map<std::string, double, std::less<>>;

bool is_read(std::string_view name) {
  if (!name.starts_with(kPrefix)) return false;
  const std::string_view family = name.substr(kPrefix.size());
  return std::find(std::begin(kFamilies), std::end(kFamilies), family) != std::end(kFamilies);
}

// Takes `{label="value",...}` off the front; label values may hold any character, quotes escaped. False:
// torn.
bool skip_labels(std::string_view& row) {
  if (!row.starts_with('{')) return true;
  bool quoted = false;
  for (size_t i = 1; i < row.size(); ++i) {
    if (quoted && row[i] == '\\') {
      ++i;
    } else if (row[i] == '"') {
      quoted = !quoted;
    } else if (row[i] == '}' && !quoted) {
      row.remove_prefix(i + 1);
      return true;
    }
  }
  return false;
}

// ` value` or ` value timestamp`.
std::optional<double> sample_value(std::string_view row) {
  const size_t at = row.find_first_not_of(' ');
  if (at == 0 || at == std::string_view::npos) return std::nullopt;
  row.remove_prefix(at);
  if (row.starts_with('+')) row.remove_prefix(1);
  double value = 0;
  const auto [end, code] = std::from_chars(row.data(), row.data() + row.size(), value);
  if (code != std::errc()) return std::nullopt;
  row.remove_prefix(static_cast<size_t>(end - row.data()));
  const bool rest_is_time =
      row.empty() || (row[0] == ' ' && row.find_first_not_of(" -0123456789") == std::string_view::npos);
  return rest_is_time ? std::optional(value) : std::nullopt;
}

// `name{labels} value` lines of the families that are read, summed over label sets.
Result<Sums> sums_of(const std::string& file, std::string_view text) {
  Sums sums;
  const bool torn = !text.ends_with('\n');
  for (int line = 1; !text.empty(); ++line) {
    std::string_view row = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(row.size() + 1, text.size()));
    if (text.empty() && torn) {
      return invalid_argument("{}:{}: \"{}\" does not end in a line feed: the file is torn", file, line,
                              printable_excerpt(row));
    }
    if (!row.empty() && row.back() == '\r') row.remove_suffix(1);
    const std::string name(row.substr(0, row.find_first_of("{ ")));
    if (!is_read(name)) continue;
    row.remove_prefix(name.size());
    const bool whole = skip_labels(row);
    const std::optional<double> value = whole ? sample_value(row) : std::nullopt;
    if (!value) return invalid_argument("{}:{}: {}: no value", file, line, name);
    if (!(*value >= 0 && *value <= kCounterMax)) {
      return invalid_argument("{}:{}: {}: {} is outside 0..{}", file, line, name, *value, kCounterMax);
    }
    sums[name] += *value;
  }
  return sums;
}

class Metrics {
 public:
  Metrics(const std::string& file, Sums sums) : file_(file), sums_(std::move(sums)) {}
  Result<double> value(std::string_view name) const {
    const auto at = sums_.find(fmt::format("{}{}", kPrefix, name));
    if (at == sums_.end()) return invalid_argument("{}: {}{}: missing", file_, kPrefix, name);
    return at->second;
  }

 private:
  const std::string& file_;
  const Sums sums_;
};

}  // namespace

Result<std::vector<MeasuredStep>> steps_from_csv(const std::string& file, std::string_view text) {
  std::vector<MeasuredStep> steps;
  RETURN_IF_ERROR(csv_whole(file, text));
  for (const CsvRow& row : csv_rows(text)) {
    if (row.fields[0] == "phase") continue;
    MeasuredStep step;
    step.decode = row.fields[0] == "decode";
    if (!step.decode && row.fields[0] != "prefill") {
      return invalid_argument("{}:{}: phase: \"{}\" is neither decode nor prefill", file, row.line,
                              printable_excerpt(row.fields[0]));
    }
    const char* load_name = step.decode ? "requests_per_rank" : "tokens_per_rank";
    const char* length_name = step.decode ? "kv_tokens_per_request" : "context_tokens";
    ASSIGN_OR_RETURN(step.load_per_rank, csv_number(file, row, 1, load_name, 1e-3, 1e7));
    ASSIGN_OR_RETURN(step.length, csv_number(file, row, 2, length_name, 0, 1e7));
    ASSIGN_OR_RETURN(step.time_ms, csv_number(file, row, 3, "time_ms", 1e-6, 1e9));
    RETURN_IF_ERROR(csv_width(file, row, 4));
    step.line = row.line;
    steps.push_back(step);
  }
  if (steps.empty()) return invalid_argument("{}:1: phase: no rows", file);
  return steps;
}

bool looks_like_metrics(std::string_view text) {
  return text.starts_with(kPrefix) || text.starts_with("# HELP") || text.starts_with("# TYPE") ||
         text.find(fmt::format("\n{}", kPrefix)) != std::string_view::npos;
}

Result<std::vector<MeasuredStep>> steps_from_metrics(const std::string& file, std::string_view text,
                                                     const MeasuredOn& on) {
  ASSIGN_OR_RETURN(Sums sums, sums_of(file, text));
  const Metrics metrics(file, std::move(sums));
  ASSIGN_OR_RETURN(const double prompts, metrics.value("time_to_first_token_seconds_count"));
  ASSIGN_OR_RETURN(const double hit_tokens, metrics.value("prompt_hit_tokens_total"));
  ASSIGN_OR_RETURN(const double miss_tokens, metrics.value("prompt_miss_tokens_total"));
  ASSIGN_OR_RETURN(const double generated, metrics.value("generated_tokens_total"));
  if (!(prompts > 0)) {
    return invalid_argument("{}: fathom_time_to_first_token_seconds_count: 0, no request was answered", file);
  }
  if (!(hit_tokens + miss_tokens > 0)) {
    return invalid_argument("{}: fathom_prompt_miss_tokens_total: 0, no prompt was read", file);
  }
  const double input_mean = (hit_tokens + miss_tokens) / prompts;
  const double output_mean = generated / prompts;
  std::vector<MeasuredStep> steps;
  ASSIGN_OR_RETURN(const double decode_steps, metrics.value("decode_steps_total"));
  ASSIGN_OR_RETURN(const double decode_s, metrics.value("decode_step_seconds_total"));
  // A request's first token is prefill's.
  const double decoded = generated - prompts;
  if (decode_steps > 0 && decoded > 0) {
    steps.push_back({true, decoded / decode_steps / on.decode_ranks,
                     input_mean + output_mean * (1 + on.output_cv2) / 2,
                     decode_s / decode_steps * kMsPerSecond});
  }
  ASSIGN_OR_RETURN(const double prefill_steps, metrics.value("prefill_steps_total"));
  ASSIGN_OR_RETURN(const double prefill_s, metrics.value("prefill_step_seconds_total"));
  ASSIGN_OR_RETURN(const double prefill_tokens, metrics.value("prefill_tokens_total"));
  if (prefill_steps > 0 && prefill_tokens > 0) {
    // As in the planner: long prompts weigh more, half of the new part comes after a computed token.
    const double computed_share = miss_tokens / (hit_tokens + miss_tokens);
    steps.push_back({false, prefill_tokens / prefill_steps / on.prefill_ranks,
                     input_mean * (1 + on.input_cv2) * (1 - computed_share / 2),
                     prefill_s / prefill_steps * kMsPerSecond});
  }
  if (steps.empty()) return invalid_argument("{}: fathom_decode_steps_total: no step ran", file);
  return steps;
}

}  // namespace fathom::sim
