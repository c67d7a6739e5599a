// The engine's thread and its mailbox. One of the few files that own a thread.
#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core.h"
#include "engine/executor.h"

namespace fathom {

class Engine::Impl final : public StepObserver {
 public:
  Impl(const EngineOptions& options, EngineParts parts, const Clock& clock)
      : options_(options),
        vocab_size_(parts.vocab_size),
        clock_(clock),
        core_(options, std::move(parts), clock, this) {}

  Status start() {
    RETURN_IF_ERROR(core_.warm_up());
    stats_ = core_.stats();
    thread_ = std::thread([this] { thread_main(); });
    return ok_status();
  }

  ~Impl() override {
    if (!thread_.joinable()) return;
    // Waiting without end is all that is left to do here: the thread uses what would be destroyed.
    while (!drain(clock_.now())) {
    }
    {
      std::lock_guard lock(mu_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<GenerationListener> listener) {
    const Status valid = validate_request(request);
    std::lock_guard lock(mu_);
    Status refused = valid;
    if (refused.ok() && drain_deadline_) {
      refused = Status(StatusCode::kUnavailable, "the engine is shutting down");
    }
    if (refused.ok() && num_live_ >= int64_t{options_.max_running} + options_.max_queued) {
      refused = make_status(StatusCode::kResourceExhausted,
                            "{} requests are running or waiting, the limit is {} + {}", num_live_,
                            options_.max_running, options_.max_queued);
    }
    if (!refused.ok()) {
      ++num_refused_;
      return refused;
    }
    const RequestId id{++last_id_};
    ++num_live_;
    ++num_unheard_;
    arrivals_.push_back({id, std::move(request), std::move(listener), clock_.now()});
    wake_.notify_all();
    return id;
  }

  void cancel(RequestId id) {
    std::lock_guard lock(mu_);
    cancels_.push_back(id);
    wake_.notify_all();
    if (running_executor_ == nullptr || std::erase(running_requests_, id) == 0) return;
    // The step under way is stopped when nobody is left who wants it, and for others' sake when it would hold
    // the cancelled request's blocks for long: theirs is done again.
    if (running_requests_.empty()) {
      running_executor_->request_stop();
    } else if (stop_rule_.may_stop(clock_.now())) {
      stop_rule_.on_stop();
      running_executor_->request_stop();
    }
  }

  bool drain(TimePoint deadline) {
    std::unique_lock lock(mu_);
    drain_deadline_ = drain_deadline_ ? std::min(*drain_deadline_, deadline) : deadline;
    const TimePoint give_up = std::max(clock_.now(), *drain_deadline_) + kDrainGrace;
    wake_.notify_all();
    while (num_unheard_ > 0) {
      const TimePoint now = clock_.now();
      if (now >= give_up) return false;
      if (now >= *drain_deadline_ && running_executor_ != nullptr) running_executor_->request_stop();
      // Short, since the deadline is in the clock's time, which need not be the condition variable's.
      drained_.wait_for(lock, std::chrono::milliseconds(5));
    }
    return true;
  }

  EngineStats stats() const {
    std::lock_guard lock(mu_);
    EngineStats stats = stats_;
    if (!stats.failing) stats.last_progress = std::max(stats.last_progress, core_.step_progress());
    stats.requests_refused = num_refused_;
    stats.num_queued += static_cast<int32_t>(arrivals_.size());
    return stats;
  }
  const EngineOptions& options() const { return options_; }

  void on_step_begin(Executor& executor, std::span<const RequestId> requests, Duration expected) override {
    std::lock_guard lock(mu_);
    running_executor_ = &executor;
    stop_rule_.on_begin(clock_.now(), expected);
    running_requests_.assign(requests.begin(), requests.end());
    // Cancelled between the mailbox and here.
    for (const RequestId id : cancels_) std::erase(running_requests_, id);
    if (running_requests_.empty()) executor.request_stop();
  }
  void on_step_end() override {
    std::lock_guard lock(mu_);
    running_executor_ = nullptr;
    stop_rule_.on_end();
  }

 private:
  struct Arrival {
    RequestId id;
    GenerationRequest request;
    std::shared_ptr<GenerationListener> listener;
    TimePoint submitted;
  };

  // A request makes room for another before its listener hears the end, so that who waits for each answer is
  // never refused; the drain waits until the listener has heard.
  class CountingListener final : public GenerationListener {
   public:
    CountingListener(Impl& owner, std::shared_ptr<GenerationListener> listener)
        : owner_(owner), listener_(std::move(listener)) {}
    void on_prefill(int32_t hit_tokens) override { listener_->on_prefill(hit_tokens); }
    void on_tokens(std::span<const TokenEvent> tokens) override { listener_->on_tokens(tokens); }
    void on_finished(const FinishInfo& info) override {
      owner_.publish_stats();  // who hears of the end finds it counted
      {
        std::lock_guard lock(owner_.mu_);
        --owner_.num_live_;
      }
      listener_->on_finished(info);
      listener_.reset();
      std::lock_guard lock(owner_.mu_);
      --owner_.num_unheard_;
      owner_.drained_.notify_all();
    }

   private:
    Impl& owner_;
    std::shared_ptr<GenerationListener> listener_;
  };

  Status validate_request(const GenerationRequest& request) const {
    if (request.prompt.empty()) return invalid_argument("prompt: no tokens");
    const auto num_tokens = static_cast<int64_t>(request.prompt.size());
    if (num_tokens >= options_.max_context) {
      return invalid_argument("prompt: {} tokens leave no room for an answer within the context of {}",
                              num_tokens, options_.max_context);
    }
    if (request.max_new_tokens < 1)
      return invalid_argument("max_new_tokens: {} is below 1", request.max_new_tokens);
    if (request.stop_token_ids.size() > static_cast<size_t>(kStopTokenIdsMax)) {
      return invalid_argument("stop_token_ids: {} ids, at most {}", request.stop_token_ids.size(),
                              kStopTokenIdsMax);
    }
    for (const int32_t token : request.prompt) {
      if (token < 0 || token >= vocab_size_) {
        return invalid_argument("prompt: token {} is outside the vocabulary of {}", token, vocab_size_);
      }
    }
    return validate(request.sampling, vocab_size_);
  }

  void publish_stats() {
    const EngineStats stats = core_.stats();
    std::lock_guard lock(mu_);
    stats_ = stats;
  }

  void thread_main() {
    for (;;) {
      take_messages();
      const bool worked = core_.run_once();
      publish_stats();
      std::unique_lock lock(mu_);
      if (stop_ && core_.empty() && arrivals_.empty()) return;
      if (worked || !arrivals_.empty() || !cancels_.empty()) continue;
      // Nothing to step: wait for a message, but look at deadlines and leases in time.
      wake_.wait_for(lock, from_seconds(options_.sweep_seconds));
    }
  }

  void take_messages() {
    std::vector<Arrival> arrivals;
    std::vector<RequestId> cancels;
    bool out_of_time = false;
    {
      std::lock_guard lock(mu_);
      arrivals.swap(arrivals_);
      cancels.swap(cancels_);
      out_of_time = drain_deadline_ && clock_.now() >= *drain_deadline_;
    }
    for (Arrival& a : arrivals) {
      auto listener = std::make_shared<CountingListener>(*this, std::move(a.listener));
      core_.add(a.id, std::move(a.request), std::move(listener), a.submitted);
    }
    for (const RequestId id : cancels) core_.cancel(id);
    if (out_of_time) {
      core_.finish_all(FinishReason::kInsufficientResources,
                       Status(StatusCode::kUnavailable, "the engine is shutting down"));
    }
  }

  // Constant.
  const EngineOptions options_;
  const int32_t vocab_size_;
  const Clock& clock_;
  // The engine thread's.
  EngineCore core_;
  // Guarded by mu_.
  mutable std::mutex mu_;
  std::condition_variable wake_;
  std::condition_variable drained_;
  std::vector<Arrival> arrivals_;
  std::vector<RequestId> cancels_;
  uint64_t last_id_ = 0;
  int64_t num_live_ = 0;     // running or waiting
  int64_t num_unheard_ = 0;  // those whose listener has not heard the end yet
  int64_t num_refused_ = 0;
  std::optional<TimePoint> drain_deadline_;
  bool stop_ = false;
  Executor* running_executor_ = nullptr;
  std::vector<RequestId> running_requests_;  // of the step under way, less those cancelled meanwhile
  SharedStepStop stop_rule_;
  EngineStats stats_;

  std::thread thread_;
};

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options, EngineParts parts,
                                               const Clock& clock) {
  RETURN_IF_ERROR(options.validate());
  const int32_t needed = blocks_for_tokens(options.max_context);
  if (parts.storage->num_blocks() < needed) {
    return make_status(
        StatusCode::kResourceExhausted,
        "KV memory: {} blocks of {} bytes hold {} tokens, one request of max_context may need {}",
        parts.storage->num_blocks(), parts.storage->block_bytes(),
        int64_t{parts.storage->num_blocks()} * kBlockTokens, options.max_context);
  }
  auto impl = std::make_unique<Impl>(options, std::move(parts), clock);
  RETURN_IF_ERROR(impl->start());
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<RequestId> Engine::submit(GenerationRequest request, std::shared_ptr<GenerationListener> listener) {
  return impl_->submit(std::move(request), std::move(listener));
}
void Engine::cancel(RequestId id) { impl_->cancel(id); }
bool Engine::drain(TimePoint deadline) { return impl_->drain(deadline); }
EngineStats Engine::stats() const { return impl_->stats(); }
const EngineOptions& Engine::options() const { return impl_->options(); }

}  // namespace fathom
