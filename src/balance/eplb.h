// Where each expert's copies live: the published expert-parallel load balancer (deepseek-ai/EPLB), bit for
// bit. Pure: weights and a shape in, a placement out. The refinement beyond it is eplb_refine.h.
//
// Invariants, by name:
// * as_published: on every golden case the placement is the published one, bit for bit
// * every_expert_has_a_slot: and every slot an expert
// * tables_agree: phy2log and log2phy are inverse, and logcnt counts their rows
// * groups_stay_on_a_node: of a hierarchical placement, so that a token's groups bound the nodes it visits
// * lowest_index_wins_ties: among experts to copy and packs to fill
// * layers_apart: a layer's placement depends on its own weights only
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace fathom {

// What is balanced: tokens per expert, [num_layers, num_experts] row-major, finite and not negative.
struct ExpertWeights {
  int num_layers = 0;
  int num_experts = 0;
  std::span<const float> values;

  std::span<const float> layer(int l) const {
    return values.subspan(static_cast<size_t>(l) * num_experts, num_experts);
  }
};

// What it is balanced over. Slot p lives on GPU p / (num_replicas / num_gpus), GPU g on node g / (num_gpus /
// num_nodes).
struct RebalanceShape {
  int num_replicas = 0;  // slots per layer, the redundant ones included
  int num_groups = 0;    // expert groups of the gate
  int num_nodes = 0;
  int num_gpus = 0;

  int slots_per_gpu() const { return num_replicas / num_gpus; }
  // Groups that divide over the nodes keep each group's experts on one node; otherwise the whole group is one
  // pool.
  bool hierarchical() const { return num_groups % num_nodes == 0; }
};

// slot -> expert and expert -> slots, per layer.
struct ExpertPlacement {
  int num_layers = 0;
  int num_experts = 0;
  int num_slots = 0;
  int max_replicas = 0;          // X: the largest logcnt over all layers
  std::vector<int32_t> phy2log;  // [num_layers, num_slots]
  std::vector<int32_t>
      log2phy;                  // [num_layers, num_experts, max_replicas], by replica, -1 where there is none
  std::vector<int32_t> logcnt;  // [num_layers, num_experts]

  std::span<const int32_t> slots(int layer) const {
    return std::span(phy2log).subspan(static_cast<size_t>(layer) * num_slots, num_slots);
  }
  std::span<const int32_t> replicas(int layer, int expert) const {
    const size_t row = static_cast<size_t>(layer) * num_experts + expert;
    return std::span(log2phy).subspan(row * max_replicas, logcnt[row]);
  }
  std::span<const int32_t> counts(int layer) const {
    return std::span(logcnt).subspan(static_cast<size_t>(layer) * num_experts, num_experts);
  }

  bool operator==(const ExpertPlacement&) const = default;
};

// Named limits of what a caller may ask for.
inline constexpr int kExpertsMax = 1 << 16;
inline constexpr int kSlotsMax = 1 << 16;
inline constexpr int kLayersMax = 1 << 12;
// Of log2phy, which is dense: one expert of very many copies makes a long row for every other.
inline constexpr size_t kLog2phyEntriesMax = size_t{1} << 26;

// The first rule that weights and shape break, naming the field; ok when rebalance_experts may run.
Status validate_rebalance(const ExpertWeights& weights, const RebalanceShape& shape);

// The published algorithm: hierarchical when the groups divide over the nodes, global otherwise. Sums are
// float32 and ties go to the lowest index. Fails where validate_rebalance does, and where log2phy would have
// more than kLog2phyEntriesMax entries.
Result<ExpertPlacement> rebalance_experts(const ExpertWeights& weights, const RebalanceShape& shape);

// Experts 0..E-1 in slot order, then 0..R-E-1 (round again if there are more): where a system starts.
ExpertPlacement initial_placement(int num_layers, int num_experts, int num_slots);

// A placement from its slot tables alone; replicas of an expert are numbered by rising slot. Every expert
// must appear.
Result<ExpertPlacement> placement_from_slots(int num_layers, int num_experts, std::vector<int32_t> phy2log);

// The objective: tokens a GPU receives in one layer when an expert's tokens split evenly over its replicas.
struct LoadSummary {
  double max_load = 0;
  double mean_load = 0;
  double max_over_mean() const { return mean_load > 0 ? max_load / mean_load : 1; }
};
std::vector<double> gpu_loads(std::span<const float> weights, const ExpertPlacement& placement, int layer,
                              int num_gpus);
LoadSummary summarize_loads(std::span<const double> loads);
LoadSummary gpu_load_summary(std::span<const float> weights, const ExpertPlacement& placement, int layer,
                             int num_gpus);

}  // namespace fathom
