// How uneven a decode unit's ranks are under each decode policy, as measured: data/decode_imbalance.csv.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace fathom::sim {

// Largest over mean of a unit's ranks.
struct RankImbalance {
  double kv = 1, requests = 1;
};

// The row of a policy among policy,kv_max_over_mean,requests_max_over_mean. Errors name file, line and field.
Result<RankImbalance> parse_rank_imbalance(const std::string& file, std::string_view text,
                                           std::string_view policy);

}  // namespace fathom::sim
