// The search works on one domain at a time: the GPUs among which an expert may move (a node, or all of them),
// and the experts that live there. Every accepted step lowers the load of a most loaded GPU, so it ends.
#include "balance/eplb_refine.h"

#include <algorithm>
#include <numeric>

namespace fathom {
namespace {

// One domain's slots. Experts are indexed locally.
struct DomainState {
  std::span<const double> weights;  // [experts]
  int slots_per_gpu = 0;
  std::vector<int32_t> expert;  // [slots]
  std::vector<int32_t> count;   // [experts]
  std::vector<double> load;     // [gpus]

  int num_slots() const { return static_cast<int>(expert.size()); }
  int gpu_of(int slot) const { return slot / slots_per_gpu; }
  double copy_load(int e) const { return weights[e] / count[e]; }
  int fullest() const { return static_cast<int>(std::max_element(load.begin(), load.end()) - load.begin()); }
  double max_load() const { return load[fullest()]; }

  void recompute_loads() {
    std::fill(load.begin(), load.end(), 0.0);
    for (int s = 0; s < num_slots(); ++s) load[gpu_of(s)] += copy_load(expert[s]);
  }
};

// Copies are handed out to the largest load per copy, as the published algorithm does.
void replicate(DomainState& state) {
  std::fill(state.count.begin(), state.count.end(), 1);
  for (int spare = state.num_slots() - static_cast<int>(state.count.size()); spare > 0; --spare) {
    int hottest = 0;
    for (int e = 1; e < static_cast<int>(state.count.size()); ++e) {
      if (state.copy_load(e) > state.copy_load(hottest)) hottest = e;
    }
    ++state.count[hottest];
  }
}

// Longest first into the lightest GPU with room, for the counts as they stand. A GPU without the expert is
// preferred to one with it: two copies side by side help nobody.
void pack(DomainState& state) {
  const int num_gpus = static_cast<int>(state.load.size());
  std::vector<int32_t> order(state.count.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const double la = state.copy_load(a), lb = state.copy_load(b);
    return la != lb ? la > lb : a < b;
  });
  std::vector<int32_t> filled(num_gpus, 0);
  std::vector<int32_t> last_expert(num_gpus, -1);
  std::fill(state.load.begin(), state.load.end(), 0.0);
  for (int32_t e : order) {
    for (int copy = 0; copy < state.count[e]; ++copy) {
      int best = -1;
      for (int g = 0; g < num_gpus; ++g) {
        if (filled[g] == state.slots_per_gpu) continue;
        const bool has = last_expert[g] == e, best_has = best >= 0 && last_expert[best] == e;
        if (best < 0 || (has != best_has ? best_has : state.load[g] < state.load[best])) best = g;
      }
      state.expert[best * state.slots_per_gpu + filled[best]++] = e;
      state.load[best] += state.copy_load(e);
      last_expert[best] = e;
    }
  }
}

// Steps count as progress only beyond rounding, so that two equal placements never alternate.
constexpr double kRounding = 1e-12;

// The best swap of a slot of the fullest GPU with a slot elsewhere; false if none lowers it without raising
// another as far.
bool swap_from_fullest(DomainState& state) {
  const int g = state.fullest();
  double best = state.load[g] * (1 - kRounding);
  int best_a = -1, best_b = -1;
  for (int a = g * state.slots_per_gpu; a < (g + 1) * state.slots_per_gpu; ++a) {
    const double load_a = state.copy_load(state.expert[a]);
    for (int b = 0; b < state.num_slots(); ++b) {
      const int h = state.gpu_of(b);
      const double shift = load_a - state.copy_load(state.expert[b]);
      if (h == g || shift <= 0) continue;
      const double worst = std::max(state.load[g] - shift, state.load[h] + shift);
      if (worst < best) best = worst, best_a = a, best_b = b;
    }
  }
  if (best_a < 0) return false;
  std::swap(state.expert[best_a], state.expert[best_b]);
  state.recompute_loads();
  return true;
}

// Gives an expert of the fullest GPU one more copy in a slot taken from an expert that has several; false if
// every such trade leaves some touched GPU as loaded as the fullest is now.
bool trade_copy(DomainState& state) {
  const int g = state.fullest();
  const double limit = state.load[g] * (1 - kRounding);
  DomainState trial = state;
  double best = limit;
  int best_slot = -1, best_expert = -1;
  for (int a = g * state.slots_per_gpu; a < (g + 1) * state.slots_per_gpu; ++a) {
    const int e = state.expert[a];
    for (int s = 0; s < state.num_slots(); ++s) {
      const int y = state.expert[s];
      if (y == e || state.count[y] < 2) continue;
      const double e_before = state.copy_load(e), e_after = state.weights[e] / (state.count[e] + 1);
      const double y_before = state.copy_load(y), y_after = state.weights[y] / (state.count[y] - 1);
      // Cheap refusal first: the slot's own GPU.
      if (state.load[state.gpu_of(s)] - y_before + e_after >= best) continue;
      trial.load = state.load;
      for (int t = 0; t < state.num_slots(); ++t) {
        if (state.expert[t] == e) trial.load[state.gpu_of(t)] += e_after - e_before;
        if (state.expert[t] == y && t != s) trial.load[state.gpu_of(t)] += y_after - y_before;
      }
      trial.load[state.gpu_of(s)] += e_after - y_before;
      const double worst = trial.max_load();
      if (worst < best) best = worst, best_slot = s, best_expert = e;
    }
  }
  if (best_slot < 0) return false;
  --state.count[state.expert[best_slot]];
  ++state.count[best_expert];
  state.expert[best_slot] = best_expert;
  state.recompute_loads();
  return true;
}

void improve(DomainState& state) {
  const int steps_max = 4 * state.num_slots();
  for (int step = 0; step < steps_max; ++step) {
    if (!swap_from_fullest(state) && !trade_copy(state)) return;
  }
}

// Repackings with one copy moved from the expert that misses it least to one on the fullest GPU; the best is
// kept and searched further.
void try_other_counts(DomainState& best, int trials) {
  int variant = 0;
  for (int t = 0; t < trials; ++t, ++variant) {
    const int g = best.fullest();
    const int e = best.expert[g * best.slots_per_gpu + variant % best.slots_per_gpu];
    std::vector<int32_t> donors;
    for (int y = 0; y < static_cast<int>(best.count.size()); ++y) {
      if (y != e && best.count[y] > 1) donors.push_back(y);
    }
    const int rank = variant / best.slots_per_gpu;
    if (rank >= static_cast<int>(donors.size())) return;
    std::nth_element(donors.begin(), donors.begin() + rank, donors.end(), [&](int32_t a, int32_t b) {
      const double la = best.weights[a] / (best.count[a] - 1), lb = best.weights[b] / (best.count[b] - 1);
      return la != lb ? la < lb : a < b;
    });
    DomainState trial = best;
    --trial.count[donors[rank]];
    ++trial.count[e];
    pack(trial);
    improve(trial);
    if (trial.max_load() < best.max_load() * (1 - kRounding)) {
      best = std::move(trial);
      variant = -1;
    }
  }
}

// The groups of each node: longest first, then pairwise exchanges while the heaviest node gets lighter.
std::vector<std::vector<int32_t>> pair_groups(std::span<const double> group_weights, int num_nodes) {
  const int num_groups = static_cast<int>(group_weights.size());
  const int per_node = num_groups / num_nodes;
  std::vector<int32_t> order(num_groups);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return group_weights[a] != group_weights[b] ? group_weights[a] > group_weights[b] : a < b;
  });
  std::vector<std::vector<int32_t>> groups(num_nodes);
  std::vector<double> load(num_nodes, 0.0);
  for (int32_t group : order) {
    int best = -1;
    for (int n = 0; n < num_nodes; ++n) {
      if (static_cast<int>(groups[n].size()) < per_node && (best < 0 || load[n] < load[best])) best = n;
    }
    groups[best].push_back(group);
    load[best] += group_weights[group];
  }
  for (bool moved = true; moved;) {
    moved = false;
    const int n = static_cast<int>(std::max_element(load.begin(), load.end()) - load.begin());
    for (int m = 0; m < num_nodes && !moved; ++m) {
      for (int i = 0; m != n && i < per_node && !moved; ++i) {
        for (int j = 0; j < per_node && !moved; ++j) {
          const double shift = group_weights[groups[n][i]] - group_weights[groups[m][j]];
          if (shift <= 0 || load[m] + shift >= load[n] * (1 - kRounding)) continue;
          std::swap(groups[n][i], groups[m][j]);
          load[n] -= shift, load[m] += shift;
          moved = true;
        }
      }
    }
  }
  return groups;
}

// One layer's search. A candidate is the slots of the whole layer with its largest load.
class LayerRefiner {
 public:
  LayerRefiner(std::span<const float> weights, const RebalanceShape& shape, const RefineOptions& options)
      : weights_(weights.begin(), weights.end()),
        shape_(shape),
        options_(options),
        num_domains_(shape.hierarchical() ? shape.num_nodes : 1),
        slots_per_domain_(shape.num_replicas / num_domains_) {}

  // True when `slots` was bettered.
  bool run(std::span<int32_t> slots) {
    const double start = max_load(slots);
    const double wanted = start * (1 - std::max(options_.gain_min, kRounding));
    std::vector<int32_t> best(slots.begin(), slots.end());
    double best_load = start;
    const auto consider = [&](const std::vector<std::vector<int32_t>>& experts, bool keep_slots) {
      std::vector<int32_t> candidate(slots.begin(), slots.end());
      search(experts, keep_slots, candidate);
      const double load = max_load(candidate);
      if (load < best_load) best_load = load, best = std::move(candidate);
    };
    if (const auto experts = domains_of(slots); !experts.empty()) consider(experts, true);
    if (options_.repack_trials > 0) consider(fresh_domains(), false);
    if (best_load >= wanted) return false;
    std::copy(best.begin(), best.end(), slots.begin());
    return true;
  }

 private:
  double max_load(std::span<const int32_t> slots) const {
    std::vector<int32_t> count(weights_.size(), 0);
    for (int32_t e : slots) ++count[e];
    double max = 0;
    for (int g = 0; g < shape_.num_gpus; ++g) {
      double load = 0;
      for (int32_t e : slots.subspan(g * shape_.slots_per_gpu(), shape_.slots_per_gpu()))
        load += weights_[e] / count[e];
      max = std::max(max, load);
    }
    return max;
  }

  // The experts of each domain as `slots` has them; empty when an expert spans domains.
  std::vector<std::vector<int32_t>> domains_of(std::span<const int32_t> slots) const {
    std::vector<int32_t> domain(weights_.size(), -1);
    for (int s = 0; s < static_cast<int>(slots.size()); ++s) {
      int32_t& d = domain[slots[s]];
      if (d >= 0 && d != s / slots_per_domain_) return {};
      d = s / slots_per_domain_;
    }
    std::vector<std::vector<int32_t>> experts(num_domains_);
    for (int e = 0; e < static_cast<int>(weights_.size()); ++e) experts[domain[e]].push_back(e);
    return experts;
  }

  std::vector<std::vector<int32_t>> fresh_domains() const {
    const int num_groups = num_domains_ == 1 ? 1 : shape_.num_groups;
    const int group_size = static_cast<int>(weights_.size()) / num_groups;
    std::vector<double> group_weights(num_groups, 0.0);
    for (size_t e = 0; e < weights_.size(); ++e) group_weights[e / group_size] += weights_[e];
    std::vector<std::vector<int32_t>> experts(num_domains_);
    const auto groups = pair_groups(group_weights, num_domains_);
    for (int d = 0; d < num_domains_; ++d) {
      for (int32_t group : groups[d]) {
        for (int i = 0; i < group_size; ++i) experts[d].push_back(group * group_size + i);
      }
    }
    return experts;
  }

  // Betters `slots` domain by domain, from what they hold or from a fresh packing.
  void search(const std::vector<std::vector<int32_t>>& experts, bool keep_slots,
              std::vector<int32_t>& slots) const {
    for (int d = 0; d < num_domains_; ++d) {
      const std::span<int32_t> mine = std::span(slots).subspan(d * slots_per_domain_, slots_per_domain_);
      std::vector<double> weights;
      std::vector<int32_t> local(weights_.size(), -1);
      for (int32_t e : experts[d])
        local[e] = static_cast<int32_t>(weights.size()), weights.push_back(weights_[e]);
      DomainState state;
      state.weights = weights;
      state.slots_per_gpu = shape_.slots_per_gpu();
      state.expert.resize(slots_per_domain_);
      state.count.assign(weights.size(), 0);
      state.load.assign(shape_.num_gpus / num_domains_, 0.0);
      if (keep_slots) {
        for (int s = 0; s < slots_per_domain_; ++s) ++state.count[state.expert[s] = local[mine[s]]];
        state.recompute_loads();
      } else {
        replicate(state);
        pack(state);
      }
      improve(state);
      if (!keep_slots) try_other_counts(state, options_.repack_trials);
      for (int s = 0; s < slots_per_domain_; ++s) mine[s] = experts[d][state.expert[s]];
    }
  }

  const std::vector<double> weights_;
  const RebalanceShape& shape_;
  const RefineOptions& options_;
  const int num_domains_;
  const int slots_per_domain_;
};

}  // namespace

Result<ExpertPlacement> refine_experts(const ExpertWeights& weights, const RebalanceShape& shape,
                                       const ExpertPlacement& start, const RefineOptions& options) {
  RETURN_IF_ERROR(validate_rebalance(weights, shape));
  if (start.num_layers != weights.num_layers || start.num_experts != weights.num_experts ||
      start.num_slots != shape.num_replicas) {
    return invalid_argument("start: {} layers, {} experts, {} slots do not fit {}, {}, {}", start.num_layers,
                            start.num_experts, start.num_slots, weights.num_layers, weights.num_experts,
                            shape.num_replicas);
  }
  std::vector<int32_t> phy2log = start.phy2log;
  bool changed = false;
  for (int l = 0; l < weights.num_layers; ++l) {
    LayerRefiner refiner(weights.layer(l), shape, options);
    changed |=
        refiner.run(std::span(phy2log).subspan(static_cast<size_t>(l) * start.num_slots, start.num_slots));
  }
  if (!changed) return start;
  return placement_from_slots(weights.num_layers, weights.num_experts, std::move(phy2log));
}

Result<ExpertPlacement> rebalance_and_refine(const ExpertWeights& weights, const RebalanceShape& shape,
                                             const RefineOptions& options) {
  ASSIGN_OR_RETURN(ExpertPlacement published, rebalance_experts(weights, shape));
  return refine_experts(weights, shape, published, options);
}

void fold_statistics(std::span<float> weights, std::span<const int64_t> counts, float keep) {
  CHECK(weights.size() == counts.size() && keep >= 0 && keep <= 1);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = weights[i] * keep + static_cast<float>(counts[i]);
}

double placement_lower_bound(std::span<const float> weights, const RebalanceShape& shape) {
  double total = 0, hottest = 0;
  for (float w : weights) total += w, hottest = std::max<double>(hottest, w);
  const int copies_max = shape.num_replicas - static_cast<int>(weights.size()) + 1;
  return std::max(total / shape.num_gpus, hottest / copies_max);
}

}  // namespace fathom
