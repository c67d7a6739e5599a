// The set of requests that are being answered.
#include "serve/api/open_generations.h"

#include <memory>
#include <utility>
#include <vector>

#include "serve/api/generation.h"

namespace fathom::serve {

void OpenGenerations::add(Generation& generation) {
  std::lock_guard lock(mu_);
  all_.insert(&generation);
}

void OpenGenerations::remove(Generation& generation) {
  std::lock_guard lock(mu_);
  all_.erase(&generation);
}

void OpenGenerations::end_all(const ApiError& error) {
  std::vector<std::shared_ptr<Generation>> all;
  {
    std::lock_guard lock(mu_);
    for (Generation* generation : all_) {
      if (auto held = generation->weak_from_this().lock()) all.push_back(std::move(held));
    }
  }
  for (const auto& generation : all) generation->end(error);
}

}  // namespace fathom::serve
