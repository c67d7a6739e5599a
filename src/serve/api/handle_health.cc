// GET /health: is the engine making progress?  /ready: should a balancer send requests here?  /metrics:
// figures.
#include "serve/api/json.h"
#include "serve/api/routes.h"

namespace fathom::serve {
namespace {

struct Health {
  const char* status = "ok";
  Duration age;  // of the last progress
  bool ok() const { return std::string_view(status) == "ok"; }
};

Health health_of(const ApiContext& context) {
  const EngineStats stats = context.engine.stats();
  Health health{.age = context.clock.now() - stats.last_progress};
  if (stats.failing) {
    health.status = "failing";
  } else if (health.age > context.options.stall_max) {
    health.status = "stalled";
  }
  return health;
}

}  // namespace

void handle_health(ApiContext& context, ApiCall call) {
  const Health health = health_of(context);
  call.http->respond({.status = health.ok() ? 200 : 503,
                      .body = dump_json(Json{{"status", health.status},
                                             {"seconds_since_progress", to_seconds(health.age)}})});
}

void handle_ready(ApiContext& context, ApiCall call) {
  const Health health = health_of(context);
  const char* const status = !context.ready.load() ? "not ready" : health.ok() ? "ready" : health.status;
  const bool ready = std::string_view(status) == "ready";
  call.http->respond({.status = ready ? 200 : 503, .body = dump_json(Json{{"status", status}})});
}

void handle_metrics(ApiContext& context, ApiCall call) {
  context.metrics.set_requests_in_flight(context.admission.in_flight());
  call.http->respond(
      {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = context.metrics.render()});
}

}  // namespace fathom::serve
