#include "sim/fleet_sim.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/check.h"
#include "sim/prefill_placement.h"
#include "sim/prefill_unit.h"
#include "sim/step_table.h"

namespace fathom::sim {
namespace {

constexpr int64_t kNever = INT64_MAX;
constexpr double kNsPerSecond = 1e9;
constexpr int kDayHours = 24;
constexpr int64_t kRateRefreshNs = 100'000'000;
constexpr int64_t kMeanOutputRequests =
    1'000'000;                               // before, short answers are over-represented among the finished
constexpr double kBalancedRequestsMin = 30;  // ratios of emptier units say little

int64_t us_to_ns(double us) { return static_cast<int64_t>(us * 1e3 + 0.5); }

// Simulated time runs on without a gap while only the first part of each hour is simulated.
class DayClock {
 public:
  DayClock(double fraction) : window_ns_(static_cast<int64_t>(3600 * fraction * kNsPerSecond)) {}
  int64_t end_ns() const { return kDayHours * window_ns_; }
  int64_t window_ns() const { return window_ns_; }
  int hour(int64_t t_ns) const {
    return static_cast<int>(std::min<int64_t>(t_ns / window_ns_, kDayHours - 1));
  }
  double day_second(int64_t t_ns) const {
    const int h = hour(t_ns);
    return 3600.0 * h + static_cast<double>(t_ns - h * window_ns_) / kNsPerSecond;
  }
  int cell(int64_t t_ns) const {
    const int64_t cells = t_ns * kCellsPerHour / window_ns_;
    return static_cast<int>(std::min<int64_t>(cells, kDayHours * kCellsPerHour - 1));
  }

 private:
  const int64_t window_ns_;
};

class FleetSim {
 public:
  FleetSim(const HardwareProfile& hw, const ModelShape& model, const DayFiles& day,
           const FleetOptions& options)
      : hw_(hw),
        model_(model),
        day_(day),
        options_(options),
        clock_(options.fraction),
        lengths_(options.lengths),
        gaps_(exponential_table()),
        rng_(options.seed),
        decode_shape_{static_cast<double>(options.shape.decode_ranks),
                      static_cast<double>(options.shape.decode_slots), 2, options.decode_expert_imbalance,
                      true},
        steps_(hw, model, decode_shape_),
        prefill_cost_(fit_prefill_cost(hw, model,
                                       {static_cast<double>(options.shape.prefill_ranks),
                                        static_cast<double>(options.shape.prefill_slots),
                                        options.prefill_expert_imbalance, options.cached_per_computed})) {
    growth_milli_ = static_cast<int32_t>((1 + options.mtp_acceptance) * kMilli + 0.5);
    const double slots_per_rank =
        static_cast<double>(options.shape.decode_slots) / options.shape.decode_ranks;
    result_.kv_room_tokens = kv_room_tokens(hw, model, slots_per_rank, true);
    room_milli_ =
        options.kv_limit ? static_cast<int64_t>(result_.kv_room_tokens) * kMilli : int64_t{2'000'000'000};
    PlacementOptions placement;
    placement.policy = options.decode_policy;
    placement.report_delay_ns = static_cast<int64_t>(options.report_delay_ms * 1e6);
    placement.kv_room_tokens = options.kv_limit ? room_milli_ / kMilli : 0;
    placement.new_request_growth_tokens = static_cast<int64_t>(options.lengths.output_mean_tokens);
    placement.live_request_growth_tokens =
        static_cast<int64_t>(options.lengths.output_mean_tokens * (1 + options.lengths.output_cv2) / 2);
    placement.seed = options.seed;
    report_delay_ns_ = placement.report_delay_ns;
    const int decode_units =
        std::max(max_units([](const UnitCounts& u) { return u.decode; }), options.scale_units_max.decode);
    const int prefill_units =
        std::max(max_units([](const UnitCounts& u) { return u.prefill; }), options.scale_units_max.prefill);
    placement_ = std::make_unique<DecodePlacement>(decode_units, options.shape.decode_ranks, placement);
    for (int u = 0; u < decode_units; ++u) {
      decode_.emplace_back(options.shape.decode_ranks, growth_milli_, room_milli_);
    }
    const PrefillCost cost{prefill_cost_.a_us_per_token * 1e3, prefill_cost_.b_us_per_pair * 1e3, 0};
    PrefillBudget budget;
    budget.cost_ns = static_cast<int64_t>(hw.prefill_rank_budget_ms_per_layer * 1e6);
    for (int u = 0; u < prefill_units; ++u) prefill_.emplace_back(options.shape.prefill_ranks, cost, budget);
    PrefillPlacementOptions prefill;
    prefill.policy = options.prefill_policy;
    prefill.cost = cost;
    prefill.report_delay_ns = placement.report_delay_ns;
    prefill.layers = model.layers;
    prefill.seed = options.seed;
    prefill_placement_ =
        std::make_unique<PrefillDispatch>(prefill_units, options.shape.prefill_ranks, prefill);
    schedule_faults();
    decode_open_.resize(decode_units);
    prefill_open_.resize(prefill_units);
    decode_lost_.resize(decode_units);
    prefill_lost_.resize(prefill_units);
    prefill_forward_us_.resize(prefill_units);
    events_.assign(decode_units + prefill_units, kNever);
    result_.metrics.cells.resize(kDayHours * kCellsPerHour);
  }

  FleetResult run(const Progress& progress) {
    set_units(0, day_.schedule.units_at(0), day_.schedule.units_at(0));
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
    for (const DecodeUnit& unit : decode_) result_.unfinished_requests += unit.num_requests();
    result_.unfinished_requests += static_cast<int64_t>(waiting_decode_.size() + handing_over_.size());
    for (const PrefillUnit& unit : prefill_) result_.unfinished_requests += unit.num_prompts();
    return std::move(result_);
  }

 private:
  template <typename Get>
  int max_units(Get get) const {
    int units = 1;
    for (const DaySchedule::Change& change : day_.schedule.changes())
      units = std::max(units, get(change.units));
    return units;
  }
  int64_t cell_end(int64_t t) const {
    const int64_t idx = t * kCellsPerHour / clock_.window_ns() + 1;
    return (idx * clock_.window_ns() + kCellsPerHour - 1) / kCellsPerHour;
  }
  FleetCell& cell() { return result_.metrics.cells[cell_idx_]; }
  int num_decode() const { return static_cast<int>(decode_.size()); }

  int64_t next_fault_ns() const { return fault_idx_ < faults_.size() ? faults_[fault_idx_].at : kNever; }

  // arrivals

  int64_t draw_arrival(int64_t now) {
    if (now >= next_rate_ns_) {
      const double per_s = crowd_ * options_.requests_per_day * day_.load.share_per_s(clock_.day_second(now));
      mean_gap_ns_ = kNsPerSecond / std::max(per_s, 1e-9);
      next_rate_ns_ = now + kRateRefreshNs;
    }
    const double gap = std::min(gaps_.sample(rng_) * mean_gap_ns_, 1e15);
    return now + static_cast<int64_t>(gap) + 1;
  }

  void arrive(int64_t now) {
    const RequestShape shape = lengths_.sample(rng_);
    ++cell().arrived_requests;
    cell().arrived_computed_tokens += shape.input_tokens - shape.cached_tokens;
    dispatch_prefill(
        now, {now, shape.input_tokens, shape.cached_tokens, shape.output_tokens, shape.cached_tokens});
    next_arrival_ns_ = draw_arrival(now);
  }

  // prefill

  void dispatch_prefill(int64_t now, const PrefillJob& job) {
    const RankRef to = prefill_placement_->place(now, job.input_tokens, job.cached_tokens);
    prefill_[to.unit].add(to.rank, job);
    if (events_[num_decode() + to.unit] == kNever) begin_forward(to.unit, now);
  }

  void begin_forward(int u, int64_t now) {
    const ForwardLoad load = prefill_[u].begin_forward();
    const double us =
        prefill_forward_us(hw_, model_, prefill_cost_, static_cast<double>(load.cost_ns_max) / 1e3);
    const int64_t end = now + us_to_ns(us);
    prefill_forward_us_[u] = us;
    prefill_placement_->report(u, now, prefill_[u].loads(), end);
    set_event(num_decode() + u, end);
    FleetCell& c = cell();
    ++c.forwards;
    c.forward_seconds += us / 1e6;
    c.computed_tokens += load.tokens_sum;
    if (load.saturated) {
      const double ranks = options_.shape.prefill_ranks;
      ++c.saturated_forwards;
      c.efficiency_sum +=
          static_cast<double>(load.cost_ns_sum) / ranks / static_cast<double>(load.cost_ns_max);
      c.token_ratio_sum +=
          static_cast<double>(load.tokens_max) * ranks / static_cast<double>(load.tokens_sum);
    }
  }

  void end_forward(int u, int64_t now) {
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

  void prompt_done(int u, const PrefillJob& job, int64_t now, int64_t ready) {
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

  // The first token comes from prefill.
  int32_t steps_for(int32_t output_tokens) const {
    return static_cast<int32_t>(((output_tokens - 1) * kMilli + growth_milli_ - 1) / growth_milli_);
  }

  // decode

  void hand_over(int64_t now) {
    const DecodeJob job = handing_over_.front();
    handing_over_.pop_front();
    if (!waiting_decode_.empty() || !try_place(now, job)) {
      waiting_decode_.push_back(job);
      ++cell().admission_waits;
    }
    refresh_next_event();
  }

  bool try_place(int64_t now, const DecodeJob& job) {
    const auto target = placement_->place(now, job.kv_milli);
    if (!target) return false;
    decode_[target->unit].add(target->rank, job);
    if (events_[target->unit] == kNever) begin_step(target->unit, now);
    return true;
  }

  void admit_waiting(int64_t now) {
    while (!waiting_decode_.empty() && try_place(now, waiting_decode_.front())) {
      cell().admission_wait_s += static_cast<double>(now - waiting_decode_.front().ready_ns) / kNsPerSecond;
      waiting_decode_.pop_front();
    }
  }

  void begin_step(int u, int64_t now) {
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
    const StepTable::Step step =
        options_.perfect_decode_balance ? steps_.perfect_step(load) : steps_.step(load);
    set_event(u, now + us_to_ns(step.step_us));
    record_step(c, load, step);
  }

  void record_step(FleetCell& c, const StepLoad& load, const StepTable::Step& step) {
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

  void end_step(int u, int64_t now) {
    finished_.clear();
    decode_[u].end_step(finished_);
    FleetCell& c = cell();
    for (const FinishedJob& done : finished_) {
      ++c.finished_requests;
      c.finished_output_tokens += done.output_tokens;
      const int64_t took_ticks = std::max<int64_t>(1, now / kTickNs - done.joined_ticks);
      const double milli_per_s =
          (done.output_tokens - 1) * (1e12 / kTickNs) / static_cast<double>(took_ticks);
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

  // faults

  void schedule_faults() {
    for (const Fault& fault : options_.faults) {
      const double hour = std::floor(fault.at_s / 3600);
      const int64_t at = static_cast<int64_t>(hour) * clock_.window_ns() +
                         static_cast<int64_t>((fault.at_s - hour * 3600) * kNsPerSecond);
      faults_.push_back({at, fault, true});
      faults_.push_back({at + static_cast<int64_t>(fault.for_s * kNsPerSecond), fault, false});
    }
    std::stable_sort(faults_.begin(), faults_.end(), [](const Due& a, const Due& b) { return a.at < b.at; });
  }

  void next_fault(int64_t now) {
    const Due due = faults_[fault_idx_++];
    const Fault& fault = due.fault;
    if (fault.kind == FaultKind::kFlashCrowd) {
      crowd_ = due.begins ? fault.factor : 1;
      next_rate_ns_ = 0;
      next_arrival_ns_ = draw_arrival(now);
    } else if (fault.kind == FaultKind::kUnitLoss && fault.decode && fault.unit < num_decode()) {
      decode_lost_[fault.unit] = due.begins;
      placement_->set_open(fault.unit, decode_open_[fault.unit] && !due.begins);
      if (due.begins) lose_decode(fault.unit, now);
    } else if (fault.kind == FaultKind::kUnitLoss && !fault.decode &&
               fault.unit < static_cast<int>(prefill_.size())) {
      prefill_lost_[fault.unit] = due.begins;
      prefill_placement_->set_open(fault.unit, prefill_open_[fault.unit] && !due.begins);
      if (due.begins) lose_prefill(fault.unit, now);
    }
    refresh_next_event();
  }

  // Requests of a lost decode unit are replayed: their KV is in the external store up to the last whole
  // block.
  void lose_decode(int u, int64_t now) {
    std::vector<DecodeJob> lost;
    decode_[u].lose_all(lost);
    set_event(u, kNever);
    placement_->forget(u);
    cell().replays += static_cast<int64_t>(lost.size());
    for (const DecodeJob& job : lost) {
      PrefillJob again;
      again.arrival_ns = now;
      again.input_tokens = std::max<int32_t>(1, job.kv_milli / static_cast<int32_t>(kMilli));
      again.cached_tokens = again.computed_from = (again.input_tokens - 1) / 64 * 64;
      again.replay = true;
      again.output_tokens = static_cast<int32_t>(replays_.size());
      replays_.push_back(job);
      dispatch_prefill(now, again);
    }
  }
  DecodeJob replay_of(const PrefillJob& job, int64_t ready) {
    DecodeJob decode = replays_[static_cast<size_t>(job.output_tokens)];
    decode.ready_ns = ready;
    return decode;
  }

  void lose_prefill(int u, int64_t now) {
    std::vector<PrefillJob> lost;
    prefill_[u].lose_all(lost);
    set_event(num_decode() + u, kNever);
    prefill_placement_->forget(u);
    cell().replays += static_cast<int64_t>(lost.size());
    for (const PrefillJob& job : lost) dispatch_prefill(now, job);
  }

  // scaling

  int64_t next_scale_after(int64_t now) const {
    if (options_.scale) return now + static_cast<int64_t>(options_.scale_interval_s * kNsPerSecond);
    // The schedule's changes inside simulated windows, and each window's start.
    int64_t next = (now / clock_.window_ns() + 1) * clock_.window_ns();
    for (const DaySchedule::Change& change : day_.schedule.changes()) {
      const int hour = change.second / 3600;
      const int64_t inside = static_cast<int64_t>(change.second - hour * 3600) * 1'000'000'000;
      const int64_t at = hour * clock_.window_ns() + inside;
      if (inside < clock_.window_ns() && at > now) next = std::min(next, at);
    }
    return next;
  }

  void scale(int64_t now) {
    const double day_second = clock_.day_second(now);
    if (options_.scale) {
      account_nodes(now);
      const ScaleOutput out = options_.scale(scale_input(now));
      set_units(now, out.serving, out.held);
    } else {
      const UnitCounts units = day_.schedule.units_at(day_second);
      set_units(now, units, units);
    }
    next_scale_ns_ = next_scale_after(now);
    refresh_next_event();
  }

  ScaleInput scale_input(int64_t now) {
    ScaleInput in;
    in.day_second = clock_.day_second(now);
    int64_t arrived = 0, computed = 0, finished = 0, output = 0;
    for (int i = 0; i <= cell_idx_; ++i) {
      const FleetCell& c = result_.metrics.cells[static_cast<size_t>(i)];
      arrived += c.arrived_requests;
      computed += c.arrived_computed_tokens;
      finished += c.finished_requests;
      output += c.finished_output_tokens;
    }
    const double mean_output = finished > kMeanOutputRequests
                                   ? static_cast<double>(output) / static_cast<double>(finished)
                                   : options_.lengths.output_mean_tokens;
    in.arrived_computed_tokens_per_s =
        static_cast<double>(computed - scaled_computed_) / options_.scale_interval_s;
    in.arrived_output_tokens_per_s =
        static_cast<double>(arrived - scaled_arrived_) * mean_output / options_.scale_interval_s;
    scaled_arrived_ = arrived;
    scaled_computed_ = computed;
    for (int u = units_.decode; u < num_decode(); ++u) in.draining.decode += !decode_[u].idle();
    for (size_t u = static_cast<size_t>(units_.prefill); u < prefill_.size(); ++u) {
      in.draining.prefill += events_[decode_.size() + u] != kNever;
    }
    return in;
  }

  void set_units(int64_t now, UnitCounts units, UnitCounts held) {
    units.decode = std::clamp(units.decode, 1, num_decode());
    units.prefill = std::clamp(units.prefill, 1, static_cast<int>(prefill_.size()));
    account_nodes(now);
    if (result_.units.empty() || units != units_) {
      const int nodes =
          units.decode * options_.shape.decode_nodes + units.prefill * options_.shape.prefill_nodes;
      result_.units.push_back({static_cast<int>(clock_.day_second(now)), nodes, units});
    }
    units_ = units;
    held_ = held;
    for (int u = 0; u < num_decode(); ++u) {
      decode_open_[u] = u < units.decode;
      placement_->set_open(u, decode_open_[u] && !decode_lost_[u]);
    }
    for (int u = 0; u < static_cast<int>(prefill_.size()); ++u) {
      prefill_open_[u] = u < units.prefill;
      prefill_placement_->set_open(u, prefill_open_[u] && !prefill_lost_[u]);
    }
  }

  // Node time since the last call goes to the current cell.
  void account_nodes(int64_t now) {
    const double seconds = static_cast<double>(now - accounted_ns_) / kNsPerSecond;
    accounted_ns_ = now;
    FleetCell& c = cell();
    c.seconds += seconds;
    c.decode_node_seconds += seconds * held_.decode * options_.shape.decode_nodes;
    c.prefill_node_seconds += seconds * held_.prefill * options_.shape.prefill_nodes;
    for (int u = 0; u < num_decode(); ++u) {
      const bool draining = !decode_open_[u] && !decode_[u].idle();
      if (draining) c.decode_drain_node_seconds += seconds * options_.shape.decode_nodes;
    }
    for (size_t u = 0; u < prefill_.size(); ++u) {
      const bool draining = !prefill_open_[u] && events_[decode_.size() + u] != kNever;
      if (draining) c.prefill_drain_node_seconds += seconds * options_.shape.prefill_nodes;
    }
  }

  // events

  void set_event(int idx, int64_t at) {
    events_[idx] = at;
    next_event_ns_ = std::min(next_event_ns_, at);
  }
  void refresh_next_event() {
    next_event_ns_ = *std::min_element(events_.begin(), events_.end());
    if (!handing_over_.empty()) next_event_ns_ = std::min(next_event_ns_, handing_over_.front().ready_ns);
  }
  void handle_event(int64_t now) {
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

  void close_cell(int64_t now) {
    account_nodes(now);
    const bool hour_end = now % clock_.window_ns() == 0;
    if (hour_end) result_.metrics.hour_ends.push_back(hour_end_state(now));
    cell_idx_ = clock_.cell(now);
  }

  HourEnd hour_end_state(int64_t now) const {
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

  const HardwareProfile& hw_;
  const ModelShape& model_;
  const DayFiles& day_;
  const FleetOptions options_;
  const DayClock clock_;
  const LengthModel lengths_;
  const QuantileTable gaps_;
  Rng rng_;
  const DecodeUnitShape decode_shape_;
  StepTable steps_;
  const LayerCost prefill_cost_;
  int32_t growth_milli_ = 0;
  int64_t room_milli_ = 0;
  int64_t report_delay_ns_ = 0;

  std::unique_ptr<DecodePlacement> placement_;
  std::vector<DecodeUnit> decode_;
  std::vector<PrefillUnit> prefill_;
  std::vector<char> decode_open_, prefill_open_;
  std::vector<char> decode_lost_, prefill_lost_;
  std::unique_ptr<PrefillDispatch> prefill_placement_;
  std::vector<double> prefill_forward_us_;
  std::deque<DecodeJob> handing_over_;    // by ready time: the hand-over takes the same time for all
  std::deque<DecodeJob> waiting_decode_;  // no rank had room

  struct Due {
    int64_t at;
    Fault fault;
    bool begins;
  };
  std::vector<Due> faults_;
  size_t fault_idx_ = 0;
  double crowd_ = 1;                // arrivals over the day's rate
  std::vector<DecodeJob> replays_;  // of lost decode units, by the number their prefill job carries

  std::vector<int64_t> events_;  // end of each decode unit's step, then of each prefill unit's forward
  int64_t next_event_ns_ = kNever;
  int64_t next_arrival_ns_ = 0;
  int64_t next_scale_ns_ = kNever;
  int64_t next_rate_ns_ = 0;
  double mean_gap_ns_ = 0;
  int64_t accounted_ns_ = 0;
  int cell_idx_ = 0;
  UnitCounts units_, held_;
  int64_t scaled_arrived_ = 0, scaled_computed_ = 0;  // counted up to the last scaling decision
  FleetResult result_;
  // Scratch, kept for its capacity.
  std::vector<PrefillJob> finished_prompts_;
  std::vector<FinishedJob> finished_;
  std::vector<DecodeJob> retracted_;
};

}  // namespace

FleetResult run_day(const HardwareProfile& hw, const ModelShape& model, const DayFiles& day,
                    const FleetOptions& options, const Progress& progress) {
  return FleetSim(hw, model, day, options).run(progress);
}

}  // namespace fathom::sim
