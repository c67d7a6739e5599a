// Measurements of a running server as steps the cost model can be fitted to.
#include "sim/measured_steps.h"

#include <charconv>
#include <map>

#include "sim/csv.h"

namespace fathom::sim {
namespace {

constexpr std::string_view kPrefix = "fathom_";
constexpr double kMsPerSecond = 1e3;
constexpr double kCounterMax = 1e18;

using Sums = std::map<std::string, double, std::less<>>;

// `name{labels} value` lines, summed over the label sets of a name.
Result<Sums> sums_of(const std::string& file, std::string_view text) {
  Sums sums;
  for (int line = 1; !text.empty(); ++line) {
    std::string_view row = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(row.size() + 1, text.size()));
    if (!row.empty() && row.back() == '\r') row.remove_suffix(1);
    if (row.empty() || row[0] == '#') continue;
    const std::string_view name = row.substr(0, row.find_first_of("{ "));
    const size_t labels_end = row.find('}');
    const size_t space = row.find(' ', labels_end == std::string_view::npos ? name.size() : labels_end);
    double value = 0;
    const std::string_view number = space == std::string_view::npos ? "" : row.substr(space + 1);
    const auto [end, code] = std::from_chars(number.data(), number.data() + number.size(), value);
    // A time stamp may follow.
    const std::string_view after(end, static_cast<size_t>(number.data() + number.size() - end));
    const bool whole = code == std::errc() &&
                       after.find_first_not_of(" 0123456789") == std::string_view::npos &&
                       (after.empty() || after[0] == ' ');
    if (!whole) return invalid_argument("{}:{}: {}: no value", file, line, name);
    sums[std::string(name)] += value;
  }
  return sums;
}

class Metrics {
 public:
  Metrics(const std::string& file, Sums sums) : file_(file), sums_(std::move(sums)) {}
  Result<double> value(std::string_view name) const {
    const auto at = sums_.find(fmt::format("{}{}", kPrefix, name));
    if (at == sums_.end()) return invalid_argument("{}: {}{}: missing", file_, kPrefix, name);
    if (!(at->second >= 0 && at->second <= kCounterMax)) {
      return invalid_argument("{}: {}{}: {} is outside 0..{}", file_, kPrefix, name, at->second, kCounterMax);
    }
    return at->second;
  }

 private:
  const std::string& file_;
  const Sums sums_;
};

}  // namespace

Result<std::vector<MeasuredStep>> steps_from_csv(const std::string& file, std::string_view text) {
  std::vector<MeasuredStep> steps;
  for (const CsvRow& row : csv_rows(text)) {
    if (row.fields[0] == "phase") continue;
    MeasuredStep step;
    step.decode = row.fields[0] == "decode";
    if (!step.decode && row.fields[0] != "prefill") {
      return invalid_argument("{}:{}: phase: \"{}\" is neither decode nor prefill", file, row.line,
                              row.fields[0]);
    }
    const char* load_name = step.decode ? "requests_per_rank" : "tokens_per_rank";
    const char* length_name = step.decode ? "kv_tokens_per_request" : "context_tokens";
    ASSIGN_OR_RETURN(step.load_per_rank, csv_number(file, row, 1, load_name, 1e-3, 1e7));
    ASSIGN_OR_RETURN(step.length, csv_number(file, row, 2, length_name, 0, 1e7));
    ASSIGN_OR_RETURN(step.time_ms, csv_number(file, row, 3, "time_ms", 1e-6, 1e9));
    steps.push_back(step);
  }
  if (steps.empty()) return invalid_argument("{}:1: phase: no rows", file);
  return steps;
}

bool looks_like_metrics(std::string_view text) {
  return text.starts_with(kPrefix) || text.starts_with("# HELP") || text.starts_with("# TYPE");
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
