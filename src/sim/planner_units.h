// One unit of a kind: how much it carries within the objectives, or why it cannot. The planner tries many of
// them.
#pragma once

#include <optional>
#include <string>

#include "sim/planner.h"

namespace fathom::sim {

bool with_mtp(const PlanInput& input);
// KV tokens a request holds on average over the tokens it generates.
double kv_per_request(const PlanInput& input);

// On failure `reason` says what stands in the way.
std::optional<DecodeUnitPlan> size_decode(const PlanInput& input, int nodes, int slots_per_rank,
                                          ExpertSpreads& spreads, std::string& reason);
std::optional<PrefillUnitPlan> size_prefill(const PlanInput& input, int nodes, int slots_per_rank,
                                            ExpertSpreads& spreads, std::string& reason);

// What a unit gives at its fullest, whatever the objectives; 0: it cannot be. For comparing numbers of expert
// slots by something that neither load nor objectives move, so that neither brings a dearer plan down.
double decode_rate_at_most(const PlanInput& input, int nodes, int slots_per_rank, ExpertSpreads& spreads);
double prefill_rate_at_most(const PlanInput& input, int nodes, int slots_per_rank, ExpertSpreads& spreads);

// Tokens/s per user on a decode unit that is asked for so many output tokens per second; 0: it saturates.
double decode_speed_at(const PlanInput& input, const DecodeUnitPlan& unit, double output_tokens_per_s,
                       ExpertSpreads& spreads);

// Seconds to the first token of a prompt of the mean length on an idle unit, its cached share at hand.
double best_ttft_s(const PlanInput& input, const PrefillUnitPlan& unit);

}  // namespace fathom::sim
