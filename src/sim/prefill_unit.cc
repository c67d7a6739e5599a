// Count-only prefill: queues per rank, their forwards shared between prompts by the servers' own rule.
#include "sim/prefill_unit.h"

#include <algorithm>

#include "base/check.h"

namespace fathom::sim {

PrefillUnit::PrefillUnit(int num_ranks, const PrefillCost& cost, const PrefillBudget& budget)
    : cost_(cost), budget_(budget), queues_(num_ranks), loads_(num_ranks), slowness_(num_ranks, 1.0) {
  CHECK(num_ranks > 0);
}

void PrefillUnit::add(int rank, const PrefillJob& job) {
  CHECK(job.computed_from < job.input_tokens);
  const int64_t left = job.input_tokens - job.computed_from;
  queues_[rank].push_back(job);
  loads_[rank] += {1, left, cost_.cost_ns(left, job.computed_from)};
  ++waiting_;
}

RankLoad PrefillUnit::cut_rank(int rank) {
  std::vector<PrefillJob>& queue = queues_[rank];
  queued_.clear();
  for (const PrefillJob& job : queue)
    queued_.push_back({job.computed_from, job.input_tokens - job.computed_from});
  const RankLoad used = cut_forward(queued_, cost_, budget_, chunks_);
  for (const PrefillChunk& chunk : chunks_) {
    PrefillJob& job = queue[static_cast<size_t>(chunk.prompt)];
    const int64_t left = job.input_tokens - job.computed_from;
    loads_[rank] -= {1, left, cost_.cost_ns(left, job.computed_from)};
    job.computed_from += static_cast<int32_t>(chunk.tokens);
    job.started = true;
    if (job.computed_from == job.input_tokens) {
      running_.push_back(job);
      --waiting_;
    } else {
      const int64_t still = job.input_tokens - job.computed_from;
      loads_[rank] += {1, still, cost_.cost_ns(still, job.computed_from)};
    }
  }
  std::erase_if(queue, [](const PrefillJob& job) { return job.computed_from == job.input_tokens; });
  return used;
}

// A prompt runs on one rank, so a long one brings no more than one budget.
int64_t PrefillUnit::work_for_one_forward() const {
  int64_t work_ns = 0;
  for (const std::vector<PrefillJob>& queue : queues_) {
    for (const PrefillJob& job : queue) {
      work_ns +=
          std::min(cost_.cost_ns(job.input_tokens - job.computed_from, job.computed_from), budget_.cost_ns);
    }
  }
  return work_ns;
}

ForwardLoad PrefillUnit::begin_forward() {
  CHECK(running_.empty());
  ForwardLoad load;
  const auto num_ranks = static_cast<int>(queues_.size());
  int64_t queued_ns = 0;
  for (const RankLoad& rank : loads_) queued_ns += rank.cost;
  const int64_t enough_ns = budget_.cost_ns * num_ranks * 6 / 5;
  load.saturated = queued_ns >= enough_ns && work_for_one_forward() >= enough_ns;
  for (int r = 0; r < num_ranks; ++r) {
    const RankLoad used = cut_rank(r);
    const auto cost_ns = static_cast<int64_t>(static_cast<double>(used.cost) * slowness_[r]);
    if (cost_ns > load.cost_ns_max) load.cost_ns_max = cost_ns, load.tokens_slowest = used.tokens;
    load.cost_ns_sum += cost_ns;
    load.tokens_max = std::max(load.tokens_max, used.tokens);
    load.tokens_sum += used.tokens;
    load.num_prompts += used.requests;
  }
  return load;
}

void PrefillUnit::end_forward(std::vector<PrefillJob>& finished) {
  finished.insert(finished.end(), running_.begin(), running_.end());
  running_.clear();
}

int64_t PrefillUnit::oldest_arrival_ns() const {
  int64_t oldest = INT64_MAX;
  for (const std::vector<PrefillJob>& queue : queues_) {
    const auto waits =
        std::find_if(queue.begin(), queue.end(), [](const PrefillJob& job) { return !job.started; });
    if (waits != queue.end()) oldest = std::min(oldest, waits->arrival_ns);
  }
  return oldest;
}

void PrefillUnit::lose_all(std::vector<PrefillJob>& lost) {
  const auto give_back = [&](PrefillJob job) {
    job.computed_from = job.cached_tokens;
    job.started = false;
    lost.push_back(job);
  };
  for (const PrefillJob& job : running_) give_back(job);
  running_.clear();
  for (std::vector<PrefillJob>& queue : queues_) {
    for (const PrefillJob& job : queue) give_back(job);
    queue.clear();
  }
  std::fill(loads_.begin(), loads_.end(), RankLoad{});
  waiting_ = 0;
}

}  // namespace fathom::sim
