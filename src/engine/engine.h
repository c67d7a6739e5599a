// The engine as the rest of the process sees it: requests in, tokens out, on a thread of its own.
//
//   submit ─▶ queue ─▶ prefill engine ─▶ hand-over ─▶ decode engine ─▶ listener
//
// All state behind it is owned by one thread; submit, cancel and drain are messages to that thread.
#pragma once

#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "engine/options.h"
#include "engine/request.h"
#include "engine/stats.h"

namespace fathom {

class Model;
struct EngineParts;

// Thread-safe.
class Engine {
 public:
  // A step hears within a layer that it should stop.
  static constexpr Duration kDrainGrace = std::chrono::seconds(2);

  // Builds both engines on `model` (which must outlive the engine) and runs a warm-up through all of their
  // ranks before it returns, so that the first request pays for nothing. kInvalidArgument for bad options,
  // kResourceExhausted when kv_memory_bytes cannot hold one max_context.
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options, const Model& model,
                                                const Clock& clock);
  // The same on executors of the caller's (EngineParts); tests and the simulator's cross-checks use it.
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options, EngineParts parts,
                                                const Clock& clock);
  ~Engine();  // ends every request and waits for the step under way
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // kInvalidArgument: the request breaks a limit (an empty prompt, a prompt of max_context tokens or more,
  // ids
  //   outside the vocabulary, a sampling parameter out of range).
  // kResourceExhausted: the queue is full.   kUnavailable: draining.
  // After an error the listener is never called.
  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<GenerationListener> listener);

  // Any time, any number of times, also for requests that ended. on_finished(kCancelled) follows within a
  // step unless the request ends first; a step that would last long is stopped, see SharedStepStop.
  void cancel(RequestId id);

  // Refuses new requests from now on, lets the rest run until `deadline`, ends what is left then with
  // kInsufficientResources, and returns true when nothing is left. False: kDrainGrace later the
  // engine's thread is still in a step that neither ends nor hears that it should. The engine cannot be
  // destroyed then, since that waits for its thread.
  [[nodiscard]] bool drain(TimePoint deadline);

  EngineStats stats() const;
  const EngineOptions& options() const;

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom
