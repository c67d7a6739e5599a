// A dry run of the autoscaler: a trace's demand in, interval by interval, decisions with their reasons out.
#include "sim/autoscale_replay.h"

#include <algorithm>

#include "base/check.h"

namespace fathom::sim {
namespace {

constexpr int kPrefill = static_cast<int>(UnitKind::kPrefill);
constexpr int kDecode = static_cast<int>(UnitKind::kDecode);
constexpr double kBudgetAbovePeak = 1.25;
constexpr double kHistoryKeptSeconds = 2 * 86400;

std::string clock(double s) {
  const int seconds = static_cast<int>(s);
  return fmt::format("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

std::string line_of(double now_s, const AutoscaleDecision& d, const int (&before)[kNumUnitKinds]) {
  return fmt::format(
      "{}  decode {} -> {} ({}, {:.0f} tokens/s forecast)  prefill {} -> {} ({}, {:.0f})  {} nodes",
      clock(now_s), before[kDecode], d.target[kDecode], scale_reason_name(d.reason[kDecode]),
      d.forecast_tokens_per_s[kDecode], before[kPrefill], d.target[kPrefill],
      scale_reason_name(d.reason[kPrefill]), d.forecast_tokens_per_s[kPrefill], d.nodes_in_use);
}

bool worth_telling(const AutoscaleDecision& d, const int (&before)[kNumUnitKinds]) {
  for (int k = 0; k < kNumUnitKinds; ++k) {
    if (d.target[k] != before[k]) return true;
    if (d.give_up_starting[k] > 0 || d.reason[k] == ScaleReason::kBudget ||
        d.reason[k] == ScaleReason::kSloUnreachable)
      return true;
  }
  return false;
}

}  // namespace

AutoscaleOptions autoscale_options_of(const PlanInput& input, const PlanResult& plan,
                                      const UnitTimes& times) {
  AutoscaleOptions options;
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
  return options;
}

AutoscaleReplay replay_autoscaler(const Trace& trace, const AutoscaleOptions& options,
                                  const std::optional<double>& hit_share, double rate,
                                  double no_nodes_for_s) {
  const Status valid = validate_autoscale(options);
  CHECK_MSG(valid.ok(), valid.message());
  AutoscaleReplay out;
  const int initial[kNumUnitKinds] = {1, 1};
  FleetLedger ledger(options, initial, 0);
  std::vector<LoadPoint> history;
  const double end_s = static_cast<double>(trace.requests.back().arrival_us) / 1e6;
  const std::vector<int32_t> shared = hit_share ? std::vector<int32_t>() : shared_tokens(trace);
  size_t next = 0;
  for (double now = options.interval_s; now <= end_s + options.interval_s; now += options.interval_s) {
    LoadPoint point;
    point.time_s = now;
    for (; next < trace.requests.size() && static_cast<double>(trace.requests[next].arrival_us) / 1e6 < now;
         ++next) {
      const double input = trace.requests[next].input_tokens;
      point.tokens_per_s[kPrefill] += hit_share ? input * (1 - *hit_share) : input - shared[next];
      point.tokens_per_s[kDecode] += trace.requests[next].output_tokens;
    }
    for (double& tokens : point.tokens_per_s) tokens *= rate / options.interval_s;
    history.push_back(point);
    // Decisions look a day back.
    const auto is_old = [&](const LoadPoint& p) { return p.time_s < now - kHistoryKeptSeconds; };
    if (is_old(history[history.size() / 2])) std::erase_if(history, is_old);
    ledger.set_starts_blocked(now < no_nodes_for_s);
    ledger.advance(now);
    AutoscaleSnapshot snapshot;
    snapshot.now_s = now;
    snapshot.history = history;
    int before[kNumUnitKinds];
    for (int k = 0; k < kNumUnitKinds; ++k) {
      snapshot.units[k] = ledger.counts(static_cast<UnitKind>(k));
      snapshot.tokens_per_s[k] = point.tokens_per_s[k];
      before[k] = snapshot.units[k].target();
    }
    const AutoscaleDecision decision = autoscale(snapshot, options);
    ++out.decisions;
    if (worth_telling(decision, before)) out.lines.push_back(line_of(now, decision, before));
    ledger.apply(decision);
  }
  out.hours = ledger.hours();
  return out;
}

}  // namespace fathom::sim
