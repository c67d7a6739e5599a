#include "sim/prefill_unit.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace fathom::sim {

double prompt_cost_us(const LayerCost& cost, int32_t from, int32_t to) {
  const double tokens = to - from;
  return cost.rank_us(tokens, tokens * (from + tokens / 2));
}

int32_t tokens_within(const LayerCost& cost, int32_t from, int32_t to, double budget_us) {
  if (budget_us <= 0) return 0;
  // b/2 u^2 + (a + b*from) u = budget
  const double half_b = cost.b_us_per_pair / 2;
  const double linear = cost.a_us_per_token + cost.b_us_per_pair * from;
  const double tokens = half_b > 0
                            ? (std::sqrt(linear * linear + 4 * half_b * budget_us) - linear) / (2 * half_b)
                            : budget_us / linear;
  return static_cast<int32_t>(std::min<double>(tokens, to - from));
}

PrefillUnit::PrefillUnit(int num_ranks, const LayerCost& cost, double rank_budget_us)
    : num_ranks_(num_ranks),
      cost_(cost),
      budget_us_(rank_budget_us),
      rank_cost_us_(num_ranks),
      rank_tokens_(num_ranks),
      cut_(num_ranks) {
  CHECK(num_ranks > 0 && rank_budget_us > 0);
  for (PrefillJob& job : cut_) job.computed_from = -1;
}

void PrefillUnit::add(const PrefillJob& job) {
  CHECK(job.computed_from < job.input_tokens);
  queued_cost_us_ += prompt_cost_us(cost_, job.computed_from, job.input_tokens);
  queue_.push_back(job);
}

bool PrefillUnit::pack(int rank, PrefillJob& job) {
  const int32_t room =
      tokens_within(cost_, job.computed_from, job.input_tokens, budget_us_ - rank_cost_us_[rank]);
  const int32_t to = job.computed_from + room;
  const double cost = prompt_cost_us(cost_, job.computed_from, to);
  rank_cost_us_[rank] += cost;
  rank_tokens_[rank] += room;
  queued_cost_us_ -= cost;
  job.computed_from = to;
  return to == job.input_tokens;
}

ForwardLoad PrefillUnit::begin_forward() {
  CHECK(running_.empty());
  std::fill(rank_cost_us_.begin(), rank_cost_us_.end(), 0.0);
  std::fill(rank_tokens_.begin(), rank_tokens_.end(), 0);
  for (int r = 0; r < num_ranks_; ++r) {
    if (cut_[r].computed_from < 0) continue;
    if (pack(r, cut_[r])) {
      running_.push_back(cut_[r]);
      cut_[r].computed_from = -1;
      --carried_;
    } else {
      rank_cost_us_[r] = budget_us_;
    }
  }
  while (head_ < queue_.size()) {
    const auto least = std::min_element(rank_cost_us_.begin(), rank_cost_us_.end());
    if (*least >= budget_us_) break;
    const int rank = static_cast<int>(least - rank_cost_us_.begin());
    PrefillJob& job = queue_[head_++];
    if (pack(rank, job)) {
      running_.push_back(job);
    } else {
      cut_[rank] = job;
      ++carried_;
      rank_cost_us_[rank] = budget_us_;
    }
  }
  ForwardLoad load;
  load.saturated = head_ < queue_.size();
  if (head_ > 4096 && head_ * 2 > queue_.size()) {
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(head_));
    head_ = 0;
  }
  for (int r = 0; r < num_ranks_; ++r) {
    load.cost_us_max = std::max(load.cost_us_max, rank_cost_us_[r]);
    load.cost_us_sum += rank_cost_us_[r];
    load.tokens_max = std::max(load.tokens_max, rank_tokens_[r]);
    load.tokens_sum += rank_tokens_[r];
  }
  if (empty()) queued_cost_us_ = 0;  // drop what rounding left
  return load;
}

void PrefillUnit::end_forward(std::vector<PrefillJob>& finished) {
  finished.insert(finished.end(), running_.begin(), running_.end());
  running_.clear();
}

int64_t PrefillUnit::oldest_arrival_ns() const {
  return head_ < queue_.size() ? queue_[head_].arrival_ns : INT64_MAX;
}

void PrefillUnit::lose_all(std::vector<PrefillJob>& lost) {
  const auto give_back = [&](PrefillJob job) {
    job.computed_from = job.cached_tokens;
    lost.push_back(job);
  };
  for (PrefillJob& job : cut_) {
    if (job.computed_from >= 0) give_back(job);
    job.computed_from = -1;
  }
  for (const PrefillJob& job : running_) give_back(job);
  for (size_t i = head_; i < queue_.size(); ++i) give_back(queue_[i]);
  queue_.clear();
  running_.clear();
  head_ = 0;
  carried_ = 0;
  queued_cost_us_ = 0;
}

}  // namespace fathom::sim
