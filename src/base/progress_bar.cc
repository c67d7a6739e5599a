// Progress of a long task on standard error.
#include "base/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "base/log.h"

namespace fathom {
namespace {

constexpr int64_t kQuietBytes = 64 << 20;

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

}  // namespace

ProgressBar::ProgressBar(std::string verb, bool log)
    : verb_(std::move(verb)), log_(log), terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (terminal_ && percent_ >= 0 && percent_ < 100) std::fputs("\n", stderr);
}

void ProgressBar::show_bytes(int64_t done, int64_t total) {
  if (total <= 0) return;
  const int percent = static_cast<int>(done * 100 / total);
  if (percent == percent_ || (!terminal_ && percent / 10 == percent_ / 10)) return;
  percent_ = percent;
  if (terminal_) {
    const std::string bar(static_cast<size_t>(percent) * 40 / 100, '#');
    fmt::print(stderr, "\r{} [{:<40}] {:3d} %  {:.2f} of {:.2f} GiB{}", verb_, bar, percent, gib(done),
               gib(total), percent == 100 ? "\n" : "");
    std::fflush(stderr);
  } else if (log_ && total > kQuietBytes) {
    log_info("{}: {} % of {:.2f} GiB", verb_, percent, gib(total));
  }
}

}  // namespace fathom
