// What /metrics exports (docs/metrics.md lists it): HTTP counters kept here, and the engine's own snapshot.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "engine/stats.h"

namespace fathom::serve {

// Thread-safe. Handles of the fixed label sets are resolved at construction.
class ApiMetrics {
 public:
  // `engine_stats` is called at each scrape; `model` is the served name, put on every engine metric.
  ApiMetrics(std::function<EngineStats()> engine_stats, std::string model, std::string version);
  ~ApiMetrics();

  // Once per answered request; `route` is the pattern from the method table ("/chat/completions").
  void observe_http(std::string_view route, int status, double seconds);
  void count_disconnect();
  void set_requests_in_flight(int n);

  // Prometheus text format.
  std::string render() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom::serve
