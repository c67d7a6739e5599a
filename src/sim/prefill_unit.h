// One simulated prefill unit: prompts wait in one queue; each forward fills its ranks by cost, up to a budget
// per rank, cuts the last prompt where the budget ends and goes on with it in the next forward on the same
// rank.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/cost_model.h"

namespace fathom::sim {

struct PrefillJob {
  int64_t arrival_ns = 0;
  int32_t input_tokens = 0;
  int32_t computed_from = 0;  // tokens already there: cached at first, then what earlier forwards did
  int32_t output_tokens = 0;
  int32_t cached_tokens = 0;
};

// a*T + b*A of the part of a prompt from `from` to `to`.
double prompt_cost_us(const LayerCost& cost, int32_t from, int32_t to);
// The most tokens from `from` on whose cost is within budget_us.
int32_t tokens_within(const LayerCost& cost, int32_t from, int32_t to, double budget_us);

struct ForwardLoad {
  double cost_us_max = 0, cost_us_sum = 0;
  int64_t tokens_sum = 0;
  int32_t tokens_max = 0;
  bool saturated = false;  // prompts were left waiting
};

class PrefillUnit {
 public:
  PrefillUnit(int num_ranks, const LayerCost& cost, double rank_budget_us);

  void add(const PrefillJob& job);
  // Packs the next forward; the unit must not be in one.
  ForwardLoad begin_forward();
  // Appends the prompts whose last token was computed in this forward.
  void end_forward(std::vector<PrefillJob>& finished);
  bool empty() const { return waiting() == 0 && carried_ == 0; }
  size_t waiting() const { return queue_.size() - head_; }
  double queued_cost_us() const { return queued_cost_us_; }
  // Arrival of the oldest prompt that waits for its first forward; INT64_MAX if none. A prompt of 100k tokens
  // that takes dozens of forwards is not waiting.
  int64_t oldest_arrival_ns() const;
  void lose_all(std::vector<PrefillJob>& lost);

 private:
  // Gives the job to the rank up to its budget; true if the job is complete.
  bool pack(int rank, PrefillJob& job);

  const int num_ranks_;
  const LayerCost cost_;
  const double budget_us_;
  std::vector<PrefillJob> queue_;
  size_t head_ = 0;
  double queued_cost_us_ = 0;
  std::vector<double> rank_cost_us_;
  std::vector<int32_t> rank_tokens_;
  std::vector<PrefillJob> cut_;  // per rank; computed_from < 0: none
  int carried_ = 0;
  std::vector<PrefillJob> running_;
};

}  // namespace fathom::sim
