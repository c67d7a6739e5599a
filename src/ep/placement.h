// Where the experts are: per layer, which expert each slot holds and which slots hold each expert.
// A placement is a value; a change makes a new version of one layer, and ranks take it up between two steps.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"

namespace fathom {

// The sizes a placement must fit: slots = experts + redundant, slot s lives on rank s / slots_per_rank.
struct PlacementShape {
  int num_layers = 0;
  int num_experts = 0;
  int num_redundant = 0;
  int num_ranks = 1;

  int num_slots() const { return num_experts + num_redundant; }
  int slots_per_rank() const { return num_slots() / num_ranks; }
  int rank_of(int slot) const { return slot / slots_per_rank(); }
  // An error naming the numbers when slots do not divide by ranks, or a number is out of range.
  Status validate() const;
};

// One layer, one version. Immutable.
class LayerPlacement {
 public:
  // slot_experts[slot] = expert held; every expert must be held at least once.
  static Result<LayerPlacement> from_slots(int num_experts, std::vector<int32_t> slot_experts,
                                           uint64_t version = 0);

  uint64_t version() const { return version_; }
  int num_experts() const { return static_cast<int>(num_replicas_.size()); }
  int num_slots() const { return static_cast<int>(slot_experts_.size()); }
  int32_t expert_of(int slot) const { return slot_experts_[slot]; }
  // The slots that hold `expert`, ascending; never empty.
  std::span<const int32_t> slots_of(int expert) const {
    return std::span(expert_slots_)
        .subspan(static_cast<size_t>(expert) * max_replicas_, num_replicas_[expert]);
  }
  // The same as tables, for the balancer: [experts, max_replicas] padded with -1, and [experts].
  int max_replicas() const { return max_replicas_; }
  std::span<const int32_t> expert_slots() const { return expert_slots_; }
  std::span<const int32_t> num_replicas() const { return num_replicas_; }

 private:
  LayerPlacement() = default;
  uint64_t version_ = 0;
  int max_replicas_ = 0;
  std::vector<int32_t> slot_experts_;  // [slots]
  std::vector<int32_t> expert_slots_;  // [experts, max_replicas_]
  std::vector<int32_t> num_replicas_;  // [experts]
};

// All layers as a step sees them.
using PlacementSnapshot = std::vector<std::shared_ptr<const LayerPlacement>>;

// Experts in order, then copies of experts 0, 1, … in the redundant slots (before statistics exist).
LayerPlacement default_placement(const PlacementShape& shape);

// The current placement of every layer. Thread-safe: a balancer replaces layers while a group steps; each
// step works on the snapshot it took, so all its ranks agree.
class PlacementTable {
 public:
  // Starts with default_placement in every layer. shape.validate() must be ok.
  explicit PlacementTable(const PlacementShape& shape);

  const PlacementShape& shape() const { return shape_; }
  PlacementSnapshot snapshot() const;
  // The same into a snapshot of before, whose memory is used again.
  void update(PlacementSnapshot& snapshot) const;

  // Replaces one layer; steps that start later see it. slot_experts: [slots], as rebalance_experts gives a
  // layer of phy2log. The new version number is one more than the layer's last.
  Status replace_layer(int layer, std::vector<int32_t> slot_experts);

 private:
  const PlacementShape shape_;
  mutable std::mutex mu_;
  PlacementSnapshot layers_;  // guarded by mu_
};

}  // namespace fathom
