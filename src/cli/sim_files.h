// Files and the progress bar of the simulator's subcommands; src/sim itself touches neither.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "sim/profile.h"
#include "sim/rank_imbalance.h"
#include "sim/report.h"
#include "sim/trace.h"

namespace fathom::cli {

// Errors name the file: one that is no file, or longer than kTextFileBytesMax (a pipe may have no end).
inline constexpr size_t kTextFileBytesMax = size_t{1} << 30;
Result<std::string> read_text_file(const std::string& path);
// As given; else beside the binary's source tree, so that `build/release/fathom` works from anywhere.
std::string find_data_file(const std::string& path);
// What a decode policy's ranks come to, from data/decode_imbalance.csv; what is given stands.
Result<sim::RankImbalance> imbalance_of(const std::string& decode_policy, const std::optional<double>& kv,
                                        const std::optional<double>& requests);
Status check_range(const char* option, double value, double min, double max);
// --price: USD per GPU hour in place of the profile's, where given.
Status set_price(const std::optional<double>& price, sim::HardwareProfile& hw);
// Makes DIR, so that one that cannot be written is known before the run and not after it. Empty: nothing to
// do.
Status prepare_report_dir(const std::string& dir);
// Writes summary.json, report.html and the CSV files into DIR.
Status write_report(const sim::Report& report, const std::string& dir);

// One line on stderr, redrawn: share done, rate and time left. Silent when stderr is no terminal, but for the
// end.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  void update(double done);
  double elapsed_s() const;

 private:
  std::string label_;
  double started_s_;
  double drawn_s_ = 0;
  bool terminal_;
};

// Refuses what is no whole number of 64 bits: CLI11 would wrap a negative one and clip one that is too large.
CLI::Validator seed_number();

// A simulated fleet keeps books of every hour: a replay at so many times the trace's speed takes at most 31
// days. The error names the last arrival.
Status check_span(const sim::Trace& trace, double speed);
// And decides at most so many times.
Status check_decisions(double span_s, double interval_s);

// Prints "note: ..." where a trace's end may be torn.
void tell_doubt(const sim::Trace& trace);

// Prints "error: message" and gives the exit code for the status: 2 bad input, else 1.
int report_error(const Status& status);

}  // namespace fathom::cli
