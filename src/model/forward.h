// ForwardGroup: one EP group of one phase, its ranks stepping in lockstep with DP attention.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/numa.h"
#include "base/status.h"
#include "ep/exchange.h"
#include "ep/placement.h"
#include "kv/storage.h"
#include "model/batch.h"
#include "tensor/view.h"

namespace fathom {

class Model;
enum class ActFormat : uint8_t;

struct ForwardOptions {
  Phase phase = Phase::kDecode;
  int num_ranks = 1;          // EP degree; slots (experts + redundant) must divide by it
  int redundant_experts = 0;  // extra expert replicas
  // Absorbed attention in both phases, every (token, expert) result travels alone and the source adds in
  // expert order: tokens are bit-equal whatever the batch, chunks, ranks, replicas and threads. Slower.
  bool deterministic = false;
  int threads = 1;  // of the whole group: one rank takes all, several get max(1, threads / num_ranks) each
  std::optional<ActFormat>
      dispatch_format;  // what dispatch carries; unset: the expert GEMM's own input format
  // [num_ranks] where each rank's threads run and its buffers lie; empty: wherever the system likes.
  std::vector<RankCpus> rank_cpus;
  int64_t max_tokens_per_rank = 512;  // new tokens of one step
  int64_t max_logit_rows = 64;        // over all ranks
  int64_t max_context = 0;            // tokens of one sequence; 0: whatever the KV storage can hold
  // Memory for keys and values of prompts that are prefilled in several steps, of the whole group. Changes no
  // result. Steps that overlap do without.
  int64_t expanded_bytes = 0;
  // Steps of at least so many tokens per rank (on average) run as two micro-batches whose communication and
  // computation overlap; unset: none does. Changes no result. Worth it only where ranks wait for transfers:
  // not within a process.
  std::optional<int64_t> overlap_min_tokens;
  Duration peer_timeout = std::chrono::seconds(100);  // a rank silent for so long fails the step
  const Clock* clock = nullptr;                       // for stage times; null: they stay 0
};

// Stages of a layer, as in the published overlap tables, and what is around the layers. kDense is the MLP of
// a layer without experts; kCore, the heads' attention itself, is a part of kAttn1 and in its time too.
enum class Stage : uint8_t {
  kEmbed,
  kAttn0,
  kAttn1,
  kDispatch,
  kMlp,
  kShared,
  kCombine,
  kHead,
  kDense,
  kCore
};
inline constexpr int kNumStages = 10;

// Of the last step. Counts are over all ranks, times are of the slowest rank in each stage.
struct StepStats {
  int64_t tokens = 0;
  std::vector<int64_t> expert_tokens;  // [MoE layers, experts] tokens routed to each expert
  ExchangeStats exchange;
  Duration stage_time[kNumStages] = {};
  Duration exposed_communication = {};  // time the slowest rank waited for other ranks
  bool overlapped = false;              // ran as two micro-batches
};

class ForwardGroup {
 public:
  // kInvalidArgument naming the numbers when ranks, slots or limits do not fit. Model and storage outlive the
  // group.
  static Result<std::unique_ptr<ForwardGroup>> create(const Model& model, KvStorage& storage,
                                                      const ForwardOptions& options);
  virtual ~ForwardGroup() = default;

  virtual int num_ranks() const = 0;

  // Computes one step; blocking, one caller at a time. `ranks`: one batch per rank. `logits`: one row per
  // chunk that wants them, rank-major then in chunk order, F32 [rows, vocab], valid until the next step.
  // kInvalidArgument: a batch beyond the declared maxima, a token id outside the vocabulary, too few blocks.
  // kCancelled: request_stop was called meanwhile; KV rows of the step may be partly written.
  // Any other error: a rank failed, and the group with it; it answers kFailedPrecondition from then on.
  virtual Status step(std::span<const RankBatch> ranks, MatrixView<const float>* logits) = 0;

  // Makes the step in progress return kCancelled soon (all ranks stop after the same layer), or the next one
  // when none is: who asks cannot know whether it has begun. Thread-safe.
  virtual void request_stop() = 0;

  virtual const StepStats& last_stats() const = 0;

  // When a rank last finished a stage of a layer: a step that takes long still moves. Zero before the first
  // one, and without a clock. Thread-safe.
  virtual TimePoint last_progress() const = 0;

  // Which slots hold which experts; replacing a layer takes effect from the next step on. Thread-safe.
  virtual PlacementTable& placement() = 0;
};

}  // namespace fathom
