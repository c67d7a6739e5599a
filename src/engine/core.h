// The engine without its thread: owns every sequence, both engines and the cache, and does one round of work
// at a time. Single-threaded and deterministic given the executors and the clock, so tests drive it step by
// step.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/thread_team.h"
#include "engine/arbiter.h"
#include "engine/decode_engine.h"
#include "engine/executor.h"
#include "engine/handover_link.h"
#include "engine/options.h"
#include "engine/plan.h"
#include "engine/prefill_engine.h"
#include "engine/request.h"
#include "engine/sequence.h"
#include "engine/stats.h"
#include "kv/cache.h"

namespace fathom {

// Told when the core blocks in a step, so that another thread can stop it.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // `expected`: how long the step should last, by those before; zero: not known.
  virtual void on_step_begin(Executor& executor, std::span<const RequestId> requests, Duration expected) = 0;
  virtual void on_step_end() = 0;
};

class EngineCore {
 public:
  // The options are valid and the storage holds one max_context. `clock` and `observer` outlive the core.
  EngineCore(const EngineOptions& options, EngineParts parts, const Clock& clock,
             StepObserver* observer = nullptr);

  // Runs both engines on all ranks once or twice, on blocks of its own, so that nobody's first request pays
  // for first touches, and the arbiter knows what steps cost.
  Status warm_up();

  // A valid request, submitted at `submitted`.
  void add(RequestId id, GenerationRequest request, std::shared_ptr<GenerationListener> listener,
           TimePoint submitted);
  // Unknown and ended requests are ignored.
  void cancel(RequestId id);
  // Ends every request.
  void finish_all(FinishReason reason, const Status& status);

  // One round: time-outs, admission, and one step of one engine. False when there was nothing to step.
  bool run_once();

  bool empty() const { return sequences_.empty(); }
  // A current copy.
  EngineStats stats() const;
  // When a step last got on; the only call that another thread may make meanwhile.
  TimePoint step_progress() const;
  // Names the first broken rule of the KV books; with no request left, also that nobody holds a block.
  Status check_books() const;

 private:
  void sweep();
  void accept_offers();
  void admit();
  StepKind step();
  bool prefill_step();
  bool decode_step();
  // The step's shares, or none; retracts what the plan says until one can be made.
  std::vector<StepShare> plan_prefill_shares();
  std::vector<StepShare> plan_decode_shares();
  Status run_timed(StepKind kind, std::span<StepShare> shares);
  // Samples for the shares that have logits, and hands tokens to listeners.
  void sample_and_deliver(std::span<StepShare> shares);
  void deliver(Sequence& sequence, SampledToken sampled);

  PlanSnapshot snapshot(bool for_admission = false) const;
  std::vector<Sequence*> in_stage(SequenceStage stage) const;
  void retract(Sequence& sequence);
  void queue_again(Sequence& sequence);
  // Gives back all the sequence holds, wherever it stands.
  void let_go(Sequence& sequence);
  void report_prompt(Sequence& sequence);
  void finish(Sequence& sequence, FinishReason reason, const Status& status = ok_status());
  Status warm_up_engine(StepKind kind);

  const EngineOptions options_;
  const Clock& clock_;
  StepObserver* const observer_;
  EngineParts parts_;
  KvCache cache_;
  PrefillEngine prefill_;
  DecodeEngine decode_;
  HandoverLink link_;
  ThreadTeam sampling_team_;
  std::vector<SamplerWorkspace> sampling_work_;  // by thread of the team

  std::vector<std::unique_ptr<Sequence>> sequences_;  // oldest first
  GrowthEstimate growth_;
  StepCosts costs_;
  StepKind last_step_ = StepKind::kNone;
  bool prefill_failing_ = false;
  bool decode_failing_ = false;
  TimePoint next_sweep_{};
  EngineStats stats_;
};

}  // namespace fathom
