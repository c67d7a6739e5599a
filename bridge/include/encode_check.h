// What an encoding asks now and then whether it may go on. Implemented in C++, called from Rust.
#pragma once

#include <cstddef>

namespace fathom::bridge {

class EncodeCheck {
 public:
  virtual ~EncodeCheck() = default;
  // After so many tokens. False ends the encoding with an error.
  virtual bool may_go_on(std::size_t num_tokens) const noexcept = 0;
};

}  // namespace fathom::bridge
