// One simulated prefill unit: a queue per rank, whose forwards balance/prefill_cut.h shares between prompts,
// as it does for the servers' step plan (engine/plan). Memory is not modelled here: every prompt of a rank
// takes part from the start.
#pragma once

#include <cstdint>
#include <vector>

#include "balance/prefill_cut.h"

namespace fathom::sim {

struct PrefillJob {
  int64_t arrival_ns = 0;
  int32_t input_tokens = 0;
  int32_t computed_from = 0;  // tokens already there: cached at first, then what earlier forwards did
  int32_t output_tokens = 0;
  int32_t cached_tokens = 0;
  bool started = false;
  bool accepted = false;  // once in a queue, a request is not refused any more
  bool replay = false;    // of a request whose decode unit was lost
};

struct ForwardLoad {
  int64_t cost_ns_max = 0, cost_ns_sum = 0;  // per layer; a slow rank counts for more
  int64_t tokens_sum = 0, tokens_max = 0;
  int64_t tokens_slowest = 0;  // of the rank that costs the most
  int64_t num_prompts = 0;
  bool saturated = false;  // there was a fifth more work than one forward can take
};

class PrefillUnit {
 public:
  PrefillUnit(int num_ranks, const PrefillCost& cost, const PrefillBudget& budget);

  void add(int rank, const PrefillJob& job);
  // Cuts the next forward; the unit must not be in one.
  ForwardLoad begin_forward();
  // This rank takes so many times as long.
  void set_slowness(int rank, double factor) { slowness_[rank] = factor; }
  // Appends the prompts whose last token was computed in this forward.
  void end_forward(std::vector<PrefillJob>& finished);
  bool empty() const { return waiting_ == 0; }
  // Waiting, cut or in the running forward.
  int64_t num_prompts() const { return waiting_ + static_cast<int64_t>(running_.size()); }
  // Per rank, what is left after the running forward.
  const std::vector<RankLoad>& loads() const { return loads_; }
  // Arrival of the oldest prompt that waits for its first forward; INT64_MAX if none. A prompt of 100k tokens
  // that takes dozens of forwards is not waiting.
  int64_t oldest_arrival_ns() const;
  // Unit loss: everything starts again from what was cached.
  void lose_all(std::vector<PrefillJob>& lost);

 private:
  RankLoad cut_rank(int rank);
  int64_t work_for_one_forward() const;

  const PrefillCost cost_;
  const PrefillBudget budget_;
  std::vector<std::vector<PrefillJob>> queues_;  // per rank, oldest first
  std::vector<RankLoad> loads_;
  std::vector<double> slowness_;
  int64_t waiting_ = 0;  // prompts with tokens still to compute after the running forward
  std::vector<PrefillJob> running_;
  // Scratch.
  std::vector<PrefillQueued> queued_;
  std::vector<PrefillChunk> chunks_;
};

}  // namespace fathom::sim
