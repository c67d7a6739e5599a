// Folds windows of counts into weights and goes through the layers, one after each step.
#include "engine/expert_rebalancer.h"

#include <algorithm>
#include <numeric>

#include "balance/eplb_refine.h"
#include "base/check.h"

namespace fathom {
namespace {

constexpr float kKeep = 0.5f;  // of the weights, when a window's counts join them

}  // namespace

ExpertRebalancer::ExpertRebalancer(PlacementTable& table, const ExpertRebalancerOptions& options)
    : options_(options),
      table_(table),
      shape_(table.shape()),
      window_(static_cast<size_t>(shape_.num_layers) * static_cast<size_t>(shape_.num_experts)),
      weights_(window_.size()),
      next_layer_(shape_.num_layers) {}

void ExpertRebalancer::after_step(std::span<const int64_t> expert_tokens) {
  CHECK(expert_tokens.size() == window_.size());
  if (window_.empty()) return;
  for (size_t i = 0; i < window_.size(); ++i) window_[i] += expert_tokens[i];
  window_routed_ =
      std::accumulate(expert_tokens.begin(), expert_tokens.begin() + shape_.num_experts, window_routed_);
  const bool over = window_routed_ >= options_.window_tokens_per_expert * shape_.num_experts;
  if (next_layer_ == shape_.num_layers && over) {
    fold_statistics(weights_, window_, kKeep);
    std::fill(window_.begin(), window_.end(), 0);
    window_routed_ = 0;
    next_layer_ = 0;
  }
  if (next_layer_ < shape_.num_layers) place_anew(next_layer_++);
}

void ExpertRebalancer::place_anew(int layer) {
  const ExpertWeights all{shape_.num_layers, shape_.num_experts, weights_};
  const ExpertWeights weights{1, shape_.num_experts, all.layer(layer)};
  const auto busiest = [&](const ExpertPlacement& placement) {
    return gpu_load_summary(weights.values, placement, 0, shape_.num_ranks).max_load;
  };
  const std::shared_ptr<const LayerPlacement> now = table_.snapshot()[static_cast<size_t>(layer)];
  std::vector<int32_t> slots(static_cast<size_t>(shape_.num_slots()));
  for (int slot = 0; slot < shape_.num_slots(); ++slot)
    slots[static_cast<size_t>(slot)] = now->expert_of(slot);
  const ExpertPlacement before = placement_from_slots(1, shape_.num_experts, std::move(slots)).value();
  // Not refined: that search may take seconds, and requests wait for the next step.
  const ExpertPlacement after =
      rebalance_experts(weights, {shape_.num_slots(), 1, 1, shape_.num_ranks}).value();
  if (busiest(after) > (1 - options_.gain_min) * busiest(before)) return;
  const Status replaced = table_.replace_layer(layer, {after.phy2log.begin(), after.phy2log.end()});
  CHECK_MSG(replaced.ok(), replaced.message());
  ++num_replaced_;
}

}  // namespace fathom
