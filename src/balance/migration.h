// How to get from one expert placement to another while serving: the fewest expert copies, in steps whose
// bytes are bounded on every GPU, each layer's new table going live at once when its copies have arrived.
//
// Copies land in spare buffers (as many slots as one layer moves into a GPU), so the old table serves
// unharmed until the swap, and afterwards its replaced buffers are the spare ones: one layer is in flight at
// a time.
//
// Invariants, by name:
// * fewest_moves: no placement equal to the target up to the order of slots within a GPU (and, where allowed,
//   of GPUs within a node and of nodes) is reachable with fewer copies
// * bytes_bounded: no GPU sends or receives more than bytes_per_step_max in a step, so no step waits longer
//   than these take (case B3: no stalled step)
// * always_live: at every moment every expert of every layer has a live slot, and copies are read from live
//   slots
// * reaches_target: after the last step the table is the target
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "balance/eplb.h"

namespace fathom {

struct MigrationOptions {
  int num_gpus = 1;
  // GPUs of a node may swap roles, and nodes too: with the global policy 1 node, hierarchical the real
  // number.
  int num_nodes = 1;
  bool relabel_gpus = true;           // false: every expert must end on exactly the GPU the target names
  int64_t expert_bytes = 44'040'192;  // one expert's weights in one layer (FP8, hidden 7168, 2048 wide)
  int64_t bytes_per_step_max =
      44'040'192;  // per GPU, sent or received, in one step; an expert may take several steps
};

struct ExpertCopy {
  int32_t layer = 0;
  int32_t expert = 0;
  int32_t from_slot = 0;  // live in the layer's old table
  int32_t to_slot = 0;    // in the layer's new table
  int64_t offset_bytes = 0;
  int64_t bytes = 0;
};

struct MigrationStep {
  std::vector<ExpertCopy> copies;
  int32_t goes_live = -1;  // layer whose new table replaces the old one after this step's copies; -1: none
};

struct MigrationPlan {
  ExpertPlacement target;  // what will be live in the end: the given target, slots arranged for fewest moves
  std::vector<MigrationStep> steps;
  int64_t num_moves = 0;  // expert copies, however many steps each takes
  int64_t bytes_total = 0;
  int32_t spare_slots = 0;  // buffers a GPU needs beside its slots
};

// Layers migrate in `layer_order` (empty: by the number; a caller puts those that gain most first). from and
// to must have the same layers, experts and slots, and options must divide them.
Result<MigrationPlan> plan_migration(const ExpertPlacement& from, const ExpertPlacement& to,
                                     const MigrationOptions& options,
                                     std::span<const int32_t> layer_order = {});

// Carries the plan out on tables alone and reports the first broken rule; what a controller asks before it
// starts.
Status verify_migration(const ExpertPlacement& from, const MigrationPlan& plan,
                        const MigrationOptions& options);

// Layers by falling gain (largest load before less after, under `weights`) per expert moved.
std::vector<int32_t> order_by_gain(const ExpertWeights& weights, const ExpertPlacement& from,
                                   const ExpertPlacement& to, int num_gpus);

// Minimum-cost assignment of n rows to n columns, cost row-major [n, n]; returns the column of each row
// (Hungarian method, O(n^3)).
std::vector<int32_t> assign_min_cost(std::span<const int64_t> cost, int n);

}  // namespace fathom
