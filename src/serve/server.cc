// Engine, API and listener joined; start and orderly stop.
#include "serve/server.h"

#include <algorithm>
#include <thread>

#include "base/log.h"
#include "base/rng.h"
#include "model/memory_plan.h"
#include "serve/api/routes.h"

namespace fathom::serve {
namespace {

static_assert(Engine::kDrainGrace < Server::kEndTimeMax, "answers need time to go out");
// Of kEndTimeMax, kept for the answers of handlers that are not done by then.
constexpr Duration kLastAnswersTime = std::chrono::seconds(1);
constexpr Duration kPollInterval = std::chrono::milliseconds(5);

std::chrono::milliseconds to_ms(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

class ServerImpl final : public Server {
 public:
  ServerImpl(const ServeOptions& options, const Clock& clock) : options_(options), clock_(clock) {}
  // Order matters: requests end with the engine, which still needs the HTTP server to answer them.
  ~ServerImpl() override {
    if (context_) context_->ready = false;
    if (model_) {
      while (!model_->engine().drain(clock_.now())) {
      }
    }
    http_.reset();
  }

  Status start();
  uint16_t port() const override { return http_->port(); }
  std::string summary() const override;
  const std::string& model_name() const override { return model_->name(); }
  bool shut_down() override;

 private:
  void make_context(ApiKeys keys);

  const ServeOptions options_;
  const Clock& clock_;
  std::unique_ptr<LocalModel> model_;
  std::unique_ptr<Admission> admission_;
  std::unique_ptr<ApiMetrics> metrics_;
  std::unique_ptr<ApiContext> context_;
  std::unique_ptr<HttpServer> http_;
};

Status ServerImpl::start() {
  // The cheap checks first: nobody waits for a large model to learn that a key file is missing or a port
  // taken.
  ApiKeys keys;
  if (!options_.api_key_file.empty()) {
    ASSIGN_OR_RETURN(keys, ApiKeys::load(options_.api_key_file));
  }
  HttpOptions http = options_.http;
  http.large_wait_max = to_ms(options_.model.engine.queue_seconds_max);
  ASSIGN_OR_RETURN(http_, HttpServer::bind(http, options_.http_threads));
  LocalModelOptions model = options_.model;
  model.text_bytes_max = static_cast<int64_t>(options_.http.body_bytes_max);
  ASSIGN_OR_RETURN(model_, LocalModel::load(model, clock_));
  make_context(std::move(keys));
  context_->http = http_.get();
  context_->ready = true;  // the engine is warmed up by now
  return http_->listen(
      [this](std::shared_ptr<HttpExchange> exchange) { route_request(*context_, std::move(exchange)); },
      [this](const HttpRequest& head) { return refuse_by_head(*context_, head); });
}

void ServerImpl::make_context(ApiKeys keys) {
  Engine& engine = model_->engine();
  AdmissionOptions admission = options_.admission;
  // Without keys all clients share the anonymous one, which is no single user to be held back.
  if (!keys.required()) admission.requests_per_key_max = admission.requests_max;
  admission_ = std::make_unique<Admission>(admission);
  metrics_ =
      std::make_unique<ApiMetrics>([&engine] { return engine.stats(); }, model_->name(), FATHOM_VERSION);
  const ApiOptions api{.served_model_name = model_->name(),
                       .created_unix_s = clock_.unix_seconds(),
                       .system_fingerprint = "fp_" + model_->model().weights().fingerprint.substr(0, 12),
                       .keep_alive_interval = to_ms(options_.keep_alive_interval_s),
                       .stall_max = to_ms(options_.stall_timeout_s),
                       .request_timeout_max = to_ms(options_.request_timeout_s),
                       .queue_wait_max = to_ms(options_.model.engine.queue_seconds_max)};
  const RequestLimits limits{.vocab_size = static_cast<int32_t>(model_->model().config().vocab_size),
                             .context_max = engine.options().max_context,
                             .token_bytes_max = model_->tokenizer().longest_token_bytes(),
                             .answer_bytes_max = options_.answer_bytes_max};
  context_.reset(new ApiContext{api, limits, std::move(keys), engine.options().eos_token_ids,
                                model_->tokenizer(), model_->chat_template(), engine, clock_, *admission_,
                                *metrics_});
  // Response ids and seeds differ from one start to the next.
  context_->next_id = mix64(static_cast<uint64_t>(clock_.now().time_since_epoch().count()) ^
                            static_cast<uint64_t>(clock_.unix_seconds()) << 20);
}

std::string ServerImpl::summary() const {
  const HttpOptions& http = options_.http;
  std::string text = model_->summary();
  text += fmt::format(
      "clients    {}; requests {}{}, connections {}, body {}, bodies {}, large bodies {}, answer {}\n",
      context_->keys.required() ? "API key" : "no key asked for", options_.admission.requests_max,
      context_->keys.required() ? fmt::format(" ({} per key)", options_.admission.requests_per_key_max) : "",
      http.connections_max, bytes_text(static_cast<int64_t>(http.body_bytes_max)),
      bytes_text(static_cast<int64_t>(http.bodies_bytes_max)), http.large_bodies_max,
      bytes_text(options_.answer_bytes_max));
  text += fmt::format(
      "time-outs  header {} s, body {} s, idle {} s, write {} s, request {} s, queue {} s, stall {} s\n",
      to_seconds(http.header_timeout_max), to_seconds(http.body_timeout_max),
      to_seconds(http.idle_timeout_max), to_seconds(http.write_stall_max), options_.request_timeout_s,
      options_.model.engine.queue_seconds_max, options_.stall_timeout_s);
  return text;
}

bool ServerImpl::shut_down() {
  context_->ready = false;
  const TimePoint deadline = clock_.now() + from_seconds(options_.drain_timeout_s);
  const bool drained = model_->engine().drain(deadline);
  if (!drained) {
    log_error("the engine's thread hangs in a step; its requests end with an error");
    context_->open_generations.end_all(shutting_down_error());
  }
  // After the last request has ended, the last bytes of answers may still be on their way out.
  const TimePoint flush_deadline = std::min(clock_.now(), deadline) + kEndTimeMax;
  // Tokenizing ends at its next check, but not within a word.
  const TimePoint handlers_deadline = flush_deadline - kLastAnswersTime;
  while ((admission_->in_flight() > 0 || http_->num_handling() > 0) && clock_.now() < handlers_deadline)
    std::this_thread::sleep_for(kPollInterval);
  http_->end_handling(error_response(shutting_down_error()));
  // Tickets go before the last bytes are queued; connections close when those bytes are sent.
  http_->stop_accepting();
  while (http_->num_connections() > 0 && clock_.now() < flush_deadline)
    std::this_thread::sleep_for(kPollInterval);
  const int num_handling = http_->num_handling();
  if (num_handling > 0) log_warning("{} requests were cut off while they were read", num_handling);
  return drained && num_handling == 0;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::start(const ServeOptions& options, const Clock& clock) {
  auto server = std::make_unique<ServerImpl>(options, clock);
  RETURN_IF_ERROR(server->start());
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace fathom::serve
