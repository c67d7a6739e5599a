// Which rank prefills a prompt: equal core-attention work and equal input tokens over ranks, with cached
// prefixes counted as the work they save less the time to load them. Every dispatch is charged at once in
// tokens and predicted cost.
//
// A unit's ranks meet at every layer, so a prompt waits for the mean of its unit at least, and for its rank's
// queue; the choice minimises the predicted time until the prompt is done, and affinity never beats a queue
// it does not shorten.
//
// Invariants, by name:
//   charged_at_once     tokens and cost, not requests, from the moment of dispatch (case C3)
//   misses_by_load      prompts nobody has cached go by load alone, whatever the ranks' caches hold (case C1)
//   hits_win_ties       at equal loads the longest cached prefix wins, by any margin (case C5)
//   closed_units_rest   a unit that does not accept gets nothing
//   least_finish        fathom: no accepting rank is predicted to end the prompt sooner than the chosen one
//   list_scheduling     fathom: the busiest of m ranks has at most 2 - 1/m times the work that the best
//                       placement of the same prompts leaves it, 4/3 - 1/(3m) if the longest came first; with
//                       prefixes in memory at most the sum of what each prompt costs where it costs least
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "balance/eplb.h"
#include "balance/load_ledger.h"
#include "balance/min_tree.h"
#include "balance/prefill_cut.h"
#include "base/rng.h"
#include "base/status.h"

namespace fathom {

enum class PrefillPolicy {
  kRandom,         // "random"
  kRoundRobin,     // "round-robin": units in turn, and each unit's ranks in turn
  kLeastRequests,  // "least-requests"
  kLeastTokens,    // "least-tokens"
  kFathom,         // "fathom"
};
Result<PrefillPolicy> parse_prefill_policy(std::string_view name);
std::string_view prefill_policy_name(PrefillPolicy policy);

struct PrefillBalancerOptions {
  PrefillPolicy policy = PrefillPolicy::kFathom;
  PrefillCost cost;
  uint64_t seed = 1;     // random
  int balancer_idx = 0;  // this balancer among those over the same ranks
  int num_balancers = 1;
};

// A prefix of the prompt in a rank's own memory.
struct PrefixMatch {
  RankRef rank;
  int64_t tokens = 0;
};

struct PrefillAsk {
  int64_t prompt_tokens = 0;
  int64_t stored_tokens = 0;             // prefix any rank can read from the external store
  std::span<const PrefixMatch> matches;  // at most one per rank
};

struct PrefillChoice {
  RankRef rank;
  int64_t cached_tokens = 0;  // what the rank need not compute
  int64_t loaded_tokens = 0;  // of these, to be read from the store
  RankLoad load;              // what a charge counts
};

struct PrefillPlacement {
  PrefillChoice choice;
  uint64_t dispatch = 0;  // the number the worker acknowledges
};

struct PrefillBalance {
  LoadSummary tokens;
  LoadSummary attention_pairs;
  LoadSummary cost_ns;
};

class PrefillBalancer {
 public:
  explicit PrefillBalancer(const PrefillBalancerOptions& options);

  int add_unit(int num_ranks);
  void set_accepting(int unit, bool accepting);
  bool accepting(int unit) const { return units_[unit].accepting; }
  // Time the unit's running forward still takes, in ns per layer.
  void set_residual(int unit, int64_t residual_ns);

  // nullopt only when no unit accepts.
  std::optional<PrefillPlacement> place(const PrefillAsk& ask);
  std::optional<PrefillChoice> pick(const PrefillAsk& ask);
  uint64_t charge(const PrefillChoice& choice);

  void cancel(int unit, uint64_t dispatch);
  void release(RankRef rank, const RankLoad& load);
  // Loads of a report: prompts not finished, their tokens still to compute, and the cost of these.
  ReportOutcome report(const LoadReport& report);

  const LoadLedger& ledger() const { return ledger_; }
  const PrefillCost& cost() const { return options_.cost; }
  PrefillBalance balance(int unit) const;

  // Predicted wait (ns per layer) before a rank gets to new work; and the least of them over all accepting
  // ranks.
  int64_t wait_ns(RankRef rank) const;
  int64_t wait_ns_min() const { return unit_tree_.best_key(); }
  // The least wait within a unit, MinTree::kExcluded when it does not accept (policy fathom only).
  int64_t unit_wait_ns(int unit) const { return score_[unit]; }
  // The choice if the prompt went to this rank with so much of it in the rank's memory.
  PrefillChoice choice_at(RankRef rank, int64_t prompt_tokens, int64_t stored_tokens,
                          int64_t matched_tokens) const;
  // The choice's own load time and work; with the rank's wait, what fathom minimises.
  int64_t own_ns(const PrefillChoice& choice) const {
    return options_.cost.load_ns(choice.loaded_tokens) + choice.load.cost;
  }
  int64_t finish_ns(const PrefillChoice& choice) const;

 private:
  struct Unit {
    Unit(int num_ranks, int offset) : tree(num_ranks, offset) {}
    bool accepting = true;
    int64_t residual_ns = 0;
    int next_rank = 0;  // round-robin
    MinTree tree;
  };

  int64_t key(const RankLoad& load) const;
  void touch(RankRef rank);
  void rescore(int unit);

  const PrefillBalancerOptions options_;
  LoadLedger ledger_;
  std::vector<Unit> units_;
  // By unit, the least wait (or count, or tokens) any of its ranks offers; closed units are excluded.
  MinTree unit_tree_{1};
  std::vector<int64_t> score_;  // [units] the same, flat
  int next_unit_ = 0;
  Rng rng_;
};

}  // namespace fathom
