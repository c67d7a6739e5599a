// A decode unit small enough for a unit test: 144 ranks behind one barrier, the published day's lengths, and
// a step time linear in the largest KV, the largest count and the mean count (fitted by hand to the fleet
// model's stages). It exists to order policies and to find steady states; figures worth quoting come from the
// simulator.
#pragma once

#include <cmath>
#include <vector>

#include "balance/decode_balancer.h"
#include "balance/testing.h"

namespace fathom {

struct DecodeUnitRun {
  double tokens_per_s_per_user = 0;  // token-weighted
  double kv_max_over_mean = 0;
  double count_max_over_mean = 0;
  double live_per_rank = 0;
  int64_t num_overflows = 0;  // rank-steps above the KV room
  int64_t num_placed = 0;
  int64_t num_queued_max = 0;
  double kv_fill = 0;  // mean KV over room
};

struct DecodeUnitConfig {
  int num_ranks = 144;
  double arrivals_per_s = 2579.0 / 9;
  double input_mean_tokens = 3619, output_mean_tokens = 1000;
  double phi = 1.04;
  // Of a micro-batch, for each request of the busiest rank: its projections; on top of that, where ranks wait
  // for their own tokens' transfers and not for the mean of all, the experts' traffic.
  double us_per_request = 0.45;
  int num_steps = 8000;
  int warmup_steps = 4000;
  int report_delay_steps = 1;
  uint64_t seed = 1;
};

class DecodeUnitModel {
 public:
  DecodeUnitModel(const DecodeUnitConfig& config, const DecodeBalancerOptions& options)
      : config_(config), capacity_(options.admission.capacity_tokens), rng_(config.seed), balancer_(options) {
    balancer_.add_unit(config.num_ranks);
    loads_.resize(config.num_ranks);
    history_.resize(config.report_delay_steps + 1);
    wheel_.resize(kWheel);
  }

  DecodeUnitRun run() {
    DecodeUnitRun out;
    double tokens_sum = 0, weighted_speed = 0, kv_ratio = 0, count_ratio = 0, live = 0, fill = 0;
    int64_t measured = 0;
    double due = 0;
    for (int step = 0; step < config_.num_steps; ++step) {
      report(step);
      const double step_s = step_seconds();
      due += config_.arrivals_per_s * step_s;
      const double chance = due - std::floor(due);
      int64_t arrivals = static_cast<int64_t>(due) + (rng_.next_double() < chance);
      due = 0;
      while (arrivals-- > 0) queue_.push_back(draw());
      size_t taken = 0;
      while (taken < queue_.size() && admit(queue_[taken], step)) ++taken;
      queue_.erase(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(taken));
      advance(step);
      if (step < config_.warmup_steps) continue;
      ++measured;
      out.num_placed += static_cast<int64_t>(taken);
      out.num_queued_max = std::max<int64_t>(out.num_queued_max, static_cast<int64_t>(queue_.size()));
      RankLoad max, sum;
      for (const RankLoad& load : loads_) {
        max.requests = std::max(max.requests, load.requests), max.tokens = std::max(max.tokens, load.tokens);
        sum += load;
        out.num_overflows += capacity_ > 0 && load.tokens > capacity_;
      }
      const double n = config_.num_ranks;
      kv_ratio += static_cast<double>(max.tokens) * n / static_cast<double>(std::max<int64_t>(1, sum.tokens));
      count_ratio +=
          static_cast<double>(max.requests) * n / static_cast<double>(std::max<int64_t>(1, sum.requests));
      live += static_cast<double>(sum.requests) / n;
      if (capacity_ > 0) fill += static_cast<double>(sum.tokens) / n / static_cast<double>(capacity_);
      tokens_sum += static_cast<double>(sum.requests);
      weighted_speed += static_cast<double>(sum.requests) * kTokensPerStep / step_seconds();
    }
    out.tokens_per_s_per_user = weighted_speed / tokens_sum;
    out.kv_max_over_mean = kv_ratio / static_cast<double>(measured);
    out.count_max_over_mean = count_ratio / static_cast<double>(measured);
    out.live_per_rank = live / static_cast<double>(measured);
    out.kv_fill = fill / static_cast<double>(measured);
    return out;
  }

 private:
  static constexpr double kTokensPerStep = 1.85;
  static constexpr int kWheel = 1 << 16;
  struct Request {
    int64_t prompt, output;
  };
  struct Departure {
    int32_t rank;
    int64_t kv;
  };

  double lognormal(double mean, double cv2) {
    const double variance = std::log(1 + cv2);
    return std::exp(std::log(mean) - variance / 2 + std::sqrt(variance) * normal());
  }
  // Box-Muller: the tails matter here.
  double normal() {
    const double u = 1 - rng_.next_double();
    return std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * rng_.next_double());
  }
  Request draw() {
    const double prompt = std::min(131072.0, std::max(16.0, lognormal(config_.input_mean_tokens, 1.5)));
    return {static_cast<int64_t>(prompt),
            std::max<int64_t>(1, static_cast<int64_t>(lognormal(config_.output_mean_tokens, 1.74)))};
  }

  int64_t growth() const { return static_cast<int64_t>(config_.output_mean_tokens); }

  double step_seconds() const {
    int64_t max_count = 0, max_kv = 0, sum_count = 0;
    for (const RankLoad& load : loads_) {
      max_count = std::max(max_count, load.requests), max_kv = std::max(max_kv, load.tokens);
      sum_count += load.requests;
    }
    const double mean_count = static_cast<double>(sum_count) / config_.num_ranks;
    const double micro_batch_us = 295 + config_.us_per_request * static_cast<double>(max_count) +
                                  0.9604e-3 * static_cast<double>(max_kv) / 2 + 0.68 * mean_count;
    return config_.phi * (61.9 * 2 * micro_batch_us + 6010) * 1e-6;
  }

  bool admit(const Request& request, int step) {
    const auto placed = balancer_.place({request.prompt, growth()});
    if (!placed) return false;
    last_dispatch_ = placed->dispatch;
    loads_[placed->rank.rank] += {1, request.prompt, growth()};
    const int64_t steps =
        static_cast<int64_t>(std::ceil(static_cast<double>(request.output) / kTokensPerStep)) + 1;
    const int64_t at = std::min<int64_t>(steps, kWheel - 1);
    wheel_[(step + at) % kWheel].push_back(
        {placed->rank.rank, request.prompt + static_cast<int64_t>(kTokensPerStep * static_cast<double>(at))});
    return true;
  }

  // One token-step: everybody grows, then the finished leave with exactly what they had grown to.
  void advance(int step) {
    growth_ += kTokensPerStep;
    const int64_t whole = static_cast<int64_t>(growth_);
    growth_ -= static_cast<double>(whole);
    for (RankLoad& load : loads_) load.tokens += whole * load.requests;
    auto& leaving = wheel_[(step + 1) % kWheel];
    for (const Departure& d : leaving) loads_[d.rank] -= {1, d.kv, growth()};
    leaving.clear();
  }

  void report(int step) {
    history_[step % history_.size()] = {loads_, last_dispatch_};
    if (step < config_.report_delay_steps) return;
    const auto& [loads, acked] = history_[(step - config_.report_delay_steps) % history_.size()];
    balancer_.report(
        {.unit = 0, .epoch = 1, .sequence = static_cast<uint64_t>(step) + 1, .acked = acked, .loads = loads});
  }

  DecodeUnitConfig config_;
  int64_t capacity_;
  Rng rng_;
  DecodeBalancer balancer_;
  std::vector<RankLoad> loads_;
  std::vector<std::pair<std::vector<RankLoad>, uint64_t>> history_;
  std::vector<std::vector<Departure>> wheel_;
  std::vector<Request> queue_;
  double growth_ = 0;
  uint64_t last_dispatch_ = 0;
};

}  // namespace fathom
