// Sizing a decode unit by its batch and a prefill unit by its budget per forward.
#include "sim/planner_units.h"

#include <algorithm>
#include <cmath>

#include "balance/eplb.h"
#include "base/det_math.h"

namespace fathom::sim {
namespace {

constexpr double kGiga = 1e9;
constexpr double kRequestsPerRankMax = 65536;  // as `fathom serve --max-running`
constexpr double kBlockTokens = 64;            // budgets are whole KV blocks
constexpr double kBudgetGrid = 1.1892;         // a quarter octave between the budgets that are tried first
constexpr double kNormalP99 = 2.3263478740408408;

// The largest x in [low, high] for which good(x), where good(low) and good is never true beyond a false.
template <typename Good>
double largest(double low, double high, Good good) {
  if (good(high)) return high;
  for (int i = 0; i < 60 && high - low > 1e-10 * high; ++i) {
    const double middle = (low + high) / 2;
    (good(middle) ? low : high) = middle;
  }
  return low;
}

// Nodes, ranks and slots of either kind of unit; false and a reason where no placement can be.
template <typename Unit>
bool shape_unit(const PlanInput& in, const char* kind, int nodes, int slots_per_rank, Unit& unit,
                std::string& reason) {
  unit.nodes = nodes;
  unit.ranks = nodes * static_cast<int>(in.hw.gpus_per_node);
  unit.slots = unit.ranks * slots_per_rank;
  unit.redundant = unit.slots - static_cast<int>(in.model.experts);
  if (unit.slots > kSlotsMax) {
    reason = fmt::format("{} unit of {} nodes: {} expert slots, the expert balancer places at most {}", kind,
                         nodes, unit.slots, kSlotsMax);
    return false;
  }
  if (unit.redundant < 0) {
    reason = fmt::format("{} unit of {} nodes: {} expert slots hold no {:.0f} experts", kind, nodes,
                         unit.slots, in.model.experts);
    return false;
  }
  return true;
}

// f_ep of a unit whose ranks bring so many tokens each.
template <typename Unit>
double expert_imbalance(const PlanInput& in, const Unit& unit, double tokens_per_rank,
                        ExpertSpreads& spreads) {
  const ExpertSpread& spread = spreads.of(static_cast<int>(in.model.experts), unit.ranks, unit.slots,
                                          {in.expert_popularity_sigma, in.expert_popularity_drift});
  return 1 + (spread.imbalance(tokens_per_rank * in.model.experts_per_token) - 1) * in.expert_imbalance_scale;
}

template <typename Unit>
double room_tokens(const PlanInput& in, const Unit& unit) {
  return kv_room_tokens(in.hw, in.model, static_cast<double>(unit.slots) / unit.ranks, with_mtp(in));
}

// KV tokens one request takes of the fullest rank's room.
double kv_one(const PlanInput& in, const DecodeUnitPlan& unit) {
  return kv_per_request(in) * (unit.ranks > 1 ? in.kv_imbalance : 1);
}

// The unit with so many requests per rank on average.
DecodeUnitPlan at_batch(const PlanInput& in, DecodeUnitPlan unit, double requests, ExpertSpreads& spreads) {
  const bool mtp = with_mtp(in);
  const double tokens_per_request = mtp ? 2 : 1;
  unit.requests_per_rank = requests;
  unit.expert_imbalance = expert_imbalance(in, unit, requests * tokens_per_request, spreads);
  const DecodeUnitShape shape{static_cast<double>(unit.ranks), static_cast<double>(unit.slots),
                              tokens_per_request, unit.expert_imbalance, mtp};
  const DecodeLoad load{requests * (unit.ranks > 1 ? in.requests_imbalance : 1), requests,
                        requests * kv_one(in, unit)};
  unit.step_ms = decode_step_us(in.hw, in.model, shape, load, unit.ranks > 1) / 1e3;
  unit.tokens_per_s_per_user = (mtp ? 1 + in.mtp_acceptance : 1) / (unit.step_ms / 1e3);
  unit.output_tokens_per_s = unit.ranks * requests * unit.tokens_per_s_per_user;
  return unit;
}

// Tokens one computed token attends to: long prompts weigh more, half of the new part comes after it.
double context_per_token(const PlanInput& in) {
  return in.input_tokens_mean * (1 + in.input_cv2) * (1 - (1 - in.hit_share) / 2);
}

// A prompt longer than 99 % of them.
double long_prompt_tokens(const PlanInput& in) {
  const double sigma2 = det_log(1 + in.input_cv2);
  return in.input_tokens_mean * det_exp(kNormalP99 * std::sqrt(sigma2) - sigma2 / 2);
}

// Reading what such a prompt finds in the store, over a node's link.
double long_read_s(const PlanInput& in) {
  if (in.hit_share <= 0) return 0;
  const double bytes = in.hit_share * long_prompt_tokens(in) * in.model.kv_bytes_per_token(with_mtp(in));
  return in.hw.kv_read_latency_ms / 1e3 + bytes / (in.hw.kv_read_gb_per_s_per_node * kGiga);
}

// The unit with that budget of tokens per rank and forward.
PrefillUnitPlan at_budget(const PlanInput& in, PrefillUnitPlan unit, double tokens, ExpertSpreads& spreads) {
  unit.budget_tokens_per_rank = tokens;
  unit.expert_imbalance = expert_imbalance(in, unit, tokens, spreads);
  const PrefillUnitShape shape{static_cast<double>(unit.ranks), static_cast<double>(unit.slots),
                               unit.expert_imbalance, in.hit_share / (1 - in.hit_share),
                               context_per_token(in)};
  const double layer_us = prefill_layer_us(in.hw, in.model, shape, {tokens, tokens * context_per_token(in)});
  unit.forward_s = in.hw.prefill_phi * (in.model.layers * layer_us / 1e6 + in.hw.prefill_host_ms / 1e3);
  // A prompt longer than a budget goes on in the next forward.
  const double more_forwards = std::max(0.0, (1 - in.hit_share) * long_prompt_tokens(in) / tokens - 1);
  // Its cached part is read while it waits for its first one.
  const double wait_s = std::max((in.ttft_p99_forwards - 1) * unit.forward_s, long_read_s(in));
  unit.ttft_s_p99 = wait_s + (1 + more_forwards) * unit.forward_s + in.hw.kv_handover_ms / 1e3;
  return unit;
}

// Most tokens of a rank's forward: the profile's budget of computing time per layer, and room for their KV.
struct BudgetLimit {
  double by_time = 0, by_memory = 0;
  double tokens() const { return std::floor(std::min(by_time, by_memory) / kBlockTokens) * kBlockTokens; }
};

BudgetLimit budget_limit(const PlanInput& in, const PrefillUnitPlan& unit, ExpertSpreads& spreads) {
  PrefillUnitShape shape{static_cast<double>(unit.ranks), static_cast<double>(unit.slots), 1,
                         in.hit_share / (1 - in.hit_share), context_per_token(in)};
  BudgetLimit limit;
  for (int round = 0; round < 2; ++round) {  // the experts' imbalance depends on the budget, weakly
    const double token_us = fit_prefill_cost(in.hw, in.model, shape).rank_us(1, context_per_token(in));
    limit.by_time = in.hw.prefill_rank_budget_ms_per_layer * 1e3 / token_us;
    shape.expert_imbalance = expert_imbalance(in, unit, std::max(1.0, limit.by_time), spreads);
  }
  // This forward's tokens and the next's, and a prompt that waits for its hand-over.
  limit.by_memory = (room_tokens(in, unit) - in.input_tokens_mean) / 2;
  return limit;
}

struct Budget {
  double tokens = 0;  // 0: none meets the objective
  double ttft_s_least = 0;
};

// The largest budget up to `limit` whose prompts meet the objective.
Budget largest_budget(const PlanInput& in, const PrefillUnitPlan& unit, double limit,
                      ExpertSpreads& spreads) {
  const auto ttft_s = [&](double tokens) { return at_budget(in, unit, tokens, spreads).ttft_s_p99; };
  const auto meets = [&](double tokens) { return ttft_s(tokens) <= in.slo_ttft_s; };
  Budget out{0, ttft_s(limit)};
  if (out.ttft_s_least <= in.slo_ttft_s) return {limit, out.ttft_s_least};
  // Small budgets cut long prompts into many forwards, so that the objective may hold between two bounds
  // only: a grid finds some such budget, a bisection the last before it fails.
  for (double above = limit; above > kBlockTokens;) {
    const double below =
        std::max(kBlockTokens, std::floor(above / kBudgetGrid / kBlockTokens) * kBlockTokens);
    out.ttft_s_least = std::min(out.ttft_s_least, ttft_s(below));
    if (meets(below)) {
      const double blocks = largest(below / kBlockTokens, above / kBlockTokens,
                                    [&](double b) { return meets(std::floor(b) * kBlockTokens); });
      out.tokens = std::floor(blocks) * kBlockTokens;
      return out;
    }
    above = below;
  }
  return out;
}

}  // namespace

bool with_mtp(const PlanInput& in) { return in.mtp_acceptance > 0 && in.model.mtp_layers > 0; }

double kv_per_request(const PlanInput& in) {
  return in.input_tokens_mean + in.output_tokens_mean * (1 + in.output_cv2) / 2;
}

std::optional<DecodeUnitPlan> size_decode(const PlanInput& in, int nodes, int slots_per_rank,
                                          ExpertSpreads& spreads, std::string& reason) {
  DecodeUnitPlan unit;
  if (!shape_unit(in, "decode", nodes, slots_per_rank, unit, reason)) return std::nullopt;
  const double room = room_tokens(in, unit);
  const double one = kv_one(in, unit);
  if (room < one) {
    reason = fmt::format(
        "decode unit of {} nodes: weights leave room for {:.0f} KV tokens per rank, one request needs {:.0f}",
        nodes, room, one);
    return std::nullopt;
  }
  const auto fast_enough = [&](double requests) {
    return at_batch(in, unit, requests, spreads).tokens_per_s_per_user >= in.slo_tokens_per_s_per_user;
  };
  const double fewest = 1.0 / unit.ranks;
  if (!fast_enough(fewest)) {
    reason = fmt::format(
        "tokens/s per user: a single request gets {:.1f} on a decode unit of {} nodes, the objective is "
        "{:.1f}",
        at_batch(in, unit, fewest, spreads).tokens_per_s_per_user, nodes, in.slo_tokens_per_s_per_user);
    return std::nullopt;
  }
  const double most = std::min(room / one, kRequestsPerRankMax);
  unit = at_batch(in, unit, largest(fewest, most, fast_enough), spreads);
  unit.kv_use_share = unit.requests_per_rank * one / room;
  unit.bound = unit.requests_per_rank < most ? "speed per user"
               : most < kRequestsPerRankMax  ? "KV memory"
                                             : "requests a rank may run";
  return unit;
}

std::optional<PrefillUnitPlan> size_prefill(const PlanInput& in, int nodes, int slots_per_rank,
                                            ExpertSpreads& spreads, std::string& reason) {
  PrefillUnitPlan unit;
  if (!shape_unit(in, "prefill", nodes, slots_per_rank, unit, reason)) return std::nullopt;
  const BudgetLimit most = budget_limit(in, unit, spreads);
  const double limit = most.tokens();
  if (limit < kBlockTokens) {
    reason =
        most.by_memory < kBlockTokens
            ? fmt::format("prefill unit of {} nodes: weights leave room for {:.0f} KV tokens per rank", nodes,
                          room_tokens(in, unit))
            : fmt::format(
                  "prefill.rank_budget_ms_per_layer: {} ms compute {:.0f} tokens, a forward takes {:.0f}",
                  in.hw.prefill_rank_budget_ms_per_layer, most.by_time, kBlockTokens);
    return std::nullopt;
  }
  unit.bound = most.by_memory < most.by_time ? "KV memory" : "compute";
  const Budget budget = largest_budget(in, unit, limit, spreads);
  if (budget.tokens == 0) {
    reason = fmt::format(
        "time to first token: {:.2f} s at p99 at best on a prefill unit of {} nodes, the objective is {:.2f} "
        "s",
        budget.ttft_s_least, nodes, in.slo_ttft_s);
    return std::nullopt;
  }
  if (budget.tokens < limit) unit.bound = "time to first token";
  unit = at_budget(in, unit, budget.tokens, spreads);
  const double packing = unit.ranks > 1 ? in.prefill_packing : 1;
  const double computed = unit.ranks * budget.tokens * packing / unit.forward_s * in.prefill_use_max;
  unit.input_tokens_per_s = computed / (1 - in.hit_share);
  const double read_per_token = in.hit_share * in.model.kv_bytes_per_token(with_mtp(in)) / kGiga / nodes;
  const double read = unit.input_tokens_per_s * read_per_token;
  if (read > in.hw.kv_read_gb_per_s_per_node) {
    unit.input_tokens_per_s *= in.hw.kv_read_gb_per_s_per_node / read;
    unit.bound = "KV read bandwidth";
  }
  unit.kv_read_gb_per_s_per_node = unit.input_tokens_per_s * read_per_token;
  return unit;
}

double decode_rate_at_most(const PlanInput& in, int nodes, int slots_per_rank, ExpertSpreads& spreads) {
  DecodeUnitPlan unit;
  std::string reason;
  if (!shape_unit(in, "decode", nodes, slots_per_rank, unit, reason)) return 0;
  const double requests = std::min(room_tokens(in, unit) / kv_one(in, unit), kRequestsPerRankMax);
  return requests < 1.0 / unit.ranks ? 0 : at_batch(in, unit, requests, spreads).output_tokens_per_s;
}

double prefill_rate_at_most(const PlanInput& in, int nodes, int slots_per_rank, ExpertSpreads& spreads) {
  PrefillUnitPlan unit;
  std::string reason;
  if (!shape_unit(in, "prefill", nodes, slots_per_rank, unit, reason)) return 0;
  const double tokens = budget_limit(in, unit, spreads).tokens();
  return tokens < kBlockTokens ? 0 : tokens / at_budget(in, unit, tokens, spreads).forward_s;
}

double decode_speed_at(const PlanInput& in, const DecodeUnitPlan& unit, double output_tokens_per_s,
                       ExpertSpreads& spreads) {
  const double most = std::min(room_tokens(in, unit) / kv_one(in, unit), kRequestsPerRankMax);
  // The rate of a unit rises with its batch, so the demand is met at one batch.
  const auto short_of_demand = [&](double requests) {
    return at_batch(in, unit, requests, spreads).output_tokens_per_s < output_tokens_per_s;
  };
  if (short_of_demand(most)) return 0;
  const double fewest = 1.0 / unit.ranks / 64;
  const double requests = short_of_demand(fewest) ? largest(fewest, most, short_of_demand) : fewest;
  return at_batch(in, unit, requests, spreads).tokens_per_s_per_user;
}

double best_ttft_s(const PlanInput& in, const PrefillUnitPlan& unit) {
  const double computed = (1 - in.hit_share) * in.input_tokens_mean;
  const double pairs = computed * (in.input_tokens_mean - computed / 2);
  const PrefillUnitShape shape{static_cast<double>(unit.ranks), static_cast<double>(unit.slots),
                               unit.expert_imbalance, in.hit_share / (1 - in.hit_share), pairs / computed};
  const LayerCost cost = fit_prefill_cost(in.hw, in.model, shape);
  const double forward_us =
      prefill_forward_us(in.hw, in.model, cost, cost.rank_us(computed, pairs), computed);
  return forward_us / 1e6 + in.hw.kv_handover_ms / 1e3;
}

}  // namespace fathom::sim
