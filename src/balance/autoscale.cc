// One wish per kind from its forecast, then both within the budget, then role flips for what the budget
// refused.
#include "balance/autoscale.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace fathom {
namespace {

constexpr double kDay = 86400;
constexpr UnitKind kKinds[] = {UnitKind::kPrefill, UnitKind::kDecode};

int idx(UnitKind kind) { return static_cast<int>(kind); }
int other(int kind) { return 1 - kind; }

int nodes_of(const AutoscaleSnapshot& s, const AutoscaleOptions& o) {
  int nodes = 0;
  for (int k = 0; k < kNumUnitKinds; ++k) {
    nodes += o.unit[k].nodes * (s.units[k].serving + s.units[k].starting + s.units[k].draining);
  }
  return nodes;
}

// History's value at a time, linear between points; nullopt where it does not reach.
std::optional<double> value_at(std::span<const LoadPoint> history, int kind, double time_s) {
  const auto after = std::lower_bound(history.begin(), history.end(), time_s,
                                      [](const LoadPoint& p, double t) { return p.time_s < t; });
  if (after == history.end()) return std::nullopt;
  if (after->time_s == time_s) return after->tokens_per_s[kind];
  if (after == history.begin()) return std::nullopt;
  const LoadPoint& before = *std::prev(after);
  const double share = (time_s - before.time_s) / (after->time_s - before.time_s);
  return before.tokens_per_s[kind] + share * (after->tokens_per_s[kind] - before.tokens_per_s[kind]);
}

// Slope of the least-squares line through the points from `from_s` on; 0 with fewer than three.
double trend_per_s(std::span<const LoadPoint> history, int kind, double from_s, double now_s) {
  double n = 0, t_sum = 0, y_sum = 0, tt = 0, ty = 0;
  for (auto p = history.rbegin(); p != history.rend() && p->time_s >= from_s; ++p) {
    const double t = p->time_s - now_s, y = p->tokens_per_s[kind];
    n += 1, t_sum += t, y_sum += y, tt += t * t, ty += t * y;
  }
  const double spread = n * tt - t_sum * t_sum;
  return n >= 3 && spread > 0 ? (n * ty - t_sum * y_sum) / spread : 0;
}

bool slo_unreachable(int kind, const UnitProfile& unit) {
  if (unit.wanted_slo <= 0 || unit.best_slo <= 0) return false;
  return kind == idx(UnitKind::kPrefill) ? unit.best_slo > unit.wanted_slo : unit.best_slo < unit.wanted_slo;
}

// One kind's wish before budget: what it needs, and why it may not have less.
struct Wish {
  int units = 0;   // to have after this decision
  int needed = 0;  // for the forecast alone
  double forecast = 0;
  ScaleReason reason = ScaleReason::kSteady;
};

class Decider {
 public:
  Decider(const AutoscaleSnapshot& snapshot, const AutoscaleOptions& options) : s_(snapshot), o_(options) {}

  AutoscaleDecision run() {
    Wish wish[kNumUnitKinds];
    for (UnitKind kind : kKinds) wish[idx(kind)] = wish_for(idx(kind));
    if (o_.tied_prefill_per_decode > 0) tie(wish);
    fit_to_budget(wish);
    for (int k = 0; k < kNumUnitKinds; ++k) {
      out_.target[k] = wish[k].units;
      out_.wanted[k] = wish[k].needed;
      out_.forecast_tokens_per_s[k] = wish[k].forecast;
      out_.reason[k] = wish[k].reason;
    }
    finish();
    return out_;
  }

  // Targets as given (a schedule), within limits and budget.
  AutoscaleDecision run_fixed(const int (&units)[kNumUnitKinds]) {
    Wish wish[kNumUnitKinds];
    for (int k = 0; k < kNumUnitKinds; ++k) {
      wish[k].units = wish[k].needed = std::clamp(units[k], o_.units_min[k], o_.units_max[k]);
      wish[k].reason = ScaleReason::kSchedule;
    }
    fit_to_budget(wish);
    for (int k = 0; k < kNumUnitKinds; ++k) {
      out_.target[k] = wish[k].units, out_.wanted[k] = wish[k].needed, out_.reason[k] = wish[k].reason;
    }
    finish();
    return out_;
  }

 private:
  int have(int k) const { return s_.units[k].target(); }
  int kept(int k) const { return have(k) - out_.give_up_starting[k]; }

  int limit(int k, int units) const { return std::clamp(units, o_.units_min[k], o_.units_max[k]); }

  // The demand a set of units must carry at a horizon, its backlog included.
  double demand(int k, double horizon_s) const {
    return forecast_max(s_.history, {static_cast<UnitKind>(k), s_.now_s, *s_.tokens_per_s[k], horizon_s},
                        o_) +
           s_.backlog_tokens[k] / o_.catch_up_s;
  }

  bool stays(int k, bool growing) const {
    const UnitCounts& units = s_.units[k];
    return units.last_change_grew != growing && s_.now_s - units.changed_s < o_.minimum_stay_s;
  }

  Wish wish_for(int k) {
    Wish wish;
    wish.units = limit(k, have(k));
    wish.needed = wish.units;
    if (!s_.tokens_per_s[k]) {
      wish.reason = ScaleReason::kNoData;
      return wish;
    }
    const UnitProfile& unit = o_.unit[k];
    wish.forecast = demand(k, unit.start_s + o_.interval_s);
    const int unlimited = units_for(wish.forecast, unit.tokens_per_s, o_.headroom);
    wish.needed = limit(k, unlimited);
    if (wish.needed > have(k)) {
      wish.units = wish.needed;
      wish.reason = ScaleReason::kGrow;
      hold_starts(k, wish);
    } else if (wish.needed < have(k)) {
      shrink(k, wish);
    }
    if (unlimited != wish.needed && wish.units == have(k)) wish.reason = ScaleReason::kLimit;
    if (slo_unreachable(k, unit)) wish.reason = ScaleReason::kSloUnreachable;
    give_up_starts(k, wish);
    return wish;
  }

  // Leaves only units that would not be missed: what remains must carry the coming load with hysteresis to
  // spare.
  void shrink(int k, Wish& wish) const {
    const UnitProfile& unit = o_.unit[k];
    const double away_s = std::max(unit.drain_s, o_.minimum_stay_s) + unit.start_s;  // until it could be back
    const double coming = demand(k, std::max({o_.look_ahead_s, away_s, unit.start_s + o_.interval_s}));
    const int safe = limit(k, units_for(coming, unit.tokens_per_s, o_.headroom + o_.hysteresis));
    if (safe >= have(k)) {
      wish.reason = ScaleReason::kHysteresis;
    } else if (stays(k, false)) {
      wish.reason = ScaleReason::kMinimumStay;
    } else {
      wish.units = safe;
      wish.reason = ScaleReason::kShrink;
    }
  }

  // Growth waits after a shrink only if what runs can carry the present load; after failed starts it backs
  // off.
  void hold_starts(int k, Wish& wish) const {
    const UnitCounts& units = s_.units[k];
    const double back_off =
        std::min(o_.backoff_s_max, std::ldexp(o_.backoff_s, std::min(units.failed_starts, 20) - 1));
    if (units.failed_starts > 0 && s_.now_s - units.last_failed_start_s < back_off) {
      wish.units = have(k);
      wish.reason = ScaleReason::kBackOff;
    } else if (stays(k, true) && *s_.tokens_per_s[k] <= have(k) * o_.unit[k].tokens_per_s) {
      wish.units = have(k);
      wish.reason = ScaleReason::kMinimumStay;
    }
  }

  void give_up_starts(int k, Wish& wish) {
    const UnitCounts& units = s_.units[k];
    if (units.starting == 0 || s_.now_s - units.starting_since_s < o_.start_timeout_s) return;
    out_.give_up_starting[k] = units.starting;
    wish.units = units.serving;
    wish.reason = ScaleReason::kStartTimedOut;
  }

  // The tied layout moves in groups: both kinds follow the larger need.
  void tie(Wish (&wish)[kNumUnitKinds]) const {
    Wish& prefill = wish[0];
    Wish& decode = wish[1];
    const int per = o_.tied_prefill_per_decode;
    const auto groups = [&](int prefill_units, int decode_units) {
      return std::max(decode_units, (std::max(0, prefill_units - o_.tied_prefill_base) + per - 1) / per);
    };
    const int k = groups(prefill.units, decode.units);
    const int needed = groups(prefill.needed, decode.needed);
    decode.needed = limit(1, needed), prefill.needed = limit(0, per * needed + o_.tied_prefill_base);
    const int before[] = {prefill.units, decode.units};
    // What one kind does follows from both, so a missing measurement of either holds both.
    if (!s_.tokens_per_s[0] || !s_.tokens_per_s[1]) {
      for (int i = 0; i < kNumUnitKinds; ++i) {
        wish[i].units = limit(i, kept(i));
        if (wish[i].reason != ScaleReason::kStartTimedOut) wish[i].reason = ScaleReason::kNoData;
      }
      return;
    }
    const auto waits = [](const Wish& wish) {
      return wish.reason == ScaleReason::kStartTimedOut || wish.reason == ScaleReason::kBackOff;
    };
    if (waits(prefill) || waits(decode)) {  // neither grows while one cannot
      for (int i = 0; i < kNumUnitKinds; ++i) wish[i].units = std::min(wish[i].units, kept(i));
      return;
    }
    decode.units = limit(1, k), prefill.units = limit(0, per * k + o_.tied_prefill_base);
    for (int i = 0; i < kNumUnitKinds; ++i) {
      if (wish[i].units != before[i] && wish[i].reason != ScaleReason::kSloUnreachable) {
        wish[i].reason = wish[i].units > have(i)   ? ScaleReason::kGrow
                         : wish[i].units < have(i) ? ScaleReason::kShrink
                                                   : ScaleReason::kSteady;
      }
    }
  }

  // Growth gets the free nodes only: what drains still occupies its nodes. The kind that falls shorter is
  // served first.
  void fit_to_budget(Wish (&wish)[kNumUnitKinds]) {
    int free_nodes = o_.budget_nodes - nodes_of(s_, o_);
    for (int k = 0; k < kNumUnitKinds; ++k) free_nodes += o_.unit[k].nodes * out_.give_up_starting[k];
    if (o_.tied_prefill_per_decode > 0) return fit_groups(free_nodes, wish);
    int granted[kNumUnitKinds];
    for (int k = 0; k < kNumUnitKinds; ++k) {
      granted[k] = std::min(wish[k].units, kept(k));
    }
    for (;;) {
      int best = -1;
      for (int k = 0; k < kNumUnitKinds; ++k) {
        if (granted[k] >= wish[k].units || o_.unit[k].nodes > free_nodes) continue;
        if (best < 0 || granted[k] * wish[best].units < granted[best] * wish[k].units) best = k;
      }
      if (best < 0) break;
      ++granted[best];
      free_nodes -= o_.unit[best].nodes;
    }
    for (int k = 0; k < kNumUnitKinds; ++k) {
      if (granted[k] == wish[k].units) continue;
      const int missing = wish[k].units - granted[k];
      wish[k].units = granted[k];
      wish[k].reason = ScaleReason::kBudget;
      consider_flip(k, missing, wish);
    }
  }

  // Tied units come in whole groups or not at all.
  void fit_groups(int free_nodes, Wish (&wish)[kNumUnitKinds]) const {
    free_nodes = std::max(0, free_nodes);  // a budget that was lowered below what runs
    const auto growth_nodes = [&] {
      int nodes = 0;
      for (int k = 0; k < kNumUnitKinds; ++k)
        nodes += o_.unit[k].nodes * std::max(0, wish[k].units - kept(k));
      return nodes;
    };
    for (int groups = wish[1].units - 1; growth_nodes() > free_nodes; --groups) {
      const int prefill =
          groups < kept(1) ? kept(0) : limit(0, o_.tied_prefill_per_decode * groups + o_.tied_prefill_base);
      wish[1].units = std::min(wish[1].units, std::max(kept(1), groups));
      wish[0].units = std::min(wish[0].units, std::max(kept(0), prefill));
      wish[0].reason = wish[1].reason = ScaleReason::kBudget;
    }
  }

  // The nodes of the other kind's spare units, whole units only. Spare is what its own shrink test lets go.
  void consider_flip(int to, int missing, Wish (&wish)[kNumUnitKinds]) {
    const int from = other(to);
    if (o_.tied_prefill_per_decode > 0 || !s_.tokens_per_s[from] || s_.units[from].draining > 0) return;
    const int spare = s_.units[from].serving - wish[from].units;
    const int nodes_from = o_.unit[from].nodes, nodes_to = o_.unit[to].nodes;
    const int units_from = std::min(spare, (missing * nodes_to + nodes_from - 1) / nodes_from);
    if (units_from <= 0) return;
    const int units_to = std::min(missing, units_from * nodes_from / nodes_to);
    if (units_to == 0) return;
    out_.flip = {static_cast<UnitKind>(from), units_from, units_to,
                 units_from * nodes_from - units_to * nodes_to};
    wish[from].reason = wish[to].reason = ScaleReason::kFlip;
  }

  void finish() {
    int in_use = nodes_of(s_, o_), wanted_nodes = 0;
    for (int k = 0; k < kNumUnitKinds; ++k) {
      in_use -= o_.unit[k].nodes * out_.give_up_starting[k];
      in_use += o_.unit[k].nodes * std::max(0, out_.target[k] - kept(k));
      wanted_nodes += o_.unit[k].nodes * out_.target[k];
    }
    if (out_.flip.units_to > 0)
      wanted_nodes += out_.flip.units_to * o_.unit[other(idx(out_.flip.from))].nodes;
    for (int k = 0; k < kNumUnitKinds; ++k) {
      const double capacity = out_.target[k] * o_.unit[k].tokens_per_s;
      out_.use[k] = capacity > 0 ? out_.forecast_tokens_per_s[k] / capacity : 0;
    }
    out_.nodes_in_use = in_use;
    out_.nodes_freed = std::max(0, o_.budget_nodes - std::max(in_use, wanted_nodes));
  }

  const AutoscaleSnapshot& s_;
  const AutoscaleOptions& o_;
  AutoscaleDecision out_;
};

}  // namespace

std::string_view unit_kind_name(UnitKind kind) { return kind == UnitKind::kPrefill ? "prefill" : "decode"; }

std::string_view scale_reason_name(ScaleReason reason) {
  constexpr std::string_view kNames[] = {
      "steady",   "grow",   "shrink",  "hysteresis",      "minimum stay",
      "no data",  "budget", "limit",   "slo unreachable", "start timed out",
      "back-off", "flip",   "schedule"};
  return kNames[static_cast<int>(reason)];
}

LoadSummary AutoscaleDecision::use_summary() const { return summarize_loads(use); }

std::string AutoscaleDecision::text() const {
  std::string text;
  for (int k = 0; k < kNumUnitKinds; ++k) {
    text +=
        fmt::format("{}{} {} ({}, wants {})", k == 0 ? "" : ", ", unit_kind_name(static_cast<UnitKind>(k)),
                    target[k], scale_reason_name(reason[k]), wanted[k]);
  }
  if (flip.units_from > 0) {
    text += fmt::format(", flip {} {} -> {} {}", flip.units_from, unit_kind_name(flip.from), flip.units_to,
                        unit_kind_name(static_cast<UnitKind>(other(idx(flip.from)))));
  }
  return text + fmt::format(", {} nodes in use, {} freed", nodes_in_use, nodes_freed);
}

Status validate_rules(const AutoscaleRules& r) {
  if (!(r.headroom >= 0 && r.headroom < 1 && r.hysteresis >= 0 && r.headroom + r.hysteresis < 1)) {
    return invalid_argument("headroom {} and hysteresis {} must be shares that leave capacity", r.headroom,
                            r.hysteresis);
  }
  constexpr std::pair<const char*, double AutoscaleRules::*> kAbove0[] = {
      {"catch_up_s", &AutoscaleRules::catch_up_s},
      {"interval_s", &AutoscaleRules::interval_s},
      {"backoff_s", &AutoscaleRules::backoff_s},
      {"trend_window_s", &AutoscaleRules::trend_window_s},
      {"level_min", &AutoscaleRules::level_min}};
  for (const auto& [name, field] : kAbove0) {
    if (!(r.*field > 0)) return invalid_argument("{}: {} is not above 0", name, r.*field);
  }
  constexpr std::pair<const char*, double AutoscaleRules::*> kNotNegative[] = {
      {"minimum_stay_s", &AutoscaleRules::minimum_stay_s},
      {"look_ahead_s", &AutoscaleRules::look_ahead_s},
      {"start_timeout_s", &AutoscaleRules::start_timeout_s}};
  for (const auto& [name, field] : kNotNegative) {
    if (!(r.*field >= 0)) return invalid_argument("{}: {} is negative", name, r.*field);
  }
  if (!(r.backoff_s_max >= r.backoff_s)) {
    return invalid_argument("backoff_s_max: {} is below backoff_s {}", r.backoff_s_max, r.backoff_s);
  }
  if (!(r.level_min <= 1 && r.level_max >= 1)) {
    return invalid_argument("level_min {} and level_max {} must lie on either side of 1", r.level_min,
                            r.level_max);
  }
  return ok_status();
}

Status validate_autoscale(const AutoscaleOptions& o) {
  int minimum_nodes = 0;
  for (int k = 0; k < kNumUnitKinds; ++k) {
    const std::string_view name = unit_kind_name(static_cast<UnitKind>(k));
    if (o.unit[k].nodes < 1) return invalid_argument("{}.nodes: {} is below 1", name, o.unit[k].nodes);
    if (!(o.unit[k].tokens_per_s > 0)) {
      return invalid_argument("{}.tokens_per_s: {} is not above 0", name, o.unit[k].tokens_per_s);
    }
    if (!(o.unit[k].start_s >= 0 && o.unit[k].drain_s >= 0)) {
      return invalid_argument("{}: start_s {} and drain_s {} must not be negative", name, o.unit[k].start_s,
                              o.unit[k].drain_s);
    }
    if (o.units_min[k] < 0 || o.units_max[k] < o.units_min[k]) {
      return invalid_argument("{}: units_min {} and units_max {} do not fit", name, o.units_min[k],
                              o.units_max[k]);
    }
    minimum_nodes += o.unit[k].nodes * o.units_min[k];
  }
  if (o.budget_nodes < minimum_nodes) {
    return invalid_argument("budget_nodes: {} is below the {} nodes of the smallest fleet", o.budget_nodes,
                            minimum_nodes);
  }
  return validate_rules(o);
}

int units_for(double tokens_per_s, double unit_tokens_per_s, double spare) {
  const double units = std::ceil(tokens_per_s / (unit_tokens_per_s * (1 - spare)) - 1e-9);
  return static_cast<int>(std::clamp(units, 0.0, 1e9));
}

double forecast_max(std::span<const LoadPoint> history, const ForecastAsk& ask, const AutoscaleRules& rules) {
  const int k = idx(ask.kind);
  double max = ask.now_tokens_per_s;
  const double now_yesterday_s = ask.now_s - kDay;
  const std::optional<double> yesterday = value_at(history, k, now_yesterday_s);
  if (!yesterday) {
    // A trend is a guess.
    const double trend = trend_per_s(history, k, ask.now_s - rules.trend_window_s, ask.now_s);
    return std::clamp(ask.now_tokens_per_s + trend * ask.horizon_s, max, rules.level_max * max);
  }
  const double level =
      *yesterday > 0 ? std::clamp(ask.now_tokens_per_s / *yesterday, rules.level_min, rules.level_max) : 1;
  if (const auto last = value_at(history, k, now_yesterday_s + ask.horizon_s))
    max = std::max(max, level * *last);
  // Only yesterday's course is looked at, however long the history.
  const auto is_before = [](double time_s, const LoadPoint& p) { return time_s < p.time_s; };
  auto point = std::upper_bound(history.begin(), history.end(), now_yesterday_s, is_before);
  for (; point != history.end() && point->time_s < now_yesterday_s + ask.horizon_s; ++point)
    max = std::max(max, level * point->tokens_per_s[k]);
  return max;
}

AutoscaleDecision autoscale(const AutoscaleSnapshot& snapshot, const AutoscaleOptions& options) {
  return Decider(snapshot, options).run();
}

AutoscaleDecision schedule_units(std::span<const ScheduleRow> rows, const AutoscaleSnapshot& snapshot,
                                 const AutoscaleOptions& options) {
  CHECK(!rows.empty());
  const int second = static_cast<int>(std::fmod(std::fmod(snapshot.now_s, kDay) + kDay, kDay));
  const ScheduleRow* row = &rows.back();
  for (const ScheduleRow& next : rows) {
    if (next.second_of_day <= second) row = &next;
  }
  return Decider(snapshot, options).run_fixed(row->units);
}

}  // namespace fathom
