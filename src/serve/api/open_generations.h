// The requests that are being answered, for whoever must end them all.
#pragma once

#include <mutex>
#include <set>

#include "serve/api/api_error.h"

namespace fathom::serve {

class Generation;

// Thread-safe.
class OpenGenerations {
 public:
  void add(Generation& generation);
  void remove(Generation& generation);
  // Answers each with `error`, those that are already answered excepted. Does not wait for the engine.
  void end_all(const ApiError& error);

 private:
  std::mutex mu_;
  std::set<Generation*> all_;  // guarded by mu_
};

}  // namespace fathom::serve
