// GET /v1/models and /v1/models/{id}.
#include "serve/api/json.h"
#include "serve/api/routes.h"

namespace fathom::serve {
namespace {

Json model_object(const ApiContext& context) {
  return Json{{"id", context.options.served_model_name},
              {"object", "model"},
              {"created", context.options.created_unix_s},
              {"owned_by", "fathom"},
              {"max_model_len", context.limits.context_max}};
}

}  // namespace

void handle_models(ApiContext& context, ApiCall call) {
  call.http->respond(
      {.body = dump_json(Json{{"object", "list"}, {"data", Json::array({model_object(context)})}})});
}

void handle_model(ApiContext& context, ApiCall call) {
  if (auto error = check_model(context, call.path_tail)) return call.http->respond(error_response(*error));
  call.http->respond({.body = dump_json(model_object(context))});
}

}  // namespace fathom::serve
