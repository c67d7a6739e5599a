// What /metrics exports, listed in docs/metrics.md.
#include "serve/api/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <mutex>
#include <utility>

#include "engine/request.h"

namespace fathom::serve {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

const prometheus::Histogram::BucketBoundaries kHttpSeconds = {0.001, 0.005, 0.01, 0.05, 0.1, 0.5,
                                                              1,     5,     10,   60,   300};

ClientMetric metric_with(const ClientMetric::Label& model) {
  ClientMetric metric;
  metric.label.push_back(model);
  return metric;
}

// Turns an EngineStats snapshot into metric families.
class EngineFamilies {
 public:
  explicit EngineFamilies(std::string model) : model_{"model", std::move(model)} {}

  void gauge(const char* name, const char* help, double value) {
    ClientMetric metric = metric_with(model_);
    metric.gauge.value = value;
    families.push_back(MetricFamily{name, help, MetricType::Gauge, {std::move(metric)}});
  }
  void counter(const char* name, const char* help, double value) {
    ClientMetric metric = metric_with(model_);
    metric.counter.value = value;
    families.push_back(MetricFamily{name, help, MetricType::Counter, {std::move(metric)}});
  }
  void finished(const EngineStats& stats) {
    MetricFamily family{
        "fathom_requests_finished_total", "Requests ended, by reason", MetricType::Counter, {}};
    for (size_t i = 0; i < stats.requests_finished.size(); ++i) {
      ClientMetric metric = metric_with(model_);
      metric.label.push_back({"reason", std::string(finish_reason_name(static_cast<FinishReason>(i)))});
      metric.counter.value = static_cast<double>(stats.requests_finished[i]);
      family.metric.push_back(std::move(metric));
    }
    families.push_back(std::move(family));
  }
  void histogram(const char* name, const char* help, const LatencyHistogram& values) {
    ClientMetric metric = metric_with(model_);
    uint64_t cumulative = 0;
    for (size_t i = 0; i < values.counts().size(); ++i) {
      cumulative += static_cast<uint64_t>(values.counts()[i]);
      const bool last = i == LatencyHistogram::kBounds.size();
      metric.histogram.bucket.push_back(
          {cumulative, last ? std::numeric_limits<double>::infinity() : LatencyHistogram::kBounds[i]});
    }
    metric.histogram.sample_count = static_cast<uint64_t>(values.count());
    metric.histogram.sample_sum = values.sum();
    families.push_back(MetricFamily{name, help, MetricType::Histogram, {std::move(metric)}});
  }

  std::vector<MetricFamily> families;

 private:
  const ClientMetric::Label model_;
};

void add_engine_families(EngineFamilies& out, const EngineStats& s) {
  out.gauge("fathom_requests_queued", "Requests waiting to start", s.num_queued);
  out.gauge("fathom_requests_prefilling", "Requests whose prompt is being computed", s.num_prefilling);
  out.gauge("fathom_requests_decoding", "Requests that produce tokens", s.num_decoding);
  out.gauge("fathom_kv_blocks_total", "KV blocks of 64 tokens in the pool", s.kv_blocks_total);
  out.gauge("fathom_kv_blocks_free", "KV blocks that hold nothing", s.kv_blocks_free);
  out.gauge("fathom_kv_blocks_cached", "KV blocks that hold a prefix nobody uses now", s.kv_blocks_cached);
  out.counter("fathom_requests_submitted_total", "Requests accepted into the queue", s.requests_submitted);
  out.counter("fathom_requests_refused_total", "Requests refused at submission", s.requests_refused);
  out.finished(s);
  out.counter("fathom_prompt_hit_tokens_total", "Prompt tokens whose KV came from a cache", s.hit_tokens);
  out.counter("fathom_prompt_miss_tokens_total", "Prompt tokens that were computed", s.miss_tokens);
  out.counter("fathom_prefill_tokens_total", "Tokens computed by prefill steps, replays included",
              s.prefill_tokens);
  out.counter("fathom_generated_tokens_total", "Tokens sampled", s.generated_tokens);
  out.counter("fathom_prefill_steps_total", "Prefill steps", s.prefill_steps);
  out.counter("fathom_decode_steps_total", "Decode steps", s.decode_steps);
  out.counter("fathom_prefill_step_seconds_total", "Time spent in prefill steps", s.prefill_seconds);
  out.counter("fathom_decode_step_seconds_total", "Time spent in decode steps", s.decode_seconds);
  out.counter("fathom_failed_steps_total", "Steps of either engine that failed", s.failed_steps);
  out.counter("fathom_retractions_total", "Running requests put back because KV blocks ran out",
              s.retractions);
  out.counter("fathom_kv_evicted_blocks_total", "Cached KV blocks dropped to make room", s.evicted_blocks);
  out.counter("fathom_handovers_total", "Hand-overs from prefill to decode", s.handovers);
  out.counter("fathom_handovers_expired_total", "Hand-overs given up when their lease ran out",
              s.handovers_expired);
  for (const auto& [engine, e] : {std::pair{"prefill", s.prefill_exchange}, {"decode", s.decode_exchange}}) {
    const auto count = [&, prefix = fmt::format("fathom_{}_", engine)](const char* name, const char* help,
                                                                       int64_t n) {
      out.counter((prefix + name).c_str(), help, n);
    };
    count("dispatch_bytes_total", "Wire bytes of tokens sent to experts", e.dispatch_bytes);
    count("combine_bytes_total", "Wire bytes of expert results sent back", e.combine_bytes);
    count("remote_dispatch_bytes_total", "Of the dispatched bytes, those that left their rank",
          e.remote_dispatch_bytes);
    count("remote_combine_bytes_total", "Of the combined bytes, those that left their rank",
          e.remote_combine_bytes);
  }
  out.counter("fathom_expert_layers_placed_total", "MoE layers whose expert copies were placed anew",
              s.expert_layers_placed);
  out.histogram("fathom_time_to_first_token_seconds", "Submission to first token", s.ttft);
  out.histogram("fathom_token_gap_seconds", "Gap between two tokens of one request", s.itl);
  out.histogram("fathom_queue_wait_seconds", "Submission to first prefill step", s.queue_wait);
  out.histogram("fathom_request_seconds", "Submission to end", s.request);
}

}  // namespace

struct ApiMetrics::Impl {
  std::function<EngineStats()> engine_stats;
  std::string model;
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests = prometheus::BuildCounter()
                                                          .Name("fathom_http_requests_total")
                                                          .Help("Answers, by route and status")
                                                          .Register(registry);
  prometheus::Family<prometheus::Histogram>& seconds = prometheus::BuildHistogram()
                                                           .Name("fathom_http_request_seconds")
                                                           .Help("Arrival to last byte queued, by route")
                                                           .Register(registry);
  prometheus::Counter& disconnects = prometheus::BuildCounter()
                                         .Name("fathom_http_disconnects_total")
                                         .Help("Clients that left before their answer was complete")
                                         .Register(registry)
                                         .Add({});
  prometheus::Gauge& in_flight = prometheus::BuildGauge()
                                     .Name("fathom_http_requests_in_flight")
                                     .Help("Generation requests being answered")
                                     .Register(registry)
                                     .Add({});
  std::mutex mu;
  std::map<std::pair<std::string, int>, prometheus::Counter*> counter_by_route;  // guarded by mu
  std::map<std::string, prometheus::Histogram*, std::less<>> seconds_by_route;   // guarded by mu
};

ApiMetrics::ApiMetrics(std::function<EngineStats()> engine_stats, std::string model, std::string version)
    : impl_(std::make_unique<Impl>()) {
  impl_->engine_stats = std::move(engine_stats);
  impl_->model = std::move(model);
  prometheus::BuildGauge()
      .Name("fathom_build_info")
      .Help("Always 1; the version is a label")
      .Register(impl_->registry)
      .Add({{"version", std::move(version)}})
      .Set(1);
}

ApiMetrics::~ApiMetrics() = default;

void ApiMetrics::observe_http(std::string_view route, int status, double seconds) {
  std::lock_guard lock(impl_->mu);
  prometheus::Counter*& counter = impl_->counter_by_route[{std::string(route), status}];
  if (counter == nullptr) {
    counter = &impl_->requests.Add({{"route", std::string(route)}, {"status", std::to_string(status)}});
  }
  counter->Increment();
  prometheus::Histogram*& histogram = impl_->seconds_by_route[std::string(route)];
  if (histogram == nullptr) histogram = &impl_->seconds.Add({{"route", std::string(route)}}, kHttpSeconds);
  histogram->Observe(seconds);
}

void ApiMetrics::count_disconnect() { impl_->disconnects.Increment(); }
void ApiMetrics::set_requests_in_flight(int n) { impl_->in_flight.Set(n); }

std::string ApiMetrics::render() const {
  std::vector<MetricFamily> families = impl_->registry.Collect();
  EngineFamilies engine(impl_->model);
  add_engine_families(engine, impl_->engine_stats());
  families.insert(families.end(), std::make_move_iterator(engine.families.begin()),
                  std::make_move_iterator(engine.families.end()));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace fathom::serve
