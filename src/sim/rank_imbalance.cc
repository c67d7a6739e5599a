// One row of the table of measured imbalances.
#include "sim/rank_imbalance.h"

#include "sim/csv.h"

namespace fathom::sim {
namespace {

constexpr double kRatioMax = 100;

}  // namespace

Result<RankImbalance> parse_rank_imbalance(const std::string& file, std::string_view text,
                                           std::string_view policy) {
  for (const CsvRow& row : csv_rows(text)) {
    if (row.fields[0] != policy) continue;
    RankImbalance out;
    ASSIGN_OR_RETURN(out.kv, csv_number(file, row, 1, "kv_max_over_mean", 1, kRatioMax));
    ASSIGN_OR_RETURN(out.requests, csv_number(file, row, 2, "requests_max_over_mean", 1, kRatioMax));
    return out;
  }
  return invalid_argument("{}:1: policy: no row of {}", file, policy);
}

}  // namespace fathom::sim
