// What the published expert balancer leaves on the table: swaps, other replica counts and other group
// pairings, searched locally from a given placement, on statistics as fresh as the caller has.
//
// Invariants, by name:
// * never_worse: the largest GPU load of every layer is at most the start's, at the same weights
// * same_shape: layers, experts, slots; every expert keeps at least one slot
// * stays_on_node: with the hierarchical policy an expert's replicas share one node, if they did at the start
// * untouched: a layer that cannot be bettered comes back slot for slot, so it costs no migration
#pragma once

#include <cstdint>
#include <span>

#include "balance/eplb.h"

namespace fathom {

struct RefineOptions {
  // Whole repackings tried per layer and node with other replica counts, beyond swaps from the start. Each
  // moves many experts, so 0 keeps the migration small; more buys up to 1-2 % of the largest load.
  int repack_trials = 24;
  // A layer is changed only if its largest load falls by at least this share of it: below, moving weights
  // costs more.
  double gain_min = 1e-9;
};

// The placement whose largest GPU load is lowest among those the search meets, `start` included.
// start must fit weights and shape; fails where validate_rebalance does.
Result<ExpertPlacement> refine_experts(const ExpertWeights& weights, const RebalanceShape& shape,
                                       const ExpertPlacement& start, const RefineOptions& options = {});

// rebalance_experts, then refine_experts: `fathom eplb --refine`. Seconds for many slots on few GPUs.
Result<ExpertPlacement> rebalance_and_refine(const ExpertWeights& weights, const RebalanceShape& shape,
                                             const RefineOptions& options = {});

// Statistics that forget: weights = weights * keep + counts, keep in [0, 1]. A half-life of h windows is keep
// = 0.5^(1/h). Measured on the published gate, refreshing is worth more than any better packing (1.24 -> 1.15
// max/mean).
void fold_statistics(std::span<float> weights, std::span<const int64_t> counts, float keep);

// No placement of this shape has a smaller largest load: the mean over GPUs, and the lightest way to hold the
// hottest expert (its load over as many copies as there are spare slots).
double placement_lower_bound(std::span<const float> weights, const RebalanceShape& shape);

}  // namespace fathom
