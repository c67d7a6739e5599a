// Paths, methods and keys: which handler answers what.
#include "serve/api/routes.h"

#include "base/log.h"
#include "base/rng.h"

namespace fathom::serve {
namespace {

struct Route {
  std::string_view method;
  std::string_view path;  // under /v1 and under /; a trailing '/' takes one more path segment
  bool needs_key;
  void (*handler)(ApiContext&, ApiCall);
};

constexpr Route kRoutes[] = {
    {"POST", "/chat/completions", true, handle_chat_completions},
    {"POST", "/completions", true, handle_completions},
    {"POST", "/tokenize", true, handle_tokenize},
    {"POST", "/detokenize", true, handle_detokenize},
    {"GET", "/models", true, handle_models},
    {"GET", "/models/", true, handle_model},
    {"GET", "/health", false, handle_health},
    {"GET", "/ready", false, handle_ready},
    {"GET", "/metrics", false, handle_metrics},
};

bool matches(const Route& route, std::string_view path, std::string& tail) {
  if (route.path.back() != '/') return path == route.path;
  if (path.substr(0, route.path.size()) != route.path || path.size() == route.path.size()) return false;
  tail = path.substr(route.path.size());
  return true;
}

// What each answer leaves behind: its metrics, and a line for whoever looks closely.
void record(ApiContext& context, const HttpRequest& request, std::string_view route, int status,
            double seconds) {
  context.metrics.observe_http(route, status, seconds);
  log_debug("{} {} {} after {:.1f} ms, {} bytes of body", request.method, request.path, status,
            seconds * 1000, request.body_bytes);
}

// Passes everything on and reports status and duration once, when the answer is complete or the client left.
class ObservedExchange final : public HttpExchange, public std::enable_shared_from_this<ObservedExchange> {
 public:
  ObservedExchange(ApiContext& context, std::shared_ptr<HttpExchange> inner, std::string_view route)
      : context_(context), inner_(std::move(inner)), route_(route) {}
  ~ObservedExchange() override {
    if (done_.load()) return;
    // Its client left before there was anything to cancel; or a handler forgot its request.
    if (inner_->gone()) context_.metrics.count_disconnect();
    observe(inner_->gone() ? 499 : 500);
  }

  const HttpRequest& request() const override { return inner_->request(); }
  void drop_body() override { inner_->drop_body(); }
  void respond(HttpResponse response) override {
    observe(response.status);
    inner_->respond(std::move(response));
  }
  void begin_stream(std::string type, std::vector<std::pair<std::string, std::string>> headers) override {
    inner_->begin_stream(std::move(type), std::move(headers));
  }
  void write(std::string bytes) override { inner_->write(std::move(bytes)); }
  void finish() override {
    observe(200);
    inner_->finish();
  }
  size_t unsent_bytes() const override { return inner_->unsent_bytes(); }
  bool gone() const override { return inner_->gone(); }
  void on_drained(std::function<void()> callback) override { inner_->on_drained(std::move(callback)); }
  void on_gone(std::function<void()> callback) override {
    inner_->on_gone([weak = weak_from_this(), callback = std::move(callback)] {
      if (auto self = weak.lock()) {
        self->context_.metrics.count_disconnect();
        self->observe(499);  // as nginx writes it: the client closed the request
      }
      callback();
    });
  }

 private:
  void observe(int status) {
    if (done_.exchange(true)) return;
    record(context_, inner_->request(), route_, status,
           to_seconds(context_.clock.now() - inner_->request().arrived));
  }

  ApiContext& context_;
  const std::shared_ptr<HttpExchange> inner_;
  const std::string_view route_;
  std::atomic<bool> done_{false};
};

// Where a request goes, or the answer that refuses it.
struct Destination {
  const Route* route = nullptr;  // null: nowhere
  ApiCall call;
  std::optional<HttpResponse> refusal;
};

Destination find_destination(ApiContext& context, const HttpRequest& request) {
  Destination found;
  std::string_view path = request.path;
  if (path.substr(0, 4) == "/v1/") path.remove_prefix(3);
  std::string allowed;
  for (const Route& route : kRoutes) {
    ApiCall call;
    if (!matches(route, path, call.path_tail)) continue;
    const bool head_as_get = request.method == "HEAD" && route.method == "GET";
    if (request.method != route.method && !head_as_get) {
      allowed = route.method;
      continue;
    }
    found.route = &route;
    if (route.needs_key) {
      auto tenant = context.keys.authenticate(request.header("authorization"));
      if (!tenant.ok()) {
        found.refusal = error_response(tenant.error());
        return found;
      }
      call.tenant = std::move(tenant.value());
    }
    found.call = std::move(call);
    return found;
  }
  ApiError error{
      .http_status = 404,
      .message = fmt::format("no such path: {} {}", excerpt(request.method), excerpt(request.path)),
      .code = "not_found"};
  if (!allowed.empty()) {
    error = ApiError{.http_status = 405,
                     .message = fmt::format("{} is not allowed on {}; use {}", excerpt(request.method),
                                            excerpt(request.path), allowed),
                     .code = "method_not_allowed"};
  }
  found.refusal = error_response(error);
  if (!allowed.empty()) found.refusal->headers.emplace_back("Allow", allowed);
  return found;
}

void record_refusal(ApiContext& context, const HttpRequest& request, const Destination& found) {
  record(context, request, found.route != nullptr ? found.route->path : "other", found.refusal->status, 0);
}

}  // namespace

std::optional<HttpResponse> refuse_by_head(ApiContext& context, const HttpRequest& head) {
  Destination found = find_destination(context, head);
  if (found.refusal) record_refusal(context, head, found);
  return std::move(found.refusal);
}

void route_request(ApiContext& context, std::shared_ptr<HttpExchange> exchange) {
  Destination found = find_destination(context, exchange->request());
  if (found.refusal) {
    record_refusal(context, exchange->request(), found);
    return exchange->respond(std::move(*found.refusal));
  }
  found.call.http = std::make_shared<ObservedExchange>(context, std::move(exchange), found.route->path);
  found.route->handler(context, std::move(found.call));
}

std::optional<ApiError> check_model(const ApiContext& context, const std::string& model) {
  if (model.empty() || model == context.options.served_model_name) return std::nullopt;
  return ApiError{.http_status = 404,
                  .message = fmt::format("the model '{}' does not exist; this server serves '{}'",
                                         excerpt(model), context.options.served_model_name),
                  .param = "model",
                  .code = "model_not_found"};
}

Result<std::vector<int32_t>> encode_plain_prompt(const ApiContext& context, const std::string& text,
                                                 const EncodeCheck& check) {
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, context.tokenizer.encode_with_special(text, check));
  const std::optional<int32_t> bos = context.tokenizer.bos_id();
  if (bos && context.tokenizer.add_bos() && (ids.empty() || ids.front() != *bos))
    ids.insert(ids.begin(), *bos);
  return ids;
}

std::string tenant_of(const ApiCall& call, const GenerationOptions& options) {
  // Lengths first, so that no pair of names can be read as another pair.
  return fmt::format("{}:{}{}", call.tenant.size(), call.tenant, options.tenant);
}

void choose_seed(ApiContext& context, GenerationOptions& options) {
  if (!options.seeded) options.sampling.seed = mix64(context.next_id.fetch_add(1) ^ 0x5eed5eed5eed5eedULL);
}

}  // namespace fathom::serve
