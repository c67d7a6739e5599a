// One tournament tree per unit over its ranks' keys, and one over the units by what their best rank offers.
#include "balance/prefill_balancer.h"

#include <algorithm>

#include "balance/load_blind.h"

namespace fathom {
namespace {

constexpr PolicyNames<PrefillPolicy, 5> kPolicyNames = {{
    {"random", PrefillPolicy::kRandom},
    {"round-robin", PrefillPolicy::kRoundRobin},
    {"least-requests", PrefillPolicy::kLeastRequests},
    {"least-tokens", PrefillPolicy::kLeastTokens},
    {"fathom", PrefillPolicy::kFathom},
}};

}  // namespace

Result<PrefillPolicy> parse_prefill_policy(std::string_view name) {
  return policy_of(name, "prefill", kPolicyNames);
}

std::string_view prefill_policy_name(PrefillPolicy policy) { return name_of(policy, kPolicyNames); }

PrefillBalancer::PrefillBalancer(const PrefillBalancerOptions& options)
    : options_(options), rng_(hash_u64(options.seed, options.balancer_idx)) {
  CHECK(options.num_balancers >= 1 && options.balancer_idx >= 0 &&
        options.balancer_idx < options.num_balancers);
  CHECK(options.cost.ns_per_token > 0 && options.cost.ns_per_pair > 0 && options.cost.load_ns_per_token >= 0);
}

int PrefillBalancer::add_unit(int num_ranks) {
  const int unit = ledger_.add_unit(num_ranks);
  units_.emplace_back(num_ranks, num_ranks * options_.balancer_idx / options_.num_balancers);
  for (int r = 0; r < num_ranks; ++r) units_[unit].tree.set_leaf(r, 0);
  units_[unit].tree.rebuild();
  score_.push_back(0);
  const int num_units = static_cast<int>(units_.size());
  unit_tree_ = MinTree(num_units, num_units * options_.balancer_idx / options_.num_balancers);
  for (int u = 0; u < num_units; ++u) rescore(u);
  return unit;
}

void PrefillBalancer::set_accepting(int unit, bool accepting) {
  units_[unit].accepting = accepting;
  rescore(unit);
}

void PrefillBalancer::set_residual(int unit, int64_t residual_ns) {
  units_[unit].residual_ns = std::max<int64_t>(0, residual_ns);
  rescore(unit);
}

int64_t PrefillBalancer::key(const RankLoad& load) const {
  switch (options_.policy) {
    case PrefillPolicy::kLeastRequests:
      return load.requests;
    case PrefillPolicy::kLeastTokens:
      return load.tokens;
    default:
      return load.cost;
  }
}

void PrefillBalancer::rescore(int unit_idx) {
  const Unit& unit = units_[unit_idx];
  int64_t score = MinTree::kExcluded;
  if (unit.accepting) {
    score = options_.policy == PrefillPolicy::kFathom ? wait_ns({unit_idx, unit.tree.best()})
                                                      : unit.tree.best_key();
  }
  score_[unit_idx] = score;
  unit_tree_.set(unit_idx, score);
}

void PrefillBalancer::touch(RankRef rank) {
  units_[rank.unit].tree.set(rank.rank, key(ledger_.loads(rank.unit)[rank.rank]));
  rescore(rank.unit);
}

int64_t PrefillBalancer::wait_ns(RankRef rank) const {
  const int64_t mean = ledger_.total(rank.unit).cost / ledger_.num_ranks(rank.unit);
  return units_[rank.unit].residual_ns + std::max(mean, ledger_.loads(rank.unit)[rank.rank].cost);
}

PrefillChoice PrefillBalancer::choice_at(RankRef rank, int64_t prompt_tokens, int64_t stored_tokens,
                                         int64_t matched_tokens) const {
  // The last token is always computed: its hidden state gives the first output token.
  const int64_t matched = std::clamp<int64_t>(matched_tokens, 0, prompt_tokens - 1);
  const int64_t stored = std::clamp<int64_t>(stored_tokens, 0, prompt_tokens - 1);
  PrefillChoice choice{rank, matched, 0, {}};
  // Read from the store what it has beyond the rank's memory, if that is cheaper than computing it.
  if (stored > matched) {
    const int64_t load = options_.cost.load_ns(stored - matched);
    if (load < options_.cost.cost_ns(stored - matched, matched)) {
      choice.cached_tokens = stored;
      choice.loaded_tokens = stored - matched;
    }
  }
  const int64_t left = prompt_tokens - choice.cached_tokens;
  choice.load = {1, left, options_.cost.cost_ns(left, choice.cached_tokens)};
  return choice;
}

int64_t PrefillBalancer::finish_ns(const PrefillChoice& choice) const {
  return wait_ns(choice.rank) + own_ns(choice);
}

std::optional<PrefillChoice> PrefillBalancer::pick(const PrefillAsk& ask) {
  CHECK(ask.prompt_tokens > 0);
  std::optional<RankRef> rank;
  if (options_.policy == PrefillPolicy::kRandom) {
    rank = pick_rank_uniformly(ledger_, units_, rng_);
  } else if (options_.policy == PrefillPolicy::kRoundRobin) {
    rank = pick_rank_in_turn(ledger_, units_, next_unit_);
  } else if (!units_.empty() && unit_tree_.has_best()) {
    rank = RankRef{unit_tree_.best(), units_[unit_tree_.best()].tree.best()};
  }
  if (!rank) return std::nullopt;
  // Whatever chose the rank, what lies in its memory is used.
  int64_t matched = 0;
  for (const PrefixMatch& match : ask.matches) {
    if (match.rank == *rank) matched = match.tokens;
  }
  PrefillChoice best = choice_at(*rank, ask.prompt_tokens, ask.stored_tokens, matched);
  if (options_.policy != PrefillPolicy::kFathom) return best;
  int64_t best_finish = finish_ns(best);
  for (const PrefixMatch& match : ask.matches) {
    if (!units_[match.rank.unit].accepting) continue;
    const PrefillChoice choice = choice_at(match.rank, ask.prompt_tokens, ask.stored_tokens, match.tokens);
    const int64_t finish = finish_ns(choice);
    if (finish < best_finish) best = choice, best_finish = finish;
  }
  return best;
}

uint64_t PrefillBalancer::charge(const PrefillChoice& choice) {
  const uint64_t dispatch = ledger_.charge(choice.rank, choice.load);
  touch(choice.rank);
  return dispatch;
}

std::optional<PrefillPlacement> PrefillBalancer::place(const PrefillAsk& ask) {
  const std::optional<PrefillChoice> choice = pick(ask);
  if (!choice) return std::nullopt;
  return PrefillPlacement{*choice, charge(*choice)};
}

void PrefillBalancer::cancel(int unit, uint64_t dispatch) {
  ledger_.cancel(unit, dispatch);
  const std::span<const RankLoad> loads = ledger_.loads(unit);
  for (int r = 0; r < static_cast<int>(loads.size()); ++r) units_[unit].tree.set_leaf(r, key(loads[r]));
  units_[unit].tree.rebuild();
  rescore(unit);
}

void PrefillBalancer::release(RankRef rank, const RankLoad& load) {
  ledger_.release(rank, load);
  touch(rank);
}

ReportOutcome PrefillBalancer::report(const LoadReport& report) {
  const ReportOutcome outcome = ledger_.apply(report);
  if (outcome != ReportOutcome::kApplied) return outcome;
  Unit& unit = units_[report.unit];
  const std::span<const RankLoad> loads = ledger_.loads(report.unit);
  for (int r = 0; r < static_cast<int>(loads.size()); ++r) unit.tree.set_leaf(r, key(loads[r]));
  unit.tree.rebuild();
  rescore(report.unit);
  return outcome;
}

PrefillBalance PrefillBalancer::balance(int unit) const {
  const std::span<const RankLoad> loads = ledger_.loads(unit);
  std::vector<double> tokens, pairs, cost;
  for (const RankLoad& load : loads) {
    tokens.push_back(static_cast<double>(load.tokens));
    pairs.push_back(options_.cost.pairs_of(load));
    cost.push_back(static_cast<double>(load.cost));
  }
  return {summarize_loads(tokens), summarize_loads(pairs), summarize_loads(cost)};
}

}  // namespace fathom
