// Unit first (fewest live requests per rank), then rank by the policy's key from a tournament tree per unit.
// The tree is rebuilt lazily after a report or when the count cap moves, and patched in O(log n) otherwise.
#include "balance/decode_balancer.h"

#include <cmath>

#include "balance/load_blind.h"

namespace fathom {
namespace {

constexpr PolicyNames<DecodePolicy, 8> kPolicyNames = {{
    {"random", DecodePolicy::kRandom},
    {"round-robin", DecodePolicy::kRoundRobin},
    {"least-requests", DecodePolicy::kLeastRequests},
    {"least-requests-kv", DecodePolicy::kLeastRequestsKv},
    {"kv-count", DecodePolicy::kKvCount},
    {"p2c-kv", DecodePolicy::kP2cKv},
    {"kv-capped", DecodePolicy::kKvCapped},
    {"fathom", DecodePolicy::kFathom},
}};

// Weight of the relative count in kv-count.
constexpr double kCountWeight = 0.35;
// Bits for KV tokens below the count in the key of least-requests-kv.
constexpr int kTieBits = 28;

}  // namespace

Result<DecodePolicy> parse_decode_policy(std::string_view name) {
  return policy_of(name, "decode", kPolicyNames);
}

std::string_view decode_policy_name(DecodePolicy policy) { return name_of(policy, kPolicyNames); }

DecodeBalancer::DecodeBalancer(const DecodeBalancerOptions& options)
    : options_(options), admission_(options.admission), rng_(hash_u64(options.seed, options.balancer_idx)) {
  CHECK(options.count_cap >= 1 && options.fit_count_cap >= 1 && options.fit_level >= 0 &&
        options.horizon_tokens >= 0);
  CHECK(options.request_kv_tokens >= 0 && options.traffic_dominates > 0);
  CHECK(options.num_balancers >= 1 && options.balancer_idx >= 0 &&
        options.balancer_idx < options.num_balancers);
}

int DecodeBalancer::add_unit(int num_ranks) {
  const int unit = ledger_.add_unit(num_ranks);
  units_.emplace_back(num_ranks, num_ranks * options_.balancer_idx / options_.num_balancers);
  fill_.push_back(0);
  passed_over_.reserve(units_.size());
  return unit;
}

bool DecodeBalancer::admits(int unit, int rank, const RankLoad& ask) const {
  return admission_.admits(ledger_.loads(unit)[rank], ask);
}

bool DecodeBalancer::uses_index() const {
  switch (options_.policy) {
    case DecodePolicy::kLeastRequests:
    case DecodePolicy::kLeastRequestsKv:
    case DecodePolicy::kKvCapped:
    case DecodePolicy::kFathom:
      return true;
    default:
      return false;
  }
}

int64_t DecodeBalancer::count_cap(int unit) const {
  // The floor is never below the fewest, a whole number at most the mean, as caps are at least 1.
  const RankLoad& total = ledger_.total(unit);
  double cap = options_.count_cap;
  if (options_.policy == DecodePolicy::kFathom) cap = counts_first(total) ? 1 : options_.fit_count_cap;
  const double mean = static_cast<double>(total.requests) / ledger_.num_ranks(unit);
  return static_cast<int64_t>(std::floor(cap * mean));
}

bool DecodeBalancer::counts_first(const RankLoad& total) const {
  return options_.traffic_dominates * static_cast<double>(total.tokens) <
         static_cast<double>(options_.request_kv_tokens) * static_cast<double>(total.requests);
}

int64_t DecodeBalancer::predicted_kv(const RankLoad& load) const {
  return load.tokens + std::min(load.cost, options_.horizon_tokens * load.requests);
}

int64_t DecodeBalancer::key(const Unit& unit, const RankLoad& load) const {
  switch (options_.policy) {
    case DecodePolicy::kLeastRequests:
      return load.requests;
    case DecodePolicy::kLeastRequestsKv:
      return (load.requests << kTieBits) | std::min(load.tokens, (int64_t{1} << kTieBits) - 1);
    default:
      return load.requests > unit.cap ? MinTree::kExcluded : load.tokens;
  }
}

void DecodeBalancer::refresh(int unit_idx) {
  Unit& unit = units_[unit_idx];
  unit.cap = count_cap(unit_idx);
  const std::span<const RankLoad> loads = ledger_.loads(unit_idx);
  const int n = static_cast<int>(loads.size());
  if (options_.policy == DecodePolicy::kFathom) {
    unit.fit.reset(std::max<int64_t>(1, 2 * predicted_kv(ledger_.total(unit_idx)) / n / FitIndex::kBuckets));
    // From the far end, so that the lowest rank, counted from this balancer's offset, heads its bucket.
    for (int i = n - 1; i >= 0; --i) {
      const int r = (i + n * options_.balancer_idx / options_.num_balancers) % n;
      if (loads[r].requests <= unit.cap) unit.fit.set(r, predicted_kv(loads[r]));
    }
  } else {
    for (int r = 0; r < n; ++r) unit.tree.set_leaf(r, key(unit, loads[r]));
    unit.tree.rebuild();
  }
  unit.stale = false;
}

void DecodeBalancer::touch(RankRef rank) {
  note_fill(rank.unit);
  Unit& unit = units_[rank.unit];
  if (unit.stale || !uses_index()) return;
  const RankLoad& load = ledger_.loads(rank.unit)[rank.rank];
  if (count_cap(rank.unit) != unit.cap) {
    unit.stale = true;
  } else if (options_.policy != DecodePolicy::kFathom) {
    unit.tree.set(rank.rank, key(unit, load));
  } else if (load.requests <= unit.cap) {
    unit.fit.set(rank.rank, predicted_kv(load));
  } else {
    unit.fit.erase(rank.rank);
  }
}

// Live requests per rank of every unit lie side by side, so that choosing a unit reads one or two cache
// lines.
void DecodeBalancer::note_fill(int unit) {
  fill_[unit] = units_[unit].accepting
                    ? static_cast<double>(ledger_.total(unit).requests) / ledger_.num_ranks(unit)
                    : INFINITY;
}

void DecodeBalancer::set_accepting(int unit, bool accepting) {
  units_[unit].accepting = accepting;
  note_fill(unit);
}

int DecodeBalancer::emptiest_unit() const {
  int best = -1;
  double least = INFINITY;
  for (int u = 0; u < static_cast<int>(fill_.size()); ++u) {
    if (fill_[u] < least) least = fill_[u], best = u;
  }
  return best;
}

int DecodeBalancer::pick_kv_count(int unit) const {
  const std::span<const RankLoad> loads = ledger_.loads(unit);
  const RankLoad& total = ledger_.total(unit);
  // kv / mean_kv + 0.35 count / mean_count, times total_kv / num_ranks.
  const double per_request = total.requests > 0 ? kCountWeight * static_cast<double>(total.tokens) /
                                                      static_cast<double>(total.requests)
                                                : 1;
  int best = 0;
  double best_cost = INFINITY;
  for (int r = 0; r < static_cast<int>(loads.size()); ++r) {
    const double cost =
        static_cast<double>(loads[r].tokens) + per_request * static_cast<double>(loads[r].requests);
    if (cost < best_cost) best_cost = cost, best = r;
  }
  return best;
}

// The fullest rank the request leaves at or below the level, else the emptiest; nullopt when neither admits
// it.
std::optional<int> DecodeBalancer::pick_fit(int unit_idx, const RankLoad& ask) {
  const Unit& unit = units_[unit_idx];
  const double mean =
      static_cast<double>(predicted_kv(ledger_.total(unit_idx))) / ledger_.num_ranks(unit_idx);
  const int fitting = unit.fit.largest_at_most(static_cast<int64_t>(options_.fit_level * mean) - ask.tokens);
  if (fitting >= 0 && admits(unit_idx, fitting, ask)) return fitting;
  const int emptiest = unit.fit.smallest();
  if (emptiest >= 0 && admits(unit_idx, emptiest, ask)) return emptiest;
  return std::nullopt;
}

std::optional<int> DecodeBalancer::pick_rank(int unit, const RankLoad& ask) {
  if (uses_index() && units_[unit].stale) refresh(unit);
  if (options_.policy == DecodePolicy::kFathom) return pick_fit(unit, ask);
  const int rank = uses_index() ? units_[unit].tree.best() : pick_by_scan(unit);
  return admits(unit, rank, ask) ? std::optional<int>(rank) : std::nullopt;
}

int DecodeBalancer::pick_by_scan(int unit) {
  if (options_.policy == DecodePolicy::kKvCount) return pick_kv_count(unit);
  // Two different ranks where there are two.
  const std::span<const RankLoad> loads = ledger_.loads(unit);
  const int n = static_cast<int>(loads.size());
  const int a = static_cast<int>(rng_.next_below(n));
  const int b = n > 1 ? (a + 1 + static_cast<int>(rng_.next_below(n - 1))) % n : a;
  return loads[b].tokens < loads[a].tokens ? b : a;
}

// Where a policy that looks at one rank only met a full one: the rank with least KV that has room.
std::optional<RankRef> DecodeBalancer::any_with_room(const RankLoad& ask) const {
  std::optional<RankRef> best;
  int64_t best_tokens = INT64_MAX;
  for (int u = 0; u < ledger_.num_units(); ++u) {
    if (!units_[u].accepting) continue;
    const std::span<const RankLoad> loads = ledger_.loads(u);
    for (int r = 0; r < static_cast<int>(loads.size()); ++r) {
      if (loads[r].tokens >= best_tokens || !admission_.admits(loads[r], ask)) continue;
      best = RankRef{u, r};
      best_tokens = loads[r].tokens;
    }
  }
  return best;
}

std::optional<RankRef> DecodeBalancer::pick(const DecodeAsk& ask) {
  const RankLoad load = ask.load();
  if (options_.policy == DecodePolicy::kRandom || options_.policy == DecodePolicy::kRoundRobin) {
    const auto rank = options_.policy == DecodePolicy::kRandom
                          ? pick_rank_uniformly(ledger_, units_, rng_)
                          : pick_rank_in_turn(ledger_, units_, next_unit_);
    if (!rank || admits(rank->unit, rank->rank, load)) return rank;
    return any_with_room(load);
  }
  return pick_by_unit(load);
}

// The emptiest unit first; where its choice has no room, the next emptiest.
std::optional<RankRef> DecodeBalancer::pick_by_unit(const RankLoad& ask) {
  for (int unit = emptiest_unit(); unit >= 0; unit = emptiest_unit()) {
    if (const std::optional<int> rank = pick_rank(unit, ask)) {
      readmit_passed_over();
      return RankRef{unit, *rank};
    }
    fill_[unit] = INFINITY;  // out of this decision
    passed_over_.push_back(unit);
  }
  readmit_passed_over();
  const bool stops_here =
      options_.policy == DecodePolicy::kKvCapped || options_.policy == DecodePolicy::kFathom;
  return stops_here ? std::nullopt : any_with_room(ask);
}

void DecodeBalancer::readmit_passed_over() {
  for (int unit : passed_over_) note_fill(unit);
  passed_over_.clear();
}

uint64_t DecodeBalancer::charge(RankRef rank, const DecodeAsk& ask) {
  const uint64_t dispatch = ledger_.charge(rank, ask.load());
  touch(rank);
  return dispatch;
}

std::optional<DecodePlacement> DecodeBalancer::place(const DecodeAsk& ask) {
  const std::optional<RankRef> rank = pick(ask);
  if (!rank) return std::nullopt;
  return DecodePlacement{*rank, charge(*rank, ask)};
}

void DecodeBalancer::cancel(int unit, uint64_t dispatch) {
  ledger_.cancel(unit, dispatch);
  units_[unit].stale = true;
  note_fill(unit);
}

void DecodeBalancer::release(RankRef rank, const RankLoad& load) {
  ledger_.release(rank, load);
  touch(rank);
}

ReportOutcome DecodeBalancer::report(const LoadReport& report) {
  const ReportOutcome outcome = ledger_.apply(report);
  if (outcome != ReportOutcome::kApplied) return outcome;
  units_[report.unit].stale = true;
  note_fill(report.unit);
  return outcome;
}

DecodeBalance DecodeBalancer::balance(int unit) const {
  DecodeBalance balance;
  const std::span<const RankLoad> loads = ledger_.loads(unit);
  for (const RankLoad& load : loads) {
    balance.kv.max_load = std::max(balance.kv.max_load, static_cast<double>(load.tokens));
    balance.requests.max_load = std::max(balance.requests.max_load, static_cast<double>(load.requests));
  }
  const double n = static_cast<double>(loads.size());
  balance.kv.mean_load = static_cast<double>(ledger_.total(unit).tokens) / n;
  balance.requests.mean_load = static_cast<double>(ledger_.total(unit).requests) / n;
  return balance;
}

}  // namespace fathom
