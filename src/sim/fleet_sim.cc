// Arrivals, prefill units, hand-over and decode units on one virtual clock, and the loop over their events.
#include "sim/fleet_sim.h"

#include <cmath>

#include "base/check.h"
#include "sim/fleet_sim_impl.h"

namespace fathom::sim {
namespace {

constexpr int64_t kRateRefreshNs = 100'000'000;
constexpr double kBalancedRequestsMin = 30;  // ratios of emptier units say little

int64_t us_to_ns(double us) { return static_cast<int64_t>(us * 1e3 + 0.5); }

}  // namespace

FleetSim::FleetSim(const HardwareProfile& hw, const ModelShape& model, const DayFiles& day,
                   const FleetOptions& options)
    : hw_(hw),
      model_(model),
      day_(day),
      options_(options),
      clock_(options.fraction),
      lengths_(options.lengths),
      gaps_(exponential_table()),
      rng_(options.seed),
      decode_shape_(decode_shape_of(options)),
      steps_(hw, model, decode_shape_),
      prefill_cost_(fit_prefill_cost(hw, model, prefill_shape_of(options, lengths_.prompt_mix()))) {
  growth_milli_ = static_cast<int32_t>((1 + options.mtp_acceptance) * kMilli + 0.5);
  result_.kv_room_tokens = decode_room_tokens(hw, model, options);
  room_milli_ =
      options.kv_limit ? static_cast<int64_t>(result_.kv_room_tokens) * kMilli : kRoomTokensMax * kMilli;
  PlacementOptions placement;
  placement.policy = options.decode_policy;
  placement.report_delay_ns = static_cast<int64_t>(options.report_delay_ms * 1e6);
  const bool admits_by_room = options.kv_limit && options.sabotage != DaySabotage::kIgnoreRoom;
  const int64_t room_of_units = admits_by_room ? room_milli_ : kRoomTokensMax * kMilli;
  placement.kv_room_tokens = admits_by_room ? room_milli_ / kMilli : 0;
  placement.new_request_growth_tokens = static_cast<int64_t>(options.lengths.output_mean_tokens);
  placement.live_request_growth_tokens =
      static_cast<int64_t>(options.lengths.output_mean_tokens * (1 + options.lengths.output_cv2) / 2);
  placement.seed = options.seed;
  report_delay_ns_ = placement.report_delay_ns;
  const UnitCounts most = units_max(day.schedule);
  const int decode_units = std::max(most.decode, options.scale_units_max.decode);
  const int prefill_units = std::max(most.prefill, options.scale_units_max.prefill);
  placement_ = std::make_unique<DecodePlacement>(decode_units, options.shape.decode_ranks, placement);
  for (int u = 0; u < decode_units; ++u) {
    decode_.emplace_back(options.shape.decode_ranks, growth_milli_, room_of_units);
  }
  const PrefillCost cost{prefill_cost_.a_us_per_token * 1e3, prefill_cost_.b_us_per_pair * 1e3, 0};
  PrefillBudget budget;
  budget.cost_ns = static_cast<int64_t>(hw.prefill_rank_budget_ms_per_layer * 1e6);
  budget.tokens_max = options.prefill_chunk_tokens;
  for (int u = 0; u < prefill_units; ++u) prefill_.emplace_back(options.shape.prefill_ranks, cost, budget);
  PrefillPlacementOptions prefill;
  prefill.policy = options.prefill_policy;
  prefill.cost = cost;
  prefill.report_delay_ns = placement.report_delay_ns;
  prefill.layers = model.layers;
  prefill.seed = options.seed;
  prefill_placement_ = std::make_unique<PrefillDispatch>(prefill_units, options.shape.prefill_ranks, prefill);
  schedule_faults();
  decode_open_.resize(decode_units);
  prefill_open_.resize(prefill_units);
  decode_lost_.resize(decode_units);
  decode_drained_.resize(decode_units);
  prefill_drained_.resize(prefill_units);
  prefill_lost_.resize(prefill_units);
  prefill_forward_us_.resize(prefill_units);
  events_.assign(decode_units + prefill_units, kNever);
  result_.metrics.cells.resize(kDayHours * kCellsPerHour);
}

FleetResult FleetSim::run(const Progress& progress) {
  const UnitCounts initial = options_.scale ? options_.scale_initial : day_.schedule.units_at(0);
  set_units(0, initial, initial);
  next_scale_ns_ = next_scale_after(0);
  next_arrival_ns_ = draw_arrival(0);
  int64_t next_cell_ns = cell_end(0);
  int last_percent = -1;
  while (true) {
    const int64_t t = std::min(
        {next_event_ns_, next_arrival_ns_, next_scale_ns_, next_cell_ns, next_fault_ns(), clock_.end_ns()});
    if (t >= clock_.end_ns()) break;
    if (t == next_cell_ns) {
      close_cell(t);
      next_cell_ns = cell_end(t);
      const int percent = static_cast<int>(t * 1000 / clock_.end_ns());
      if (progress && percent != last_percent)
        progress(static_cast<double>(t) / static_cast<double>(clock_.end_ns()));
      last_percent = percent;
    } else if (t == next_scale_ns_) {
      scale(t);
    } else if (t == next_fault_ns()) {
      next_fault(t);
    } else if (t == next_event_ns_) {
      handle_event(t);
    } else {
      arrive(t);
    }
  }
  close_cell(clock_.end_ns());
  count_unfinished();
  return std::move(result_);
}

int64_t FleetSim::cell_end(int64_t t) const {
  const int64_t idx = t * kCellsPerHour / clock_.window_ns() + 1;
  return (idx * clock_.window_ns() + kCellsPerHour - 1) / kCellsPerHour;
}

int64_t FleetSim::draw_arrival(int64_t now) {
  if (now >= next_rate_ns_) {
    const double per_s = crowd_ * options_.requests_per_day * day_.load.share_per_s(clock_.day_second(now));
    mean_gap_ns_ = kNsPerSecond / std::max(per_s, 1e-9);
    next_rate_ns_ = now + kRateRefreshNs;
  }
  const double gap = std::min(gaps_.sample(rng_) * mean_gap_ns_, 1e15);
  return now + static_cast<int64_t>(gap) + 1;
}

void FleetSim::arrive(int64_t now) {
  const RequestShape shape = lengths_.sample(rng_);
  ++cell().arrived_requests;
  cell().arrived_computed_tokens += shape.input_tokens - shape.cached_tokens;
  dispatch_prefill(now,
                   {now, shape.input_tokens, shape.cached_tokens, shape.output_tokens, shape.cached_tokens});
  next_arrival_ns_ = draw_arrival(now);
}

void FleetSim::dispatch_prefill(int64_t now, PrefillJob job) {
  const std::optional<RankRef> to = prefill_placement_->place(now, job.input_tokens, job.cached_tokens);
  if (!to) {
    unrouted_.push_back(job);
    return;
  }
  if (!job.accepted && prefill_[to->unit].loads()[to->rank].requests >= options_.queued_prompts_max) {
    prefill_placement_->withdraw(to->unit);
    ++cell().refused_requests;
    return;
  }
  job.accepted = true;
  prefill_[to->unit].add(to->rank, job);
  if (events_[num_decode() + to->unit] == kNever) begin_forward(to->unit, now);
}

void FleetSim::dispatch_unrouted(int64_t now) {
  std::deque<PrefillJob> waiting;
  waiting.swap(unrouted_);
  for (const PrefillJob& job : waiting) dispatch_prefill(now, job);
}

void FleetSim::count_unfinished() {
  int64_t left = static_cast<int64_t>(waiting_decode_.size() + handing_over_.size() + unrouted_.size());
  for (const DecodeUnit& unit : decode_) {
    left += unit.num_requests();
    result_.kv_milli_unowned += unit.kv_milli_total() - unit.kv_milli_owned();
  }
  for (const PrefillUnit& unit : prefill_) left += unit.num_prompts();
  result_.unfinished_requests = left;
  const FleetCell total = result_.metrics.total();
  result_.lost_requests = total.arrived_requests - total.refused_requests - total.finished_requests - left;
}

void FleetSim::begin_forward(int u, int64_t now) {
  const ForwardLoad load = prefill_[u].begin_forward();
  const double us =
      prefill_forward_us(hw_, model_, prefill_cost_, static_cast<double>(load.cost_ns_max) / 1e3,
                         static_cast<double>(load.tokens_slowest));
  const int64_t end = now + us_to_ns(us);
  prefill_forward_us_[u] = us;
  prefill_placement_->report(u, now, prefill_[u].loads(), end);
  set_event(num_decode() + u, end);
  if (!prefill_open_[u]) note_nodes();
  FleetCell& c = cell();
  const double exposed_us = prefill_cost_.exposed_us(static_cast<double>(load.tokens_slowest));
  c.add_forward(us / 1e6, load.tokens_sum, exposed_us,
                prefill_cost_.c0_us + static_cast<double>(load.cost_ns_max) / 1e3 + exposed_us);
  if (load.saturated) {
    const double ranks = options_.shape.prefill_ranks;
    ++c.saturated_forwards;
    c.efficiency_sum += static_cast<double>(load.cost_ns_sum) / ranks / static_cast<double>(load.cost_ns_max);
    c.token_ratio_sum += static_cast<double>(load.tokens_max) * ranks / static_cast<double>(load.tokens_sum);
  }
}

void FleetSim::end_forward(int u, int64_t now) {
  finished_prompts_.clear();
  prefill_[u].end_forward(finished_prompts_);
  const int64_t ready = now + us_to_ns(hw_.kv_handover_ms * 1e3);
  for (const PrefillJob& job : finished_prompts_) {
    if (job.replay) {
      handing_over_.push_back(replay_of(job, ready));
    } else {
      prompt_done(u, job, now, ready);
    }
  }
  set_event(num_decode() + u, kNever);
  if (prefill_[u].empty()) {
    prefill_placement_->report(u, now, prefill_[u].loads(), now);
  } else {
    begin_forward(u, now);
  }
  refresh_next_event();
}

void FleetSim::prompt_done(int u, const PrefillJob& job, int64_t now, int64_t ready) {
  FleetCell& c = cell();
  ++c.requests;
  c.input_tokens += job.input_tokens;
  c.cached_tokens += job.cached_tokens;
  c.ttft_ms.add(static_cast<uint64_t>((ready - job.arrival_ns) / 1'000'000));
  const int64_t started = now - us_to_ns(prefill_forward_us_[u]);
  c.queue_ms.add(static_cast<uint64_t>(std::max<int64_t>(0, started - job.arrival_ns) / 1'000'000));
  DecodeJob decode;
  decode.ready_ns = ready;
  decode.kv_milli = job.input_tokens * static_cast<int32_t>(kMilli);
  decode.output_tokens = job.output_tokens;
  decode.ttft_met = static_cast<double>(ready - job.arrival_ns) <= options_.slo_ttft_s * kNsPerSecond;
  decode.steps = steps_for(job.output_tokens);
  if (decode.steps > 0) {
    handing_over_.push_back(decode);
    return;
  }
  ++c.finished_requests;
  c.finished_output_tokens += 1;
  c.good_requests += decode.ttft_met;
  c.good_output_tokens += decode.ttft_met;
}

int32_t FleetSim::steps_for(int32_t output_tokens) const {
  return static_cast<int32_t>(((output_tokens - 1) * kMilli + growth_milli_ - 1) / growth_milli_);
}

void FleetSim::hand_over(int64_t now) {
  const DecodeJob job = handing_over_.front();
  handing_over_.pop_front();
  if (!waiting_decode_.empty() || !try_place(now, job)) {
    waiting_decode_.push_back(job);
    ++cell().admission_waits;
  }
  refresh_next_event();
}

bool FleetSim::try_place(int64_t now, const DecodeJob& job) {
  const auto target = placement_->place(now, job.kv_milli);
  if (!target) return false;
  decode_[target->unit].add(target->rank, job);
  if (events_[target->unit] == kNever) begin_step(target->unit, now);
  return true;
}

void FleetSim::admit_waiting(int64_t now) {
  while (!waiting_decode_.empty() && try_place(now, waiting_decode_.front())) {
    cell().admission_wait_s += static_cast<double>(now - waiting_decode_.front().ready_ns) / kNsPerSecond;
    waiting_decode_.pop_front();
  }
}

void FleetSim::begin_step(int u, int64_t now) {
  retracted_.clear();
  DecodeUnit& unit = decode_[u];
  const StepLoad load = unit.begin_step(now, retracted_);
  FleetCell& c = cell();
  c.retractions += static_cast<int64_t>(retracted_.size());
  for (DecodeJob& job : retracted_) {
    job.ready_ns = now;
    waiting_decode_.push_front(job);
  }
  placement_->report(u, now, unit.requests(), unit.kv_milli());
  if (load.requests == 0) {
    set_event(u, kNever);
    return;
  }
  const StepTable::Step step = options_.perfect_decode_balance ? steps_.perfect_step(load)
                               : slow_decode_.empty()          ? steps_.step(load)
                                                               : steps_.step(slowed(u, load));
  set_event(u, now + us_to_ns(step.step_us));
  if (!decode_open_[u]) note_nodes();
  record_step(c, load, step);
}

void FleetSim::record_step(FleetCell& c, const StepLoad& load, const StepTable::Step& step) {
  const double seconds = step.step_us / 1e6;
  const double per_request = static_cast<double>(growth_milli_) / kMilli;
  const double tokens = per_request * static_cast<double>(load.requests);
  ++c.steps;
  c.rank_steps += options_.shape.decode_ranks;
  c.step_seconds += seconds;
  c.tokens += tokens;
  c.tokens_x_speed += tokens * per_request / seconds;
  c.tokens_x_kv += per_request * static_cast<double>(load.kv_milli) / kMilli;
  c.live_x_seconds += static_cast<double>(load.requests) * seconds;
  c.kv_milli_max = std::max(c.kv_milli_max, static_cast<double>(load.kv_milli_max));
  if (options_.kv_limit && load.kv_milli_max > room_milli_) ++result_.kv_over_room_steps;
  c.exposed_us += step.exposed_us;
  c.layer_us += step.layer_us;
  const double ranks = options_.shape.decode_ranks;
  if (static_cast<double>(load.requests) > kBalancedRequestsMin * ranks) {
    ++c.balanced_steps;
    c.kv_ratio_sum += load.kv_milli_max * ranks / static_cast<double>(load.kv_milli);
    c.requests_ratio_sum += load.requests_max * ranks / static_cast<double>(load.requests);
  }
}

void FleetSim::end_step(int u, int64_t now) {
  finished_.clear();
  decode_[u].end_step(finished_);
  FleetCell& c = cell();
  for (const FinishedJob& done : finished_) {
    ++c.finished_requests;
    if (options_.sabotage == DaySabotage::kLeakKv)
      decode_[u].leak(static_cast<int>(c.finished_requests % options_.shape.decode_ranks), 4 * kMilli);
    c.finished_output_tokens += done.output_tokens;
    const int64_t took_ticks = std::max<int64_t>(1, now / kTickNs - done.joined_ticks);
    const double milli_per_s = (done.output_tokens - 1) * (1e12 / kTickNs) / static_cast<double>(took_ticks);
    c.speed_milli.add(static_cast<uint64_t>(milli_per_s));
    if (done.ttft_met && milli_per_s >= options_.slo_tokens_per_s_per_user * 1e3) {
      ++c.good_requests;
      c.good_output_tokens += done.output_tokens;
    }
  }
  begin_step(u, now);
  if (!waiting_decode_.empty()) admit_waiting(now);
  refresh_next_event();
}

void FleetSim::set_event(int idx, int64_t at) {
  events_[idx] = at;
  next_event_ns_ = std::min(next_event_ns_, at);
}

void FleetSim::refresh_next_event() {
  next_event_ns_ = *std::min_element(events_.begin(), events_.end());
  if (!handing_over_.empty()) next_event_ns_ = std::min(next_event_ns_, handing_over_.front().ready_ns);
}

void FleetSim::handle_event(int64_t now) {
  for (int i = 0; i < static_cast<int>(events_.size()); ++i) {
    if (events_[i] != now) continue;
    if (i < num_decode()) {
      end_step(i, now);
    } else {
      end_forward(i - num_decode(), now);
    }
    return;
  }
  hand_over(now);
}

void FleetSim::close_cell(int64_t now) {
  account_nodes(now);
  const bool hour_end = now % clock_.window_ns() == 0;
  if (hour_end) result_.metrics.hour_ends.push_back(hour_end_state(now));
  cell_idx_ = clock_.cell(now);
}

HourEnd FleetSim::hour_end_state(int64_t now) const {
  HourEnd end;
  const auto age = [&](int64_t since) { return static_cast<double>(now - since) / kNsPerSecond; };
  for (size_t u = 0; u < prefill_.size(); ++u) {
    const int64_t oldest = prefill_[u].oldest_arrival_ns();
    if (oldest != kNever) end.oldest_prefill_s = std::max(end.oldest_prefill_s, age(oldest));
    end.forward_s = std::max(end.forward_s, prefill_forward_us_[u] / 1e6);
  }
  for (const DecodeJob& job : waiting_decode_)
    end.oldest_decode_s = std::max(end.oldest_decode_s, age(job.ready_ns));
  return end;
}

FleetResult run_day(const HardwareProfile& hw, const ModelShape& model, const DayFiles& day,
                    const FleetOptions& options, const Progress& progress) {
  return FleetSim(hw, model, day, options).run(progress);
}

}  // namespace fathom::sim
