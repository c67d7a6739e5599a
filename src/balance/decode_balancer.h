// Which rank decodes a request: equal KV tokens and equal request counts over the ranks of a unit, on
// predicted growth, with admission that makes retraction rare. A unit steps at the speed of its fullest rank,
// so the largest KV and the largest count decide everybody's speed.
//
// Pure: the state is what was charged and reported; no clock, no I/O. A decision allocates nothing.
//
// Invariants, by name:
// * charged_at_once: a placed request counts from the moment it is placed
// * count_capped: kv-capped and fathom place on no rank of a unit above max(fewest, floor(count_cap * mean))
// * counts_first: fathom places on no rank above the mean count where expert traffic dominates
// * within_capacity: with a KV limit no rank is given a request it cannot hold with its reserve
// * closed_units_rest: a unit that does not accept gets nothing
// * list_scheduling: kv-capped and fathom, uncapped: of m ranks the fullest holds at most 2 - 1/m times the
// KV
//   that the best placement of the same requests leaves it; of many, the mean and one request more
// * no_aliasing: round-robin visits every rank of every unit equally often
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "balance/eplb.h"
#include "balance/fit_index.h"
#include "balance/kv_admission.h"
#include "balance/load_ledger.h"
#include "balance/min_tree.h"
#include "base/rng.h"
#include "base/status.h"

namespace fathom {

enum class DecodePolicy {
  kRandom,           // "random": any rank
  kRoundRobin,       // "round-robin": units in turn, and each unit's ranks in turn
  kLeastRequests,    // "least-requests"
  kLeastRequestsKv,  // "least-requests-kv": ties go to the rank with less KV
  kKvCount,          // "kv-count": KV and 0.35 times the count, each relative to its mean
  kP2cKv,            // "p2c-kv": the one with less KV of two ranks drawn at random
  kKvCapped,         // "kv-capped": least KV among ranks whose count is at most 1.15 times the mean
  kFathom,           // "fathom": see DecodeBalancerOptions::fit_level
};
Result<DecodePolicy> parse_decode_policy(std::string_view name);
std::string_view decode_policy_name(DecodePolicy policy);

struct DecodeBalancerOptions {
  DecodePolicy policy = DecodePolicy::kFathom;
  // kv-capped: largest count on a rank over the unit's mean.
  double count_cap = 1.15;
  // fathom fills ranks up to a level instead of raising the emptiest: a request goes to the fullest rank that
  // it leaves at or below fit_level times the mean KV. Most ranks then stand just under the level, and the
  // few low ones are where the next long prompt lands without becoming everybody's barrier. Measured against
  // kv-capped on the published lengths: KV max/mean 1.02 for 1.10. Where a request fits nowhere it goes to
  // the emptiest rank.
  double fit_level = 1.01;
  double fit_count_cap = 1.03;
  // Attention, which KV decides, is what fathom levels first. Where expert traffic dominates, counts go
  // first: only ranks at or below the unit's mean count are candidates. What a request adds to its own rank's
  // step beside attention (its transfers as far as ranks wait for their own, its projections) is given as the
  // KV tokens whose attention takes as long; it dominates at traffic_dominates times the attention of the
  // unit's mean request, from where counts first was the faster in trials at 1,000 to 12,500 KV tokens a
  // request: below that the KV it unbalances costs more, as counts stay within fit_count_cap anyway. The
  // default is V3's on an H800, 0.45 us a request and 0.48 ns a KV token in a micro-batch, with transfers
  // that take the mean rank's time.
  int64_t request_kv_tokens = 940;
  double traffic_dominates = 6;
  // fathom compares KV as it will be when the request's first step runs: tokens each live request gains until
  // then.
  int64_t horizon_tokens = 4;
  KvAdmissionOptions admission;  // used by every policy when capacity_tokens > 0
  uint64_t seed = 1;             // random and p2c-kv
  // This balancer among those over the same ranks: shifts tie-breaking so that they do not herd.
  int balancer_idx = 0;
  int num_balancers = 1;
};

// What is known of a request when it is placed.
struct DecodeAsk {
  int64_t kv_tokens = 0;      // KV it brings: prompt and tokens generated so far
  int64_t growth_tokens = 0;  // tokens it is expected to generate yet (at most its own limit)

  RankLoad load() const { return {1, kv_tokens, growth_tokens}; }
};

// max/mean of the two objectives over the ranks of a unit.
struct DecodeBalance {
  LoadSummary kv;
  LoadSummary requests;
};

struct DecodePlacement {
  RankRef rank;
  uint64_t dispatch = 0;  // the number the worker acknowledges
};

class DecodeBalancer {
 public:
  explicit DecodeBalancer(const DecodeBalancerOptions& options);

  int add_unit(int num_ranks);
  // Closed units (draining, lost) keep their loads and get nothing new.
  void set_accepting(int unit, bool accepting);

  // The rank for a request, charged at once; nullopt when no accepting unit has room (the caller keeps it
  // queued).
  std::optional<DecodePlacement> place(const DecodeAsk& ask);
  // place() in two halves, for callers that may still change their mind.
  std::optional<RankRef> pick(const DecodeAsk& ask);
  uint64_t charge(RankRef rank, const DecodeAsk& ask);

  void cancel(int unit, uint64_t dispatch);
  void release(RankRef rank, const RankLoad& load);
  ReportOutcome report(const LoadReport& report);

  const LoadLedger& ledger() const { return ledger_; }
  DecodeBalance balance(int unit) const;

 private:
  struct Unit {
    Unit(int num_ranks, int offset) : tree(num_ranks, offset), fit(num_ranks) {}
    bool accepting = true;
    bool stale = true;  // the tree's keys are older than the loads
    int64_t cap = 0;    // largest count that is still a candidate
    int next_rank = 0;  // round-robin
    MinTree tree;       // every policy that takes the least of a key
    FitIndex fit;       // fathom
  };

  bool uses_index() const;
  bool admits(int unit, int rank, const RankLoad& ask) const;
  int emptiest_unit() const;
  void note_fill(int unit);
  void readmit_passed_over();
  std::optional<int> pick_rank(int unit, const RankLoad& ask);
  int pick_by_scan(int unit);
  int pick_kv_count(int unit) const;
  std::optional<int> pick_fit(int unit, const RankLoad& ask);
  std::optional<RankRef> pick_by_unit(const RankLoad& ask);
  std::optional<RankRef> any_with_room(const RankLoad& ask) const;
  int64_t count_cap(int unit) const;
  bool counts_first(const RankLoad& total) const;
  int64_t key(const Unit& unit, const RankLoad& load) const;
  void touch(RankRef rank);
  int64_t predicted_kv(const RankLoad& load) const;
  void refresh(int unit);

  const DecodeBalancerOptions options_;
  const KvAdmission admission_;
  LoadLedger ledger_;
  std::vector<Unit> units_;
  std::vector<int> passed_over_;  // units found full within a decision; reserved, so nothing allocates
  std::vector<double> fill_;      // [units] live requests per rank; infinite for units that do not accept
  int next_unit_ = 0;             // round-robin
  Rng rng_;
};

}  // namespace fathom
