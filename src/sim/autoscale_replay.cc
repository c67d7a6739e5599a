// A dry run of the autoscaler: a trace's demand in, interval by interval, decisions with their reasons out.
#include "sim/autoscale_replay.h"

#include <algorithm>

#include "base/check.h"
#include "sim/day_autoscaler.h"
#include "sim/planner_units.h"

namespace fathom::sim {
namespace {

constexpr int kPrefill = static_cast<int>(UnitKind::kPrefill);
constexpr int kDecode = static_cast<int>(UnitKind::kDecode);
constexpr double kBudgetAbovePeak = 1.25;
constexpr double kHistoryKeptSeconds = 2 * 86400;
constexpr double kStartSeconds = 300;   // of the trace that its first units are sized for
constexpr int kPiecesPerInterval = 60;  // in which queues grow and shrink

std::string clock(double s) {
  const int seconds = static_cast<int>(s);
  return fmt::format("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

double arrival_s(const TraceRequest& request) { return static_cast<double>(request.arrival_us) / 1e6; }

// Tokens that a trace asks for, in the order of its arrivals.
class TraceDemand {
 public:
  TraceDemand(const Trace& trace, const std::optional<double>& hit_share, double rate)
      : trace_(trace), hit_share_(hit_share), rate_(rate) {
    if (!hit_share) shared_ = shared_tokens(trace);
  }
  // Adds what arrives from the last call's time to this one.
  void take_until(double time_s, double (&tokens)[kNumUnitKinds]) {
    for (; next_ < trace_.requests.size() && arrival_s(trace_.requests[next_]) < time_s; ++next_) {
      const TraceRequest& r = trace_.requests[next_];
      const double input = r.input_tokens;
      tokens[kPrefill] += rate_ * (hit_share_ ? input * (1 - *hit_share_) : input - shared_[next_]);
      tokens[kDecode] += rate_ * r.output_tokens;
    }
  }

 private:
  const Trace& trace_;
  const std::optional<double> hit_share_;
  const double rate_;
  std::vector<int32_t> shared_;
  size_t next_ = 0;
};

// Work that waits, as a fluid: what arrives, less what the serving units do of it.
class Queues {
 public:
  Queues(const AutoscaleOptions& options, AutoscaleReplay& out) : options_(options), out_(out) {}

  void advance(double seconds, const double (&arrived)[kNumUnitKinds], const FleetLedger& ledger) {
    for (int k = 0; k < kNumUnitKinds; ++k) {
      const double can = capacity(k, ledger);
      waits_[k] = std::max(0.0, waits_[k] + arrived[k] - can * seconds);
      if (can > 0) out_.queue_s_max[k] = std::max(out_.queue_s_max[k], waits_[k] / can);
      out_.queue_tokens_end[k] = waits_[k];
    }
  }
  // Beyond what is in hand.
  double backlog(int k, const FleetLedger& ledger) const {
    return std::max(0.0, waits_[k] - capacity(k, ledger) * kInHandSeconds);
  }
  double seconds(int k, const FleetLedger& ledger) const {
    const double can = capacity(k, ledger);
    return can > 0 ? waits_[k] / can : 0;
  }

 private:
  double capacity(int k, const FleetLedger& ledger) const {
    return ledger.counts(static_cast<UnitKind>(k)).serving * options_.unit[k].tokens_per_s;
  }

  const AutoscaleOptions& options_;
  AutoscaleReplay& out_;
  double waits_[kNumUnitKinds] = {0, 0};
};

std::string line_of(double now_s, const AutoscaleDecision& d, const int (&before)[kNumUnitKinds],
                    const double (&queued_s)[kNumUnitKinds]) {
  const auto kind = [&](int k) {
    const std::string queue = queued_s[k] >= 1 ? fmt::format("; {:.0f} s queued", queued_s[k]) : "";
    return fmt::format("{} {} -> {} ({}, {:.0f} tokens/s forecast{})",
                       unit_kind_name(static_cast<UnitKind>(k)), before[k], d.target[k],
                       scale_reason_name(d.reason[k]), d.forecast_tokens_per_s[k], queue);
  };
  return fmt::format("{}  {}  {}  {} nodes", clock(now_s), kind(kDecode), kind(kPrefill), d.nodes_in_use);
}

// An objective out of reach stays so: it is told when it begins.
bool worth_telling(const AutoscaleDecision& d, const int (&before)[kNumUnitKinds],
                   const ScaleReason (&reason_before)[kNumUnitKinds]) {
  for (int k = 0; k < kNumUnitKinds; ++k) {
    const bool begins = d.reason[k] != reason_before[k];
    if (d.target[k] != before[k] || d.give_up_starting[k] > 0 || d.reason[k] == ScaleReason::kBudget ||
        (d.reason[k] == ScaleReason::kSloUnreachable && begins))
      return true;
  }
  return false;
}

}  // namespace

AutoscaleOptions autoscale_options_of(const PlanInput& input, const PlanResult& plan, const UnitTimes& times,
                                      const AutoscaleRules& rules) {
  AutoscaleOptions options;
  static_cast<AutoscaleRules&>(options) = rules;
  options.unit[kPrefill].nodes = plan.prefill.nodes;
  options.unit[kPrefill].tokens_per_s = plan.prefill.input_tokens_per_s * (1 - input.hit_share);
  options.unit[kPrefill].start_s = options.unit[kDecode].start_s = times.start_s;
  options.unit[kPrefill].drain_s = times.prefill_drain_s;
  options.unit[kDecode].drain_s = times.decode_drain_s;
  options.unit[kDecode].nodes = plan.decode.nodes;
  options.unit[kDecode].tokens_per_s = plan.decode.output_tokens_per_s;
  const bool limited = input.nodes_max < PlanInput{}.nodes_max;
  options.budget_nodes =
      limited ? input.nodes_max : static_cast<int>(plan.peak_nodes * kBudgetAbovePeak) + plan.decode.nodes;
  set_objectives(options, input, plan);
  return options;
}

void set_objectives(AutoscaleOptions& options, const PlanInput& served, const PlanResult& plan) {
  ExpertSpreads spreads;
  options.unit[kPrefill].best_slo = best_ttft_s(served, plan.prefill);
  options.unit[kPrefill].wanted_slo = served.slo_ttft_s;
  options.unit[kDecode].best_slo = decode_speed_at(served, plan.decode, 0, spreads);
  options.unit[kDecode].wanted_slo = served.slo_tokens_per_s_per_user;
}

UnitCounts units_for_the_start(const Trace& trace, const AutoscaleOptions& options,
                               const std::optional<double>& hit_share, double rate) {
  const double span_s = std::clamp(arrival_s(trace.requests.back()), options.interval_s, kStartSeconds);
  double tokens[kNumUnitKinds] = {0, 0};
  TraceDemand(trace, hit_share, rate).take_until(span_s, tokens);
  int units[kNumUnitKinds];
  for (int k = 0; k < kNumUnitKinds; ++k) {
    const int wanted = units_for(tokens[k] / span_s, options.unit[k].tokens_per_s, options.headroom);
    units[k] = std::clamp(wanted, std::max(1, options.units_min[k]), options.units_max[k]);
  }
  return starting_units({units[kDecode], units[kPrefill]}, options);
}

AutoscaleReplay replay_autoscaler(const Trace& trace, const AutoscaleOptions& options,
                                  const std::optional<double>& hit_share, double rate,
                                  double no_nodes_for_s) {
  const Status valid = validate_autoscale(options);
  CHECK_MSG(valid.ok(), valid.message());
  AutoscaleReplay out;
  out.initial = units_for_the_start(trace, options, hit_share, rate);
  FleetLedger ledger(options, {out.initial.prefill, out.initial.decode}, 0);
  TraceDemand demand(trace, hit_share, rate);
  Queues queues(options, out);
  std::vector<LoadPoint> history;
  ScaleReason reason[kNumUnitKinds] = {ScaleReason::kSteady, ScaleReason::kSteady};
  const double end_s = arrival_s(trace.requests.back());
  for (double now = options.interval_s; now <= end_s + options.interval_s; now += options.interval_s) {
    LoadPoint point;
    point.time_s = now;
    const double piece_s = options.interval_s / kPiecesPerInterval;
    for (int i = kPiecesPerInterval - 1; i >= 0; --i) {
      const double until_s = now - i * piece_s;
      double arrived[kNumUnitKinds] = {0, 0};
      demand.take_until(until_s, arrived);
      ledger.set_starts_blocked(until_s < no_nodes_for_s);
      ledger.advance(until_s);
      queues.advance(piece_s, arrived, ledger);
      for (int k = 0; k < kNumUnitKinds; ++k) point.tokens_per_s[k] += arrived[k] / options.interval_s;
    }
    history.push_back(point);
    // Decisions look a day back.
    const auto is_old = [&](const LoadPoint& p) { return p.time_s < now - kHistoryKeptSeconds; };
    if (is_old(history[history.size() / 2])) std::erase_if(history, is_old);
    AutoscaleSnapshot snapshot;
    snapshot.now_s = now;
    snapshot.history = history;
    int before[kNumUnitKinds];
    double queued_s[kNumUnitKinds];
    for (int k = 0; k < kNumUnitKinds; ++k) {
      snapshot.units[k] = ledger.counts(static_cast<UnitKind>(k));
      snapshot.tokens_per_s[k] = point.tokens_per_s[k];
      snapshot.backlog_tokens[k] = queues.backlog(k, ledger);
      before[k] = snapshot.units[k].target();
      queued_s[k] = queues.seconds(k, ledger);
    }
    const AutoscaleDecision decision = autoscale(snapshot, options);
    ++out.decisions;
    if (worth_telling(decision, before, reason))
      out.lines.push_back(line_of(now, decision, before, queued_s));
    std::copy(std::begin(decision.reason), std::end(decision.reason), std::begin(reason));
    ledger.apply(decision);
  }
  out.hours = ledger.hours();
  return out;
}

}  // namespace fathom::sim
