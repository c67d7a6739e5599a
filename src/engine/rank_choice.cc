// The balancers behind one call: a report of the true loads, then a pick.
#include "engine/rank_choice.h"

#include <limits>
#include <memory>

#include "balance/decode_balancer.h"
#include "balance/prefill_balancer.h"
#include "base/check.h"

namespace fathom {
namespace {

template <typename Balancer>
struct Reported {
  template <typename Options>
  Reported(const Options& options, int32_t num_ranks) : balancer(options) {
    CHECK(balancer.add_unit(num_ranks) == 0);
  }
  void report(std::span<const RankLoad> loads) {
    // Nothing is charged here, so every report is the whole truth.
    const ReportOutcome outcome = balancer.report(
        {.sequence = ++sequence, .acked = std::numeric_limits<uint64_t>::max() / 2, .loads = loads});
    CHECK(outcome == ReportOutcome::kApplied);
  }
  Balancer balancer;
  uint64_t sequence = 0;
};

int32_t emptiest_with_room(std::span<const RankLoad> loads, int32_t max_requests) {
  int32_t best = kNoRank;
  for (size_t rank = 0; rank < loads.size(); ++rank) {
    if (loads[rank].requests >= max_requests) continue;
    if (best == kNoRank || loads[rank].tokens < loads[static_cast<size_t>(best)].tokens) {
      best = static_cast<int32_t>(rank);
    }
  }
  return best;
}

}  // namespace

ChooseRank make_prefill_choice(int32_t num_ranks, const PrefillCost& cost) {
  auto state = std::make_shared<Reported<PrefillBalancer>>(PrefillBalancerOptions{.cost = cost}, num_ranks);
  return [state](std::span<const RankLoad> loads, const RankLoad& request) -> int32_t {
    state->report(loads);
    const auto choice = state->balancer.pick({.prompt_tokens = request.tokens});
    return choice ? choice->rank.rank : kNoRank;
  };
}

ChooseRank make_decode_choice(const DecodeChoiceOptions& options) {
  DecodeBalancerOptions policy;
  policy.request_kv_tokens = options.request_kv_tokens;
  auto state = std::make_shared<Reported<DecodeBalancer>>(policy, options.num_ranks);
  return [state, max_requests = options.max_requests](std::span<const RankLoad> loads,
                                                      const RankLoad& request) -> int32_t {
    state->report(loads);
    const auto rank = state->balancer.pick({.kv_tokens = request.tokens, .growth_tokens = request.cost});
    if (rank && loads[static_cast<size_t>(rank->rank)].requests < max_requests) return rank->rank;
    // The policy knows no hard limit on a rank's count.
    return emptiest_with_room(loads, max_requests);
  };
}

}  // namespace fathom
