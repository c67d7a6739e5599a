// Two FLOP per parameter a token touches, and per dimension of a pair's dot product and weighted sum.
#include "engine/rank_costs.h"

#include "base/check.h"

namespace fathom {
namespace {

constexpr double kNsPerFlop = 1e-3;

}  // namespace

RankCosts rank_costs_of(const ModelConfig& config, bool absorbed_prefill) {
  CHECK(config.num_hidden_layers > 0);
  const ParameterCounts counts = count_parameters(config);
  const auto layers = static_cast<double>(config.num_hidden_layers);
  const auto matrices = static_cast<double>(counts.active - counts.embedding - counts.head);
  const int64_t absorbed_dims = config.num_attention_heads * (config.kv_row_dim() + config.kv_lora_rank);
  const int64_t per_head_dims = config.num_attention_heads * (config.qk_head_dim() + config.v_head_dim);
  const auto pair_dims = static_cast<double>(absorbed_prefill ? absorbed_dims : per_head_dims);
  RankCosts costs;
  // Nothing is read from a store: what a rank has not in memory it computes.
  costs.prefill = {.ns_per_token = kNsPerFlop * 2 * matrices / layers,
                   .ns_per_pair = kNsPerFlop * 2 * pair_dims,
                   .load_ns_per_token = 0};
  costs.request_kv_tokens =
      (counts.attention + counts.shared_experts) / config.num_hidden_layers / absorbed_dims;
  return costs;
}

}  // namespace fathom
