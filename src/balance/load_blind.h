// What the prefill and the decode balancer share: names of policies, and the two policies that do not look at
// loads.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "balance/load_ledger.h"
#include "base/rng.h"
#include "base/status.h"

namespace fathom {

template <typename Policy, size_t kCount>
using PolicyNames = std::array<std::pair<std::string_view, Policy>, kCount>;

template <typename Policy, size_t kCount>
Result<Policy> policy_of(std::string_view name, std::string_view phase,
                         const PolicyNames<Policy, kCount>& names) {
  std::string known;
  for (const auto& [policy_name, policy] : names) {
    if (policy_name == name) return policy;
    known += known.empty() ? "" : ", ";
    known += policy_name;
  }
  return invalid_argument("{} policy '{}' is none of {}", phase, name, known);
}

template <typename Policy, size_t kCount>
std::string_view name_of(Policy policy, const PolicyNames<Policy, kCount>& names) {
  for (const auto& [name, value] : names) {
    if (value == policy) return name;
  }
  return "?";
}

// Any rank of a unit that accepts, each as likely as another.
template <typename Unit>
std::optional<RankRef> pick_rank_uniformly(const LoadLedger& ledger, const std::vector<Unit>& units,
                                           Rng& rng) {
  int64_t num_open = 0;
  for (int u = 0; u < ledger.num_units(); ++u) num_open += units[u].accepting ? ledger.num_ranks(u) : 0;
  if (num_open == 0) return std::nullopt;
  int64_t at = static_cast<int64_t>(rng.next_below(num_open));
  for (int u = 0;; ++u) {
    if (!units[u].accepting) continue;
    if (at < ledger.num_ranks(u)) return RankRef{u, static_cast<int32_t>(at)};
    at -= ledger.num_ranks(u);
  }
}

// Units in turn. Each keeps its own turn over its ranks: one counter over all ranks beside one over the units
// visits only every gcd-th rank.
template <typename Unit>
std::optional<RankRef> pick_rank_in_turn(const LoadLedger& ledger, std::vector<Unit>& units, int& next_unit) {
  for (size_t i = 0; i < units.size(); ++i) {
    const int unit = next_unit;
    next_unit = (next_unit + 1) % static_cast<int>(units.size());
    if (!units[unit].accepting) continue;
    const int rank = units[unit].next_rank;
    units[unit].next_rank = (rank + 1) % ledger.num_ranks(unit);
    return RankRef{unit, rank};
  }
  return std::nullopt;
}

}  // namespace fathom
