// Slots from an expert-balancer result, checks of what a table must hold, and its atomic replacement.
#include "ep/placement.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "transport/endpoint.h"

namespace fathom {

Status PlacementShape::validate() const {
  if (num_experts < 1 || num_redundant < 0 || num_layers < 0) {
    return invalid_argument("{} layers, {} experts and {} redundant experts cannot be placed", num_layers,
                            num_experts, num_redundant);
  }
  if (num_ranks < 1 || num_ranks > kMaxRanks) {
    return invalid_argument("{} ranks; supported are 1 to {}", num_ranks, kMaxRanks);
  }
  if (num_slots() % num_ranks != 0) {
    return invalid_argument(
        "{} experts + {} redundant experts = {} slots do not divide by {} ranks (remainder {})", num_experts,
        num_redundant, num_slots(), num_ranks, num_slots() % num_ranks);
  }
  return {};
}

Result<LayerPlacement> LayerPlacement::from_slots(int num_experts, std::vector<int32_t> slot_experts,
                                                  uint64_t version) {
  LayerPlacement placement;
  placement.version_ = version;
  placement.num_replicas_.assign(num_experts, 0);
  for (size_t slot = 0; slot < slot_experts.size(); ++slot) {
    const int32_t expert = slot_experts[slot];
    if (expert < 0 || expert >= num_experts) {
      return invalid_argument("placement: slot {} holds expert {}, experts are 0 to {}", slot, expert,
                              num_experts - 1);
    }
    placement.max_replicas_ = std::max(placement.max_replicas_, ++placement.num_replicas_[expert]);
  }
  placement.expert_slots_.assign(static_cast<size_t>(num_experts) * placement.max_replicas_, -1);
  for (int expert = 0; expert < num_experts; ++expert) {
    if (placement.num_replicas_[expert] == 0)
      return invalid_argument("placement: no slot holds expert {}", expert);
  }
  std::vector<int32_t> next(num_experts, 0);
  for (size_t slot = 0; slot < slot_experts.size(); ++slot) {
    const size_t row = static_cast<size_t>(slot_experts[slot]) * placement.max_replicas_;
    placement.expert_slots_[row + next[slot_experts[slot]]++] = static_cast<int32_t>(slot);
  }
  placement.slot_experts_ = std::move(slot_experts);
  return placement;
}

LayerPlacement default_placement(const PlacementShape& shape) {
  std::vector<int32_t> slot_experts(shape.num_slots());
  for (int slot = 0; slot < shape.num_slots(); ++slot) slot_experts[slot] = slot % shape.num_experts;
  return LayerPlacement::from_slots(shape.num_experts, std::move(slot_experts)).value();
}

PlacementTable::PlacementTable(const PlacementShape& shape) : shape_(shape) {
  CHECK_MSG(shape.validate().ok(), shape.validate().message());
  layers_.assign(shape.num_layers, std::make_shared<const LayerPlacement>(default_placement(shape)));
}

PlacementSnapshot PlacementTable::snapshot() const {
  std::lock_guard lock(mu_);
  return layers_;
}

void PlacementTable::update(PlacementSnapshot& snapshot) const {
  std::lock_guard lock(mu_);
  snapshot = layers_;
}

Status PlacementTable::replace_layer(int layer, std::vector<int32_t> slot_experts) {
  CHECK(layer >= 0 && layer < shape_.num_layers);
  if (static_cast<int>(slot_experts.size()) != shape_.num_slots()) {
    return invalid_argument("placement of layer {}: {} slots given, the group has {}", layer,
                            slot_experts.size(), shape_.num_slots());
  }
  std::lock_guard lock(mu_);
  ASSIGN_OR_RETURN(
      LayerPlacement placement,
      LayerPlacement::from_slots(shape_.num_experts, std::move(slot_experts), layers_[layer]->version() + 1));
  layers_[layer] = std::make_shared<const LayerPlacement>(std::move(placement));
  return {};
}

}  // namespace fathom
