// Stop strings in a stream of text. Text that may still become part of a stop string is held back, so that no
// prefix of one ever leaks, and the result does not depend on how the text was cut.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

// The first stop string to be complete wins; of several that end at the same byte, the longest.
class StopMatcher {
 public:
  // Empty strings are ignored.
  explicit StopMatcher(const std::vector<std::string>& stops);

  // Appends to `out` the text that can no longer be part of a stop string. Returns true once a stop string is
  // complete; everything from its first byte on is dropped, now and for ever.
  bool push(std::string_view text, std::string& out);
  // The stream ends: the held text was no stop string.
  void flush(std::string& out);

  bool matched() const { return matched_.has_value(); }

 private:
  // Knuth-Morris-Pratt per stop string: a request has few, and they are short.
  struct Pattern {
    std::string text;
    std::vector<size_t> failure;  // failure[n]: longest proper border of the first n bytes
    size_t state = 0;             // bytes of `text` that the stream's end spells
    bool step(char byte);         // true when complete
  };

  std::vector<Pattern> patterns_;
  std::string held_;
  std::optional<size_t> matched_;
};

}  // namespace fathom
