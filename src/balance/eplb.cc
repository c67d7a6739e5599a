// Expert placement. The steps and their names follow the published description: pack groups onto nodes,
// replicate inside a node, pack replicas onto GPUs.
#include "balance/eplb.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace fathom {
namespace {

// Where each packed item went.
struct Packing {
  std::vector<int32_t> pack;
  std::vector<int32_t> rank_in_pack;
};

// Buffers reused over layers and nodes, so that a rebalance allocates a handful of times.
struct Scratch {
  std::vector<int32_t> order;
  std::vector<std::pair<float, int32_t>> heap;
  std::vector<int32_t> filled;
};

// Longest first into the lightest pack with room, n items into num_packs packs of n / num_packs. Ties: the
// item of lower index first, the pack of lower index first.
void balanced_packing(std::span<const float> weights, int num_packs, Scratch& scratch, Packing& out) {
  const int num_items = static_cast<int>(weights.size());
  const int items_per_pack = num_items / num_packs;
  out.pack.resize(num_items);
  out.rank_in_pack.assign(num_items, 0);
  if (items_per_pack == 1) {
    std::iota(out.pack.begin(), out.pack.end(), 0);
    return;
  }
  scratch.order.resize(num_items);
  std::iota(scratch.order.begin(), scratch.order.end(), 0);
  std::sort(scratch.order.begin(), scratch.order.end(),
            [&](int32_t a, int32_t b) { return weights[a] != weights[b] ? weights[a] > weights[b] : a < b; });
  // A min-heap on (load, pack) holds the packs with room: its top is the first of the lightest.
  const auto later = std::greater<std::pair<float, int32_t>>();
  scratch.heap.clear();
  for (int p = 0; p < num_packs; ++p) scratch.heap.emplace_back(0.0f, p);
  scratch.filled.assign(num_packs, 0);
  for (int32_t item : scratch.order) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), later);
    auto& [load, pack] = scratch.heap.back();
    out.pack[item] = pack;
    out.rank_in_pack[item] = scratch.filled[pack]++;
    load += weights[item];
    if (scratch.filled[pack] == items_per_pack) {
      scratch.heap.pop_back();
    } else {
      std::push_heap(scratch.heap.begin(), scratch.heap.end(), later);
    }
  }
}

// Copies one more time, again and again, the expert with the largest load per copy.
struct Replication {
  std::vector<int32_t> expert;   // [num_slots]
  std::vector<int32_t> replica;  // [num_slots] which copy of its expert
  std::vector<int32_t> count;    // [num_experts]
};

void replicate_experts(std::span<const float> weights, int num_slots, Replication& out) {
  const int num_experts = static_cast<int>(weights.size());
  out.expert.resize(num_slots);
  out.replica.assign(num_slots, 0);
  out.count.assign(num_experts, 1);
  std::iota(out.expert.begin(), out.expert.begin() + num_experts, 0);
  std::vector<float> per_copy(weights.begin(), weights.end());
  for (int slot = num_experts; slot < num_slots; ++slot) {
    const int e = static_cast<int>(std::max_element(per_copy.begin(), per_copy.end()) - per_copy.begin());
    out.expert[slot] = e;
    out.replica[slot] = out.count[e]++;
    per_copy[e] = weights[e] / static_cast<float>(out.count[e]);
  }
}

// One layer. `nodes` and `groups` are those of the policy in force (both 1 for the global one).
class LayerBalancer {
 public:
  LayerBalancer(int num_experts, const RebalanceShape& shape, int num_groups, int num_nodes)
      : experts_per_node_(num_experts / num_nodes),
        slots_per_node_(shape.num_replicas / num_nodes),
        gpus_per_node_(shape.num_gpus / num_nodes),
        slots_per_gpu_(shape.slots_per_gpu()),
        num_groups_(num_groups),
        num_nodes_(num_nodes),
        group_size_(num_experts / num_groups),
        node_experts_(num_experts),
        node_weights_(experts_per_node_),
        slot_loads_(slots_per_node_) {}

  // Fills one layer's phy2log, its replica numbers and logcnt.
  void run(std::span<const float> weights, std::span<int32_t> phy2log, std::span<int32_t> replica,
           std::span<int32_t> logcnt) {
    assign_groups(weights);
    for (int node = 0; node < num_nodes_; ++node) {
      const std::span<const int32_t> experts =
          std::span(node_experts_).subspan(node * experts_per_node_, experts_per_node_);
      for (int i = 0; i < experts_per_node_; ++i) node_weights_[i] = weights[experts[i]];
      replicate_experts(node_weights_, slots_per_node_, replication_);
      for (int s = 0; s < slots_per_node_; ++s) {
        const int32_t e = replication_.expert[s];
        slot_loads_[s] = node_weights_[e] / static_cast<float>(replication_.count[e]);
      }
      balanced_packing(slot_loads_, gpus_per_node_, scratch_, packing_);
      for (int s = 0; s < slots_per_node_; ++s) {
        const int slot =
            node * slots_per_node_ + packing_.pack[s] * slots_per_gpu_ + packing_.rank_in_pack[s];
        phy2log[slot] = experts[replication_.expert[s]];
        replica[slot] = replication_.replica[s];
      }
      for (int i = 0; i < experts_per_node_; ++i) logcnt[experts[i]] = replication_.count[i];
    }
  }

 private:
  // The experts of each node, node-major, then by rank of their group in the node, then by index in the
  // group.
  void assign_groups(std::span<const float> weights) {
    std::vector<float> group_weights(num_groups_, 0.0f);
    for (int g = 0; g < num_groups_; ++g) {
      for (int i = 0; i < group_size_; ++i) group_weights[g] += weights[g * group_size_ + i];
    }
    balanced_packing(group_weights, num_nodes_, scratch_, packing_);
    const int groups_per_node = num_groups_ / num_nodes_;
    for (int g = 0; g < num_groups_; ++g) {
      const int at = (packing_.pack[g] * groups_per_node + packing_.rank_in_pack[g]) * group_size_;
      std::iota(node_experts_.begin() + at, node_experts_.begin() + at + group_size_, g * group_size_);
    }
  }

  const int experts_per_node_, slots_per_node_, gpus_per_node_, slots_per_gpu_;
  const int num_groups_, num_nodes_, group_size_;
  std::vector<int32_t> node_experts_;
  std::vector<float> node_weights_;
  std::vector<float> slot_loads_;
  Scratch scratch_;
  Packing packing_;
  Replication replication_;
};

// log2phy from phy2log and replica numbers.
void invert(std::span<const int32_t> replica, ExpertPlacement& placement) {
  placement.max_replicas = *std::max_element(placement.logcnt.begin(), placement.logcnt.end());
  placement.log2phy.assign(placement.logcnt.size() * placement.max_replicas, -1);
  for (int l = 0; l < placement.num_layers; ++l) {
    for (int slot = 0; slot < placement.num_slots; ++slot) {
      const size_t i = static_cast<size_t>(l) * placement.num_slots + slot;
      const size_t row = static_cast<size_t>(l) * placement.num_experts + placement.phy2log[i];
      placement.log2phy[row * placement.max_replicas + replica[i]] = slot;
    }
  }
}

}  // namespace

Status validate_rebalance(const ExpertWeights& weights, const RebalanceShape& shape) {
  const auto in_range = [](const char* field, int value, int max) {
    if (value >= 1 && value <= max) return ok_status();
    return invalid_argument("{}: {} is not between 1 and {}", field, value, max);
  };
  RETURN_IF_ERROR(in_range("layers", weights.num_layers, kLayersMax));
  RETURN_IF_ERROR(in_range("weight", weights.num_experts, kExpertsMax));
  RETURN_IF_ERROR(in_range("num_replicas", shape.num_replicas, kSlotsMax));
  RETURN_IF_ERROR(in_range("num_groups", shape.num_groups, kExpertsMax));
  RETURN_IF_ERROR(in_range("num_nodes", shape.num_nodes, kSlotsMax));
  RETURN_IF_ERROR(in_range("num_gpus", shape.num_gpus, kSlotsMax));
  const auto divides = [](const char* field, int value, const char* by_name, int by) {
    if (value % by == 0) return ok_status();
    return invalid_argument("{}: {} does not divide by {} = {}", field, value, by_name, by);
  };
  RETURN_IF_ERROR(divides("num_replicas", shape.num_replicas, "num_gpus", shape.num_gpus));
  // The global policy treats all GPUs as one pool: nodes need not divide them.
  if (shape.hierarchical())
    RETURN_IF_ERROR(divides("num_gpus", shape.num_gpus, "num_nodes", shape.num_nodes));
  RETURN_IF_ERROR(divides("weight", weights.num_experts, "num_groups", shape.num_groups));
  if (shape.num_replicas < weights.num_experts) {
    return invalid_argument("num_replicas: {} slots cannot hold {} experts", shape.num_replicas,
                            weights.num_experts);
  }
  if (weights.values.size() != static_cast<size_t>(weights.num_layers) * weights.num_experts) {
    return invalid_argument("weight: {} values are not {} layers of {} experts", weights.values.size(),
                            weights.num_layers, weights.num_experts);
  }
  for (size_t i = 0; i < weights.values.size(); ++i) {
    if (!std::isfinite(weights.values[i]) || weights.values[i] < 0) {
      return invalid_argument("weight[{}]: {} is not a finite number >= 0", i, weights.values[i]);
    }
  }
  return ok_status();
}

Result<ExpertPlacement> rebalance_experts(const ExpertWeights& weights, const RebalanceShape& shape) {
  RETURN_IF_ERROR(validate_rebalance(weights, shape));
  ExpertPlacement out;
  out.num_layers = weights.num_layers;
  out.num_experts = weights.num_experts;
  out.num_slots = shape.num_replicas;
  out.phy2log.resize(static_cast<size_t>(out.num_layers) * out.num_slots);
  out.logcnt.resize(static_cast<size_t>(out.num_layers) * out.num_experts);
  std::vector<int32_t> replica(out.phy2log.size());
  const bool hierarchical = shape.hierarchical();
  LayerBalancer balancer(weights.num_experts, shape, hierarchical ? shape.num_groups : 1,
                         hierarchical ? shape.num_nodes : 1);
  for (int l = 0; l < out.num_layers; ++l) {
    const size_t slot0 = static_cast<size_t>(l) * out.num_slots;
    balancer.run(weights.layer(l), std::span(out.phy2log).subspan(slot0, out.num_slots),
                 std::span(replica).subspan(slot0, out.num_slots),
                 std::span(out.logcnt).subspan(static_cast<size_t>(l) * out.num_experts, out.num_experts));
  }
  const int32_t copies = *std::max_element(out.logcnt.begin(), out.logcnt.end());
  if (out.logcnt.size() * static_cast<size_t>(copies) > kLog2phyEntriesMax) {
    return invalid_argument(
        "num_replicas: {} experts, of which one has {} copies, make a log2phy of {} entries, at most {} are "
        "held",
        out.logcnt.size(), copies, out.logcnt.size() * static_cast<size_t>(copies), kLog2phyEntriesMax);
  }
  invert(replica, out);
  return out;
}

ExpertPlacement initial_placement(int num_layers, int num_experts, int num_slots) {
  CHECK(num_layers > 0 && num_experts > 0 && num_slots >= num_experts);
  std::vector<int32_t> phy2log(static_cast<size_t>(num_layers) * num_slots);
  for (size_t i = 0; i < phy2log.size(); ++i) phy2log[i] = static_cast<int32_t>(i % num_slots) % num_experts;
  return placement_from_slots(num_layers, num_experts, std::move(phy2log)).value();
}

Result<ExpertPlacement> placement_from_slots(int num_layers, int num_experts, std::vector<int32_t> phy2log) {
  CHECK(num_layers > 0 && num_experts > 0 && phy2log.size() % num_layers == 0);
  ExpertPlacement out;
  out.num_layers = num_layers;
  out.num_experts = num_experts;
  out.num_slots = static_cast<int>(phy2log.size() / num_layers);
  out.phy2log = std::move(phy2log);
  out.logcnt.assign(static_cast<size_t>(num_layers) * num_experts, 0);
  std::vector<int32_t> replica(out.phy2log.size());
  for (size_t i = 0; i < out.phy2log.size(); ++i) {
    const int32_t expert = out.phy2log[i];
    if (expert < 0 || expert >= num_experts) {
      return invalid_argument("layer {} slot {}: expert {} is not between 0 and {}", i / out.num_slots,
                              i % out.num_slots, expert, num_experts - 1);
    }
    replica[i] = out.logcnt[i / out.num_slots * num_experts + expert]++;
  }
  for (size_t i = 0; i < out.logcnt.size(); ++i) {
    if (out.logcnt[i] == 0) {
      return invalid_argument("layer {}: expert {} is in no slot", i / num_experts, i % num_experts);
    }
  }
  invert(replica, out);
  return out;
}

std::vector<double> gpu_loads(std::span<const float> weights, const ExpertPlacement& placement, int layer,
                              int num_gpus) {
  CHECK(num_gpus > 0 && placement.num_slots % num_gpus == 0);
  const int slots_per_gpu = placement.num_slots / num_gpus;
  const std::span<const int32_t> slots = placement.slots(layer);
  const std::span<const int32_t> counts = placement.counts(layer);
  std::vector<double> loads(num_gpus, 0.0);
  for (int slot = 0; slot < placement.num_slots; ++slot) {
    loads[slot / slots_per_gpu] += static_cast<double>(weights[slots[slot]]) / counts[slots[slot]];
  }
  return loads;
}

LoadSummary summarize_loads(std::span<const double> loads) {
  LoadSummary summary;
  for (double load : loads) {
    summary.max_load = std::max(summary.max_load, load);
    summary.mean_load += load;
  }
  if (!loads.empty()) summary.mean_load /= static_cast<double>(loads.size());
  return summary;
}

LoadSummary gpu_load_summary(std::span<const float> weights, const ExpertPlacement& placement, int layer,
                             int num_gpus) {
  LoadSummary summary = summarize_loads(gpu_loads(weights, placement, layer, num_gpus));
  // The mean needs no division by copies, so it is taken from the weights and stays exact.
  double total = 0;
  for (float w : weights) total += w;
  summary.mean_load = total / num_gpus;
  return summary;
}

}  // namespace fathom
