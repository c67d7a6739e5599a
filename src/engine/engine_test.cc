// The engine's thread and mailbox: limits, cancels, deadlines and draining while steps are under way.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <thread>

#include "engine/test_scripted.h"

namespace fathom {
namespace {

EngineOptions small_options() {
  return {.max_context = 1024, .max_running = 8, .max_queued = 8, .prefill_chunk_tokens = 128};
}

GenerationRequest make_request(uint64_t seed, int64_t prompt_tokens, int32_t max_new_tokens) {
  Rng rng(seed);
  GenerationRequest request{.prompt = random_tokens(rng, prompt_tokens), .max_new_tokens = max_new_tokens};
  request.sampling.seed = seed;
  return request;
}

std::unique_ptr<Engine> make_engine(const EngineOptions& options, const Clock& clock, int32_t num_blocks = 64,
                                    ScriptedOptions prefill = {}, ScriptedOptions decode = {}) {
  return Engine::create(options, scripted_parts(num_blocks, std::move(prefill), std::move(decode)), clock)
      .value();
}

void expect_all_blocks_back(const EngineStats& stats) {
  EXPECT_EQ(stats.kv_blocks_free + stats.kv_blocks_cached, stats.kv_blocks_total);
}

TEST(Engine, requests_that_break_a_limit_are_named) {
  SystemClock clock;
  const auto engine = make_engine(small_options(), clock);
  const auto listener = std::make_shared<RecordingListener>();
  const auto message = [&](auto change) {
    GenerationRequest request = make_request(1, 10, 5);
    change(request);
    return engine->submit(std::move(request), listener).status().to_string();
  };
  EXPECT_EQ(message([](auto& r) { r.prompt.clear(); }), "INVALID_ARGUMENT: prompt: no tokens");
  EXPECT_EQ(message([](auto& r) { r.prompt.assign(1024, 1); }),
            "INVALID_ARGUMENT: prompt: 1024 tokens leave no room for an answer within the context of 1024");
  EXPECT_EQ(message([](auto& r) { r.prompt[3] = kScriptedVocab; }),
            "INVALID_ARGUMENT: prompt: token 50 is outside the vocabulary of 50");
  EXPECT_EQ(message([](auto& r) { r.max_new_tokens = 0; }), "INVALID_ARGUMENT: max_new_tokens: 0 is below 1");
  EXPECT_EQ(message([](auto& r) { r.sampling.top_p = 2; }), "INVALID_ARGUMENT: top_p: 2 is outside (0, 1]");
  EXPECT_EQ(engine->stats().requests_refused, 5);
}

TEST(Engine, options_and_memory_are_checked_at_start) {
  SystemClock clock;
  EngineOptions options = small_options();
  options.prefill_chunk_tokens = 100;
  EXPECT_EQ(Engine::create(options, scripted_parts(64), clock).status().message(),
            "--prefill-chunk: 100 is not a multiple of 64");
  options = small_options();
  const Status status = Engine::create(options, scripted_parts(15), clock).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("hold 960 tokens, one request of max_context may need 1024"),
            std::string::npos)
      << status.message();
}

TEST(Engine, a_full_engine_refuses_and_recovers) {
  SystemClock clock;
  std::atomic<bool> hold{false};
  ScriptedOptions prefill;
  prefill.on_step = [&](std::span<const RankBatch>) {
    while (hold.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return ok_status();
  };
  const auto engine = make_engine(small_options(), clock, 64, prefill);
  hold.store(true);
  std::vector<std::shared_ptr<RecordingListener>> listeners;
  for (int i = 0; i < 16; ++i) {
    listeners.push_back(std::make_shared<RecordingListener>());
    ASSERT_TRUE(engine->submit(make_request(i, 20, 3), listeners.back()).ok());
  }
  const auto refused = std::make_shared<RecordingListener>();
  EXPECT_EQ(engine->submit(make_request(99, 20, 3), refused).status().code(), StatusCode::kResourceExhausted);
  hold.store(false);
  for (const auto& listener : listeners) listener->wait();
  EXPECT_FALSE(refused->finished);
  while (engine->stats().num_decoding > 0) std::this_thread::yield();
  EXPECT_TRUE(engine->submit(make_request(99, 20, 3), refused).ok());
  refused->wait();
}

// Asks for the next answer while it hears that the last one has ended.
class AskingListener final : public GenerationListener {
 public:
  explicit AskingListener(std::function<void()> ask) : ask_(std::move(ask)) {}
  void on_tokens(std::span<const TokenEvent>) override {}
  void on_finished(const FinishInfo&) override { std::thread(ask_).join(); }

 private:
  const std::function<void()> ask_;
};

TEST(Engine, who_waits_for_each_answer_is_never_refused) {
  SystemClock clock;
  EngineOptions options = small_options();
  options.max_running = 1;
  options.max_queued = 0;
  const auto engine = make_engine(options, clock);
  const auto last = std::make_shared<RecordingListener>();
  std::promise<Status> asked;
  const auto ask = [&] { asked.set_value(engine->submit(make_request(2, 10, 3), last).status()); };
  ASSERT_TRUE(engine->submit(make_request(1, 10, 3), std::make_shared<AskingListener>(ask)).ok());
  const Status status = asked.get_future().get();
  ASSERT_TRUE(status.ok()) << status.to_string();
  last->wait();
}

// The step in progress belongs to one request; cancelling it must not wait for the step's own end.
TEST(Engine, a_cancel_stops_a_long_prefill) {
  SystemClock clock;
  Executor* executor = nullptr;
  std::atomic<bool> in_step{false};
  std::atomic<bool> armed{false};
  ScriptedOptions prefill;
  prefill.on_step = [&](std::span<const RankBatch>) -> Status {
    if (!armed.load()) return ok_status();
    in_step.store(true);
    while (!static_cast<ScriptedExecutor*>(executor)->stop_requested()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    armed.store(false);
    return Status(StatusCode::kCancelled, "stopped");
  };
  EngineParts parts = scripted_parts(64, prefill);
  executor = parts.prefill.get();
  const auto engine = Engine::create(small_options(), std::move(parts), clock).value();
  armed.store(true);
  const auto listener = std::make_shared<RecordingListener>();
  const RequestId id = engine->submit(make_request(1, 900, 10), listener).value();
  while (!in_step.load()) std::this_thread::yield();
  engine->cancel(id);
  listener->wait();
  EXPECT_EQ(listener->info.reason, FinishReason::kCancelled);
  EXPECT_TRUE(listener->tokens.empty());
  const auto next = std::make_shared<RecordingListener>();
  ASSERT_TRUE(engine->submit(make_request(2, 10, 2), next).ok());
  next->wait();
  expect_all_blocks_back(engine->stats());
}

// Two requests share a prefill step that would last for ever; one is cancelled. It ends at once, the other's
// part is done again and comes out right.
TEST(Engine, a_cancel_stops_a_long_step_that_others_share) {
  ManualClock clock;
  Executor* executor = nullptr;
  std::atomic<bool> first_held{false}, shared_endless{false}, in_first{false}, in_shared{false};
  ScriptedOptions prefill;
  prefill.on_step = [&](std::span<const RankBatch> ranks) -> Status {
    const bool shared = ranks[0].chunks.size() > 1;
    if (!shared) {
      if (!first_held.load()) return ok_status();  // the warm-up, and what follows
      in_first.store(true);
      while (first_held.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      clock.advance(std::chrono::seconds(10));  // so the next one is expected to last long
      return ok_status();
    }
    if (!shared_endless.exchange(false)) return ok_status();
    in_shared.store(true);
    while (!static_cast<ScriptedExecutor*>(executor)->stop_requested()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return Status(StatusCode::kCancelled, "stopped");
  };
  EngineParts parts = scripted_parts(64, prefill);
  executor = parts.prefill.get();
  const auto engine = Engine::create(small_options(), std::move(parts), clock).value();
  first_held.store(true);
  shared_endless.store(true);
  std::vector<std::shared_ptr<RecordingListener>> listeners;
  std::vector<RequestId> ids;
  const auto submit = [&](uint64_t seed) {
    listeners.push_back(std::make_shared<RecordingListener>());
    ids.push_back(engine->submit(make_request(seed, 30, 4), listeners.back()).value());
  };
  submit(1);
  while (!in_first.load()) std::this_thread::yield();
  submit(2);
  submit(3);
  first_held.store(false);
  while (!in_shared.load()) std::this_thread::yield();
  engine->cancel(ids[1]);
  for (const auto& listener : listeners) listener->wait();
  EXPECT_EQ(listeners[1]->info.reason, FinishReason::kCancelled);
  for (const size_t other : {0, 2}) {
    EXPECT_EQ(listeners[other]->info.reason, FinishReason::kLength);
    EXPECT_EQ(listeners[other]->tokens.size(), 4u);
  }
  expect_all_blocks_back(engine->stats());
}

// Is cancelled by another thread after it has left the queue and before its first step.
class CancelledListener final : public GenerationListener {
 public:
  explicit CancelledListener(std::function<void()> cancel) : cancel_(std::move(cancel)) {}
  void on_prefill(int32_t) override { std::thread(cancel_).join(); }
  void on_tokens(std::span<const TokenEvent>) override {}
  void on_finished(const FinishInfo& info) override { finished.set_value(info.reason); }

  std::promise<FinishReason> finished;

 private:
  const std::function<void()> cancel_;
};

TEST(Engine, a_cancel_just_before_a_step_stops_it) {
  SystemClock clock;
  Executor* executor = nullptr;
  std::atomic<bool> stopped{false};
  std::atomic<bool> watching{false};
  ScriptedOptions prefill;
  prefill.on_step = [&](std::span<const RankBatch>) -> Status {
    if (!watching.load()) return ok_status();
    stopped.store(static_cast<ScriptedExecutor*>(executor)->stop_requested());
    return Status(StatusCode::kCancelled, "stopped");
  };
  EngineParts parts = scripted_parts(64, prefill);
  executor = parts.prefill.get();
  const auto engine = Engine::create(small_options(), std::move(parts), clock).value();
  watching.store(true);
  std::promise<RequestId> id;
  const auto listener = std::make_shared<CancelledListener>([&] { engine->cancel(id.get_future().get()); });
  id.set_value(engine->submit(make_request(1, 900, 10), listener).value());
  EXPECT_EQ(listener->finished.get_future().get(), FinishReason::kCancelled);
  EXPECT_TRUE(stopped.load());
  expect_all_blocks_back(engine->stats());
}

TEST(Engine, drain_finishes_what_fits_and_ends_the_rest_at_its_deadline) {
  SystemClock clock;
  ScriptedOptions decode;
  decode.on_step = [](std::span<const RankBatch>) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return ok_status();
  };
  const auto engine = make_engine(small_options(), clock, 64, {}, decode);
  const auto quick = std::make_shared<RecordingListener>();
  const auto endless = std::make_shared<RecordingListener>();
  ASSERT_TRUE(engine->submit(make_request(1, 10, 3), quick).ok());
  GenerationRequest request = make_request(2, 10, 1000);
  ASSERT_TRUE(engine->submit(request, endless).ok());
  EXPECT_TRUE(engine->drain(clock.now() + std::chrono::milliseconds(100)));
  EXPECT_TRUE(quick->finished && endless->finished);
  EXPECT_EQ(quick->info.reason, FinishReason::kLength);
  EXPECT_EQ(endless->info.reason, FinishReason::kInsufficientResources);
  EXPECT_GT(endless->tokens.size(), 3u);
  EXPECT_EQ(engine->submit(request, endless).status().code(), StatusCode::kUnavailable);
  expect_all_blocks_back(engine->stats());
}

// A decode step that neither ends nor listens until release().
class HeldStep {
 public:
  std::function<Status(std::span<const RankBatch>)> on_step() {
    return [this](std::span<const RankBatch>) {
      inside_.store(hold_.load());
      while (hold_.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return ok_status();
    };
  }
  // Submits a request and returns when a step of it holds the engine's thread.
  std::shared_ptr<RecordingListener> begin(Engine& engine) {
    hold_.store(true);
    auto listener = std::make_shared<RecordingListener>();
    EXPECT_TRUE(engine.submit(make_request(1, 10, 5), listener).ok());
    while (!inside_.load()) std::this_thread::yield();
    return listener;
  }
  void release() { hold_.store(false); }

 private:
  std::atomic<bool> hold_{false}, inside_{false};
};

// Time passes on a thread of its own.
TEST(Engine, drain_gives_up_on_a_step_that_does_not_end) {
  ManualClock clock;
  HeldStep step;
  ScriptedOptions decode;
  decode.on_step = step.on_step();
  const auto engine = make_engine(small_options(), clock, 64, {}, decode);
  const auto held = step.begin(*engine);
  std::atomic<bool> returned{false};
  std::thread time([&] {
    for (int i = 0; i < 1000 && !returned.load(); ++i) {
      clock.advance(std::chrono::milliseconds(100));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const TimePoint deadline = clock.now() + std::chrono::seconds(20);
  EXPECT_FALSE(engine->drain(deadline));
  returned.store(true);
  time.join();
  EXPECT_GE(clock.now(), deadline + Engine::kDrainGrace);
  EXPECT_FALSE(held->finished);
  step.release();
  held->wait();
  EXPECT_EQ(held->info.reason, FinishReason::kInsufficientResources);
  EXPECT_TRUE(engine->drain(clock.now()));
}

// Time passes only when the test says so, and only while a decode step holds the engine's thread: one request
// runs, the other waits for its place.
TEST(Engine, a_deadline_that_passes_during_a_step_ends_who_runs_and_who_waits) {
  ManualClock clock;
  std::atomic<bool> hold{false};
  std::atomic<bool> in_step{false};
  ScriptedOptions decode;
  decode.on_step = [&](std::span<const RankBatch>) {
    in_step.store(hold.load());
    while (hold.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return ok_status();
  };
  EngineOptions options = small_options();
  options.handover_lease_seconds = 100;
  options.decode_max_per_rank = 1;
  const auto engine = make_engine(options, clock, 64, {}, decode);
  hold.store(true);
  GenerationRequest request = make_request(1, 100, 900);
  const auto running = std::make_shared<RecordingListener>();
  const auto waiting = std::make_shared<RecordingListener>();
  request.deadline = clock.now() + std::chrono::seconds(20);
  ASSERT_TRUE(engine->submit(request, running).ok());
  while (!in_step.load()) std::this_thread::yield();
  request.deadline = clock.now() + std::chrono::seconds(10);
  ASSERT_TRUE(engine->submit(request, waiting).ok());
  clock.advance(std::chrono::seconds(11));
  hold.store(false);
  waiting->wait();
  EXPECT_EQ(waiting->info.reason, FinishReason::kDeadline);
  EXPECT_EQ(waiting->info.status.code(), StatusCode::kDeadlineExceeded);
  in_step.store(false);
  hold.store(true);
  while (!in_step.load()) std::this_thread::yield();
  EXPECT_FALSE(running->finished) << "its own deadline is later";
  clock.advance(std::chrono::seconds(11));
  hold.store(false);
  running->wait();
  EXPECT_EQ(running->info.reason, FinishReason::kDeadline);
  EXPECT_GT(running->tokens.size(), 0u) << "what it had is kept";
  EXPECT_LT(running->tokens.size(), 900u);
  expect_all_blocks_back(engine->stats());
}

// Many threads submit and cancel; every request ends once, answers are right, nothing leaks, and the engine
// still serves afterwards.
TEST(Engine, storms_of_cancels_leak_nothing) {
  SystemClock clock;
  EngineOptions options = small_options();
  options.max_queued = 1000;
  options.prefill_ep = 2;
  options.decode_ep = 3;
  const auto engine = make_engine(options, clock, 24, {.num_ranks = 2}, {.num_ranks = 3});
  constexpr int kThreads = 4;
  constexpr int kPerThread = 40;
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t) {
    clients.emplace_back([&, t] {
      Rng rng(static_cast<uint64_t>(t) + 1);
      for (int i = 0; i < kPerThread; ++i) {
        const GenerationRequest request =
            make_request(rng.next_u64(), 1 + static_cast<int64_t>(rng.next_below(200)),
                         1 + static_cast<int32_t>(rng.next_below(100)));
        const auto listener = std::make_shared<RecordingListener>();
        const RequestId id = engine->submit(request, listener).value();
        const bool cancels = rng.next_below(2) == 0;
        if (cancels) {
          if (rng.next_below(2) == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(rng.next_below(3000)));
          engine->cancel(id);
        }
        listener->wait();
        const std::vector<int32_t> want = scripted_answer(request, {});
        ASSERT_LE(listener->tokens.size(), want.size());
        EXPECT_TRUE(std::equal(listener->tokens.begin(), listener->tokens.end(), want.begin()));
        if (!cancels) {
          EXPECT_EQ(listener->tokens.size(), want.size());
        }
        engine->cancel(id);  // long ended
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(engine->drain(clock.now() + std::chrono::seconds(10)));
  EngineStats stats = engine->stats();
  expect_all_blocks_back(stats);
  EXPECT_EQ(stats.requests_submitted, kThreads * kPerThread);
  int64_t num_finished = 0;
  for (const int64_t n : stats.requests_finished) num_finished += n;
  EXPECT_EQ(num_finished, kThreads * kPerThread);
}

// A step of a large model may take longer than anyone would wait for an engine that hangs.
TEST(Engine, a_long_step_shows_its_progress) {
  ManualClock clock;
  HeldStep step;
  std::atomic<TimePoint> progress{};
  ScriptedOptions decode;
  decode.progress = &progress;
  decode.on_step = step.on_step();
  const auto engine = make_engine(small_options(), clock, 64, {}, decode);
  const auto listener = step.begin(*engine);
  const TimePoint step_begin = clock.now();
  clock.advance(std::chrono::seconds(100));
  EXPECT_LE(engine->stats().last_progress, step_begin);
  progress.store(clock.now());
  EXPECT_EQ(engine->stats().last_progress, clock.now());
  clock.advance(std::chrono::seconds(3));
  EXPECT_EQ(engine->stats().last_progress, clock.now() - std::chrono::seconds(3)) << "and its lack of it";
  step.release();
  listener->wait();
}

TEST(Engine, an_idle_engine_makes_progress) {
  SystemClock clock;
  EngineOptions options = small_options();
  options.sweep_seconds = 0.005;
  const auto engine = make_engine(options, clock);
  const TimePoint before = engine->stats().last_progress;
  for (int i = 0; i < 2000 && engine->stats().last_progress == before; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GT(engine->stats().last_progress, before);
}

}  // namespace
}  // namespace fathom
