// What a block-exact replay measures: the same cells over time as the published day's, so that the same
// charts show both.
#include <algorithm>

#include "sim/block_fleet_impl.h"

namespace fathom::sim {
namespace {

constexpr double kBalancedRequestsMin = 4;  // per rank; ratios of emptier units say little

uint64_t ms_between(int64_t from_ns, int64_t to_ns) {
  return static_cast<uint64_t>((to_ns - from_ns) / 1'000'000);
}

}  // namespace

void BlockFleet::note_waiting(Request& request) {
  if (request.waits_from_ns >= 0) return;
  request.waits_from_ns = now_;
  ++cell().admission_waits;
}

void BlockFleet::note_placed(Request& request) {
  if (request.waits_from_ns < 0) return;
  cell().admission_wait_s += static_cast<double>(now_ - request.waits_from_ns) / 1e9;
  request.waits_from_ns = -1;
}

void BlockFleet::note_computing(Request& request) {
  if (request.computed_from_ns >= 0) return;
  request.computed_from_ns = now_;
  cell().queue_ms.add(ms_between(request.arrival_ns, now_));
}

void BlockFleet::note_prompt(const Request& request, const BlockSequence& sequence) {
  if (sequence.epoch > 0) return;  // replays find their own blocks again
  result_.cached_tokens += sequence.num_cached;
  result_.read_tokens += sequence.num_read;
  result_.expected_cached_tokens += request.expected_cached_tokens;
  FleetCell& c = cell();
  ++c.requests;
  c.input_tokens += request.prompt_tokens;
  c.cached_tokens += sequence.num_cached;
}

void BlockFleet::note_token(Request& request) {
  if (request.sent_tokens > 0) {
    result_.gap_ms.add(ms_between(request.last_token_ns, now_));
    return;
  }
  const uint64_t ms = ms_between(request.arrival_ns, now_);
  result_.ttft_ms.add(ms);
  cell().ttft_ms.add(ms);
  request.ttft_met = static_cast<double>(now_ - request.arrival_ns) <= options_.slo_ttft_s * 1e9;
}

void BlockFleet::note_end(const Request& request) {
  last_end_ns_ = now_;
  FleetCell& c = cell();
  if (request.phase == Phase::kExpired) {
    ++result_.expired;
    ++c.expired_requests;
    c.expired_without_token += request.sent_tokens == 0;
    return;
  }
  ++result_.finished;
  ++c.finished_requests;
  c.finished_output_tokens += request.output_tokens;
  bool fast = true;
  if (request.decoded_from_ns >= 0) {
    const int64_t took_ns = std::max<int64_t>(1, now_ - kToApiNs - request.decoded_from_ns);
    const double tokens_per_s = (request.output_tokens - 1) * 1e9 / static_cast<double>(took_ns);
    c.speed_milli.add(static_cast<uint64_t>(tokens_per_s * 1e3));
    fast = tokens_per_s >= options_.slo_tokens_per_s_per_user;
  }
  if (!request.ttft_met || !fast) return;
  ++c.good_requests;
  c.good_output_tokens += request.output_tokens;
}

void BlockFleet::note_forward(const Unit& unit, const ForwardWork& work, double us) {
  FleetCell& c = cell();
  const double exposed_us = sim_cost_.exposed_us(static_cast<double>(work.tokens_slowest));
  c.add_forward(us / 1e6, work.tokens_sum, exposed_us, sim_cost_.c0_us + work.us_max + exposed_us);
  if (work.num_chunks < unit.ranks.size()) return;
  const auto ranks = static_cast<double>(unit.ranks.size());
  const double tokens_ratio =
      static_cast<double>(work.tokens_max) * ranks / static_cast<double>(work.tokens_sum);
  ++busy_forwards_;
  prefill_cost_ratio_sum_ += work.us_max * ranks / work.us_sum;
  prefill_tokens_ratio_sum_ += tokens_ratio;
  ++c.saturated_forwards;
  c.efficiency_sum += work.us_sum / ranks / work.us_max;
  c.token_ratio_sum += tokens_ratio;
}

void BlockFleet::note_step(const Unit& unit, const StepWork& work, const SteadyLayer& layer, double us) {
  const auto ranks = static_cast<double>(unit.ranks.size());
  FleetCell& c = cell();
  ++c.steps;
  c.rank_steps += static_cast<int64_t>(unit.ranks.size());
  c.step_seconds += us / 1e6;
  c.live_x_seconds += work.load.requests_mean * ranks * us / 1e6;
  c.kv_milli_max = std::max(c.kv_milli_max, work.kv_most * kMilli);
  c.exposed_us += layer.idle_us;
  c.layer_us += layer.layer_us;
  if (work.load.requests_mean < kBalancedRequestsMin) return;
  const double kv_ratio = work.load.kv_tokens_max * ranks / work.kv_sum;
  const double requests_ratio = work.load.requests_max / work.load.requests_mean;
  ++busy_steps_;
  kv_ratio_sum_ += kv_ratio;
  requests_ratio_sum_ += requests_ratio;
  ++c.balanced_steps;
  c.kv_ratio_sum += kv_ratio;
  c.requests_ratio_sum += requests_ratio;
}

void BlockFleet::note_tokens(const BlockSequence& sequence, int32_t count, double us) {
  const double speed = count * (count / (us / 1e6));  // times the tokens it is the speed of
  tokens_ += count;
  tokens_x_speed_ += speed;
  FleetCell& c = cell();
  c.tokens += count;
  c.tokens_x_speed += speed;
  c.tokens_x_kv += static_cast<double>(count) * (sequence.num_tokens - count);
}

void BlockFleet::finish_metrics() {
  const int64_t end_ns = std::max(last_end_ns_, last_arrival_ns_);
  account_nodes(end_ns);
  result_.cell_s = static_cast<double>(cells_.cell_ns()) / 1e9;
  result_.metrics.cells = cells_.take(end_ns);
  result_.kv_room_tokens =
      double{kBlockTokens} * blocks_of(options_.decode_blocks_per_rank, options_.decode_ranks);
  result_.last_arrival_s = static_cast<double>(last_arrival_ns_) / 1e9;
  result_.ended_s = static_cast<double>(now_) / 1e9;
  if (store_) {
    result_.store_tb_used =
        static_cast<double>(store_->num_blocks()) * model_.kv_bytes_per_token() * kBlockTokens / 1e12;
    result_.store_evicted_blocks = store_->num_evicted();
  }
  const auto mean = [](double sum, int64_t count) {
    return count > 0 ? sum / static_cast<double>(count) : 1;
  };
  result_.prefill_tokens_ratio = mean(prefill_tokens_ratio_sum_, busy_forwards_);
  result_.prefill_cost_ratio = mean(prefill_cost_ratio_sum_, busy_forwards_);
  result_.decode_kv_ratio = mean(kv_ratio_sum_, busy_steps_);
  result_.decode_requests_ratio = mean(requests_ratio_sum_, busy_steps_);
  result_.tokens_per_s_per_user = tokens_ > 0 ? tokens_x_speed_ / tokens_ : 0;
}

}  // namespace fathom::sim
