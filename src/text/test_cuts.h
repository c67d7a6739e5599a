// For property tests: a random way of cutting a text into pieces.
#pragma once

#include <rapidcheck.h>

#include <cstdint>
#include <ostream>
#include <string_view>
#include <vector>

namespace fathom {

struct Cuts {
  std::vector<uint8_t> sizes;  // used in turn, modulo 8; none: one piece

  std::vector<std::string_view> apply(std::string_view text) const {
    std::vector<std::string_view> pieces;
    if (sizes.empty()) return {text};
    for (size_t i = 0, begin = 0; begin < text.size(); ++i) {
      // A size of zero is an empty piece; every round of sizes moves on by at least one byte.
      const size_t size = sizes[i % sizes.size()] % 8 + (i % sizes.size() == 0 ? 1 : 0);
      pieces.push_back(text.substr(begin, size));
      begin += pieces.back().size();
    }
    return pieces;
  }
};

inline std::ostream& operator<<(std::ostream& os, const Cuts& cuts) {
  for (const int size : cuts.sizes) os << size << ' ';
  return os;
}

}  // namespace fathom

template <>
struct rc::Arbitrary<fathom::Cuts> {
  static Gen<fathom::Cuts> arbitrary() {
    return gen::map(gen::arbitrary<std::vector<uint8_t>>(),
                    [](std::vector<uint8_t> sizes) { return fathom::Cuts{std::move(sizes)}; });
  }
};
