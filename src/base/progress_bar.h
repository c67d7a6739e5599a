// Progress of a long task on standard error: a bar on a terminal; elsewhere, if wanted, a log line per tenth.
#pragma once

#include <cstdint>
#include <string>

namespace fathom {

class ProgressBar {
 public:
  // `verb` as in "loading". Without `log` nothing is written where standard error is no terminal; with it
  // only for totals beyond 64 MiB.
  explicit ProgressBar(std::string verb, bool log = false);
  // Ends the line of a bar that did not come to its end.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show_bytes(int64_t done, int64_t total);

 private:
  const std::string verb_;
  const bool log_;
  const bool terminal_;
  int percent_ = -1;
};

}  // namespace fathom
