// Knuth-Morris-Pratt over all stop strings at once, holding back what may still match.
#include "text/stop_matcher.h"

#include <algorithm>

namespace fathom {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    if (stop.empty()) continue;
    Pattern pattern{stop, std::vector<size_t>(stop.size() + 1, 0)};
    for (size_t n = 1, border = 0; n < stop.size(); ++n) {
      while (border > 0 && stop[n] != stop[border]) border = pattern.failure[border];
      if (stop[n] == stop[border]) ++border;
      pattern.failure[n + 1] = border;
    }
    patterns_.push_back(std::move(pattern));
  }
}

bool StopMatcher::Pattern::step(char byte) {
  while (state > 0 && text[state] != byte) state = failure[state];
  if (text[state] == byte) ++state;
  return state == text.size();
}

bool StopMatcher::push(std::string_view text, std::string& out) {
  if (matched_) return true;
  if (patterns_.empty()) {
    out.append(text);
    return false;
  }
  for (const char byte : text) {
    held_.push_back(byte);
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (!patterns_[i].step(byte)) continue;
      if (!matched_ || patterns_[i].text.size() > patterns_[*matched_].text.size()) matched_ = i;
    }
    if (matched_) {
      out.append(held_, 0, held_.size() - patterns_[*matched_].text.size());
      held_.clear();
      return true;
    }
  }
  size_t num_open = 0;
  for (const Pattern& pattern : patterns_) num_open = std::max(num_open, pattern.state);
  out.append(held_, 0, held_.size() - num_open);
  held_.erase(0, held_.size() - num_open);
  return false;
}

void StopMatcher::flush(std::string& out) {
  out.append(held_);
  held_.clear();
}

}  // namespace fathom
