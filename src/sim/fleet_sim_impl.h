// The inside of run_day: one class over two files, fleet_sim.cc (arrivals, prefill, hand-over, decode) and
// fleet_sim_scale.cc (faults, scaling, accounting of nodes).
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "sim/active_faults.h"
#include "sim/fleet_sim.h"
#include "sim/prefill_placement.h"
#include "sim/prefill_unit.h"
#include "sim/step_table.h"

namespace fathom::sim {

inline constexpr int64_t kNever = INT64_MAX;
inline constexpr double kNsPerSecond = 1e9;
inline constexpr int kDayHours = 24;

// Simulated time runs on without a gap while only the first part of each hour is simulated.
class DayClock {
 public:
  DayClock(double fraction) : window_ns_(static_cast<int64_t>(3600 * fraction * kNsPerSecond)) {}
  int64_t end_ns() const { return kDayHours * window_ns_; }
  int64_t window_ns() const { return window_ns_; }
  int hour(int64_t t_ns) const {
    return static_cast<int>(std::min<int64_t>(t_ns / window_ns_, kDayHours - 1));
  }
  // Of a time of the day; what falls between two parts is at the end of the first.
  int64_t simulated_ns(double day_s) const {
    const auto h = static_cast<int64_t>(day_s / 3600);
    const auto inside = static_cast<int64_t>((day_s - static_cast<double>(h) * 3600) * kNsPerSecond);
    return h * window_ns_ + std::min(inside, window_ns_);
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
           const FleetOptions& options);

  FleetResult run(const Progress& progress);

 private:
  int64_t cell_end(int64_t t) const;
  FleetCell& cell() { return result_.metrics.cells[cell_idx_]; }
  int num_decode() const { return static_cast<int>(decode_.size()); }

  int64_t next_fault_ns() const { return fault_idx_ < faults_.size() ? faults_[fault_idx_].at : kNever; }

  // arrivals

  int64_t draw_arrival(int64_t now);

  void arrive(int64_t now);

  // prefill

  void dispatch_prefill(int64_t now, PrefillJob job);
  void dispatch_unrouted(int64_t now);
  void count_unfinished();

  void begin_forward(int u, int64_t now);

  void end_forward(int u, int64_t now);

  void prompt_done(int u, const PrefillJob& job, int64_t now, int64_t ready);

  // The first token comes from prefill.
  int32_t steps_for(int32_t output_tokens) const;

  // decode

  void hand_over(int64_t now);

  bool try_place(int64_t now, const DecodeJob& job);

  void admit_waiting(int64_t now);

  void begin_step(int u, int64_t now);

  void record_step(FleetCell& c, const StepLoad& load, const StepTable::Step& step);

  void end_step(int u, int64_t now);

  // faults

  void schedule_faults();

  void next_fault(int64_t now);
  void apply_fault(const Fault& fault, bool begins, int64_t now);
  void fault_unit_loss(const Fault& fault, bool begins, int64_t now);
  void fault_slow_rank(const Fault& fault);
  StepLoad slowed(int u, const StepLoad& load) const;
  // The registry tells the balancers which units serve. While it is lost they keep what they know.
  void tell_balancers(int64_t now);

  // Requests of a lost decode unit are replayed: their KV is in the external store up to the last whole
  // block.
  void lose_decode(int u, int64_t now);
  DecodeJob replay_of(const PrefillJob& job, int64_t ready);

  void lose_prefill(int u, int64_t now);

  // scaling

  int64_t next_scale_after(int64_t now) const;

  void scale(int64_t now);

  ScaleInput scale_input(int64_t now);

  void set_units(int64_t now, UnitCounts units, UnitCounts held, UnitCounts drained = {});
  bool drains_decode(int u) const { return !decode_open_[u] && !decode_[u].idle(); }
  bool drains_prefill(int u) const { return !prefill_open_[u] && events_[num_decode() + u] != kNever; }
  // Nodes in use can only rise where units are set or a closed unit gets work.
  void note_nodes();
  UnitCounts draining() const;

  // Node time since the last call goes to the current cell.
  void account_nodes(int64_t now);

  // events

  void set_event(int idx, int64_t at);
  void refresh_next_event();
  void handle_event(int64_t now);

  void close_cell(int64_t now);

  HourEnd hour_end_state(int64_t now) const;

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
  std::vector<char> decode_drained_, prefill_drained_;  // closed, with requests, and on nobody's nodes
  std::deque<PrefillJob> unrouted_;                     // no prefill unit was there to take them
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
  ActiveFaults active_;
  struct SlowRank {
    int unit, rank;
    double factor;
  };
  std::vector<SlowRank> slow_decode_;
  bool registry_lost_ = false;
  bool starts_blocked_ = false;
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
  int64_t scaled_arrived_ = 0, scaled_computed_ = 0, scaled_ns_ = 0;  // of the last scaling decision
  FleetResult result_;
  // Scratch, kept for its capacity.
  std::vector<PrefillJob> finished_prompts_;
  std::vector<FinishedJob> finished_;
  std::vector<DecodeJob> retracted_;
};

}  // namespace fathom::sim
