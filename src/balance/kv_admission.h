// May one more request start decoding on a rank, so that the rank hardly ever runs out of KV and must retract
// one? Live requests grow by a token per step each and leave at random; the sum is a process that climbs
// steadily and falls in jumps. Its highest later excess over today is (nearly) exponentially distributed,
// which gives the reserve in closed form.
//
// Invariants, by name:
// * overflow_is_rare: a rank as full as admission lets it be, and given nothing more, later exceeds its room
//   with about overflow_probability
// * reserve_is_used: a fifth of the reserve would not do
// * reserve_within_growth: nothing is kept for more than what the requests are expected to generate, and the
//   spread of that
// * held_fits: what is admitted fits with what is there already, reserve or not
// * empty_rank_admits: a rank that holds nothing admits what it can hold, whatever that may grow to: to wait
//   would make no more room
// * no_limit_admits_all: without a capacity everything is admitted
#pragma once

#include <array>
#include <cstdint>

#include "balance/load_ledger.h"

namespace fathom {

struct KvAdmissionOptions {
  int64_t capacity_tokens = 0;  // KV room of a rank; 0: no limit
  // Accepted chance that a rank, as full as admission allows and admitting nothing more, later exceeds its
  // room.
  double overflow_probability = 1e-3;
};

class KvAdmission {
 public:
  explicit KvAdmission(const KvAdmissionOptions& options);

  // Tokens to keep free above what a rank with this load holds. load.tokens: KV held now; load.cost: tokens
  // its requests are still expected to generate.
  int64_t reserve_tokens(const RankLoad& load) const;
  bool admits(const RankLoad& rank, const RankLoad& request) const;
  bool limited() const { return options_.capacity_tokens > 0; }

 private:
  static constexpr int kTableSize = 64;
  static constexpr int kCountsMax = 256;
  static constexpr double kRatioStep = 0.125;

  KvAdmissionOptions options_;
  double log_inverse_;  // ln(1 / overflow_probability)
  // Decay rate of the excess times the mean remaining length, by (KV per request / mean remaining length) in
  // steps.
  std::array<double, kTableSize> decay_;
  // Of a rank's growth, by its requests, what their spread takes at most; falls with the count.
  std::array<double, kCountsMax> spread_;
};

}  // namespace fathom
