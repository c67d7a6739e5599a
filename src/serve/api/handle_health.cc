// GET /health: is the engine making progress?  /ready: should a balancer send requests here?  /metrics: figures.
#include "serve/api/json.h"
#include "serve/api/routes.h"

namespace fathom::serve {

void handle_health(ApiContext& context, ApiCall call) {
  const Duration age = context.clock.now() - context.engine.stats().last_progress;
  const bool healthy = age <= context.options.health_stall_max;
  call.http->respond({.status = healthy ? 200 : 503,
                      .body = dump_json(Json{{"status", healthy ? "ok" : "stalled"},
                                             {"seconds_since_progress", to_seconds(age)}})});
}

void handle_ready(ApiContext& context, ApiCall call) {
  const bool ready = context.ready.load();
  call.http->respond(
      {.status = ready ? 200 : 503, .body = dump_json(Json{{"status", ready ? "ready" : "not ready"}})});
}

void handle_metrics(ApiContext& context, ApiCall call) {
  context.metrics.set_requests_in_flight(context.admission.in_flight());
  call.http->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = context.metrics.render()});
}

}  // namespace fathom::serve
