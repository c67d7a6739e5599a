// Reads and writes the files of `fathom simulate` and `fathom plan`, and draws their progress line.
#include "cli/sim_files.h"

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "balance/decode_balancer.h"
#include "base/clock.h"
#include "base/printable.h"

namespace fathom::cli {
namespace {

constexpr double kRedrawSeconds = 0.2;
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr double kReplaySecondsMax = 31 * 86400;
constexpr double kDecisionsMax = 500'000;
constexpr double kPriceUsdMax = 1e6;  // per GPU hour

double now_s() { return to_seconds(SystemClock().now().time_since_epoch()); }

Status write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) return make_status(StatusCode::kUnavailable, "{}: cannot be written", path.string());
  return ok_status();
}

}  // namespace

Result<std::string> read_text_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return invalid_argument("{}: is a directory", path);
  if (std::filesystem::is_character_file(path, ignored))
    return invalid_argument("{}: is a device, not a file", path);
  std::ifstream in(path, std::ios::binary);
  if (!in) return make_status(StatusCode::kNotFound, "{}: cannot be read", path);
  std::string text;
  for (size_t size = 0; in; size += static_cast<size_t>(in.gcount()), text.resize(size)) {
    if (size > kTextFileBytesMax) return invalid_argument("{}: more than {} bytes", path, kTextFileBytesMax);
    text.resize(size + kPieceBytes);
    in.read(text.data() + size, static_cast<std::streamsize>(kPieceBytes));
  }
  if (in.bad()) return make_status(StatusCode::kNotFound, "{}: cannot be read", path);
  return text;
}

std::string find_data_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return path;
  const auto binary = std::filesystem::read_symlink("/proc/self/exe", ignored);
  for (auto dir = binary.parent_path(); !ignored && dir.has_relative_path(); dir = dir.parent_path()) {
    if (std::filesystem::exists(dir / path, ignored)) return (dir / path).string();
  }
  return path;
}

Result<sim::RankImbalance> imbalance_of(const std::string& decode_policy, const std::optional<double>& kv,
                                        const std::optional<double>& requests) {
  RETURN_IF_ERROR(parse_decode_policy(decode_policy).status());
  sim::RankImbalance out;
  if (!kv || !requests) {
    const std::string file = find_data_file("data/decode_imbalance.csv");
    ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
    ASSIGN_OR_RETURN(out, sim::parse_rank_imbalance(file, text, decode_policy));
  }
  out.kv = kv.value_or(out.kv), out.requests = requests.value_or(out.requests);
  return out;
}

Status check_range(const char* option, double value, double min, double max) {
  if (value >= min && value <= max) return ok_status();
  return invalid_argument("{}: {} is outside {}..{}", option, value, min, max);
}

Status set_price(const std::optional<double>& price, sim::HardwareProfile& hw) {
  if (!price) return ok_status();
  RETURN_IF_ERROR(check_range("--price", *price, 0, kPriceUsdMax));
  return sim::set_profile_constant(hw, "hardware.price_usd_per_gpu_hour", *price);
}

Status prepare_report_dir(const std::string& dir) {
  if (dir.empty()) return ok_status();
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return invalid_argument("--out: {}: {}", dir, error.message());
  if (access(dir.c_str(), W_OK | X_OK) != 0) return invalid_argument("--out: {}: cannot be written", dir);
  return ok_status();
}

Status write_report(const sim::Report& report, const std::string& dir) {
  const std::filesystem::path root(dir);
  RETURN_IF_ERROR(write_file(root / "summary.json", sim::summary_json(report)));
  RETURN_IF_ERROR(write_file(root / "report.html", sim::report_html(report)));
  std::string head = "#";  // every output names the profile
  for (const auto& [name, value] : report.facts) {
    if (name.starts_with("profile")) head += fmt::format(" {} {}", name, value);
  }
  for (const sim::CsvFile& file : report.csv_files) {
    RETURN_IF_ERROR(write_file(root / file.name, head + "\n" + file.text));
  }
  return ok_status();
}

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), started_s_(now_s()), terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (terminal_) std::fprintf(stderr, "\r\033[K");
}

double ProgressBar::elapsed_s() const { return now_s() - started_s_; }

void ProgressBar::update(double done) {
  const double elapsed = elapsed_s();
  if (!terminal_ || done <= 0 || elapsed - drawn_s_ < kRedrawSeconds) return;
  drawn_s_ = elapsed;
  const int filled = static_cast<int>(done * 30);
  const double left = elapsed * (1 - done) / done;
  std::fprintf(stderr, "\r%s [%.*s%*s] %5.1f %%  %.2f %%/s  %.0f s left\033[K", label_.c_str(), filled,
               "##############################", 30 - filled, "", done * 100, done * 100 / elapsed, left);
  std::fflush(stderr);
}

CLI::Validator seed_number() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        uint64_t value = 0;
        const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool whole = code == std::errc() && end == text.data() + text.size();
        return whole ? "" : fmt::format("{} is not a whole number of 64 bits", text);
      },
      "");
}

Status check_span(const sim::Trace& trace, double speed) {
  const double span_s = trace.span_s() / speed;
  if (span_s <= kReplaySecondsMax) return ok_status();
  return invalid_argument("{}: {:.1f} days after the first arrival{}, a replay takes at most {:.0f}",
                          trace.end_place.empty() ? "--seconds" : trace.end_place, span_s / 86400,
                          speed != 1 ? " at this --rate" : "", kReplaySecondsMax / 86400);
}

Status check_decisions(double span_s, double interval_s) {
  if (span_s / interval_s <= kDecisionsMax) return ok_status();
  return invalid_argument(
      "--decide-every: {} s over {:.1f} days are {:.0f} decisions, a replay takes at most {:.0f}", interval_s,
      span_s / 86400, span_s / interval_s, kDecisionsMax);
}

void tell_doubt(const sim::Trace& trace) {
  if (!trace.doubt.empty()) std::fprintf(stderr, "note: %s\n", printable(trace.doubt).c_str());
}

int report_error(const Status& status) {
  std::fprintf(stderr, "error: %s\n", printable(status.message()).c_str());
  const bool input = status.code() == StatusCode::kInvalidArgument ||
                     status.code() == StatusCode::kNotFound || status.code() == StatusCode::kDataLoss;
  return input ? 2 : 1;
}

}  // namespace fathom::cli
