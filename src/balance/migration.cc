// Layer by layer: decide which GPU takes over which content, keep what can stay, spread the copies over
// steps.
#include "balance/migration.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace fathom {
namespace {

// Experts of `want` that `have` lacks, counted with multiplicity: the copies it takes to turn one GPU into
// the other.
int64_t copies_needed(std::span<const int32_t> have, std::span<const int32_t> want) {
  std::vector<int32_t> a(have.begin(), have.end()), b(want.begin(), want.end());
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  int64_t common = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i] == b[j]) {
      ++common, ++i, ++j;
    } else {
      ++(a[i] < b[j] ? i : j);
    }
  }
  return static_cast<int64_t>(b.size()) - common;
}

// One layer: which target GPU's content each GPU takes over, and each slot's expert.
class LayerArranger {
 public:
  LayerArranger(std::span<const int32_t> from, std::span<const int32_t> to, const MigrationOptions& options)
      : from_(from),
        to_(to),
        num_gpus_(options.num_gpus),
        num_nodes_(options.num_nodes),
        gpus_per_node_(options.num_gpus / options.num_nodes),
        slots_per_gpu_(static_cast<int>(from.size()) / options.num_gpus) {
    takes_.resize(num_gpus_);
    std::iota(takes_.begin(), takes_.end(), 0);
    if (options.relabel_gpus) relabel();
  }

  // The target with experts that stay put in the slots they have.
  std::vector<int32_t> arrange() const {
    std::vector<int32_t> slots(from_.size(), -1);
    for (int g = 0; g < num_gpus_; ++g) {
      const std::span<const int32_t> have = gpu(from_, g);
      std::vector<int32_t> want(gpu(to_, takes_[g]).begin(), gpu(to_, takes_[g]).end());
      for (int i = 0; i < slots_per_gpu_; ++i) {
        const auto kept = std::find(want.begin(), want.end(), have[i]);
        if (kept == want.end()) continue;
        slots[g * slots_per_gpu_ + i] = have[i];
        want.erase(kept);
      }
      auto next = want.begin();
      for (int i = 0; i < slots_per_gpu_; ++i) {
        int32_t& slot = slots[g * slots_per_gpu_ + i];
        if (slot < 0) slot = *next++;
      }
    }
    return slots;
  }

 private:
  std::span<const int32_t> gpu(std::span<const int32_t> slots, int g) const {
    return slots.subspan(static_cast<size_t>(g) * slots_per_gpu_, slots_per_gpu_);
  }

  // GPUs within a pair of nodes first, then nodes among themselves by what that costs.
  void relabel() {
    std::vector<int64_t> node_cost(static_cast<size_t>(num_nodes_) * num_nodes_, 0);
    std::vector<std::vector<int32_t>> within(node_cost.size());
    std::vector<int64_t> cost(static_cast<size_t>(gpus_per_node_) * gpus_per_node_);
    for (int n = 0; n < num_nodes_; ++n) {
      for (int m = 0; m < num_nodes_; ++m) {
        for (int g = 0; g < gpus_per_node_; ++g) {
          for (int h = 0; h < gpus_per_node_; ++h) {
            // Staying is preferred among equals, so that an unchanged layer stays as it is.
            const int64_t copies =
                copies_needed(gpu(from_, n * gpus_per_node_ + g), gpu(to_, m * gpus_per_node_ + h));
            cost[g * gpus_per_node_ + h] = 2 * copies * num_gpus_ + (n != m || g != h);
          }
        }
        within[n * num_nodes_ + m] = assign_min_cost(cost, gpus_per_node_);
        for (int g = 0; g < gpus_per_node_; ++g) {
          node_cost[n * num_nodes_ + m] += cost[g * gpus_per_node_ + within[n * num_nodes_ + m][g]];
        }
      }
    }
    const std::vector<int32_t> node = assign_min_cost(node_cost, num_nodes_);
    for (int n = 0; n < num_nodes_; ++n) {
      for (int g = 0; g < gpus_per_node_; ++g) {
        takes_[n * gpus_per_node_ + g] = node[n] * gpus_per_node_ + within[n * num_nodes_ + node[n]][g];
      }
    }
  }

  const std::span<const int32_t> from_, to_;
  const int num_gpus_, num_nodes_, gpus_per_node_, slots_per_gpu_;
  std::vector<int32_t> takes_;
};

// Spreads one layer's copies over steps, none above the bound on any GPU.
class LayerScheduler {
 public:
  LayerScheduler(std::span<const int32_t> from, std::span<const int32_t> to, const MigrationOptions& options)
      : from_(from), options_(options), slots_per_gpu_(static_cast<int>(from.size()) / options.num_gpus) {
    for (int32_t slot = 0; slot < static_cast<int32_t>(to.size()); ++slot) {
      if (from[slot] != to[slot]) moves_.push_back({slot, to[slot], 0});
    }
  }
  int64_t num_moves() const { return static_cast<int64_t>(moves_.size()); }
  int32_t spare_slots() const {
    std::vector<int32_t> into(options_.num_gpus, 0);
    for (const Move& move : moves_) ++into[move.to_slot / slots_per_gpu_];
    return *std::max_element(into.begin(), into.end());
  }

  void run(int32_t layer, std::vector<MigrationStep>& steps) {
    sent_total_.assign(options_.num_gpus, 0);
    size_t open = moves_.size();
    while (open > 0) {
      MigrationStep step;
      sent_.assign(options_.num_gpus, 0);
      received_.assign(options_.num_gpus, 0);
      for (Move& move : moves_) {
        if (move.done_bytes < options_.expert_bytes && copy_some(layer, move, step)) --open;
      }
      if (open == 0) step.goes_live = layer;
      steps.push_back(std::move(step));
    }
  }

 private:
  struct Move {
    int32_t to_slot;
    int32_t expert;
    int64_t done_bytes;
  };

  int64_t room(int gpu, const std::vector<int64_t>& used) const {
    return options_.bytes_per_step_max - used[gpu];
  }

  // The live copy whose GPU can send most now; of equals the nearest node, then the one that has sent least
  // so far.
  int32_t best_source(const Move& move) const {
    const int to_gpu = move.to_slot / slots_per_gpu_;
    const int gpus_per_node = options_.num_gpus / options_.num_nodes;
    int32_t best = -1;
    const auto rank = [&](int32_t slot) {
      const int gpu = slot / slots_per_gpu_;
      return std::tuple(std::min(room(gpu, sent_), options_.expert_bytes - move.done_bytes),
                        gpu / gpus_per_node == to_gpu / gpus_per_node, -sent_total_[gpu]);
    };
    for (int32_t slot = 0; slot < static_cast<int32_t>(from_.size()); ++slot) {
      if (from_[slot] == move.expert && (best < 0 || rank(slot) > rank(best))) best = slot;
    }
    return best;
  }

  // True when the move is complete.
  bool copy_some(int32_t layer, Move& move, MigrationStep& step) {
    const int32_t source = best_source(move);
    const int from_gpu = source / slots_per_gpu_, to_gpu = move.to_slot / slots_per_gpu_;
    const int64_t bytes =
        std::min({options_.expert_bytes - move.done_bytes, room(from_gpu, sent_), room(to_gpu, received_)});
    if (bytes <= 0) return false;
    step.copies.push_back({layer, move.expert, source, move.to_slot, move.done_bytes, bytes});
    move.done_bytes += bytes;
    sent_[from_gpu] += bytes, sent_total_[from_gpu] += bytes, received_[to_gpu] += bytes;
    return move.done_bytes == options_.expert_bytes;
  }

  const std::span<const int32_t> from_;
  const MigrationOptions& options_;
  const int slots_per_gpu_;
  std::vector<Move> moves_;
  std::vector<int64_t> sent_, received_, sent_total_;
};

Status validate(const ExpertPlacement& from, const ExpertPlacement& to, const MigrationOptions& o) {
  if (from.num_layers != to.num_layers || from.num_experts != to.num_experts ||
      from.num_slots != to.num_slots) {
    return invalid_argument("placements differ in shape: {}x{}x{} and {}x{}x{} (layers, experts, slots)",
                            from.num_layers, from.num_experts, from.num_slots, to.num_layers, to.num_experts,
                            to.num_slots);
  }
  if (o.num_gpus < 1 || from.num_slots % o.num_gpus != 0 || o.num_nodes < 1 ||
      o.num_gpus % o.num_nodes != 0) {
    return invalid_argument("num_gpus {} and num_nodes {} do not divide {} slots", o.num_gpus, o.num_nodes,
                            from.num_slots);
  }
  if (o.expert_bytes < 1 || o.bytes_per_step_max < 1) {
    return invalid_argument("expert_bytes and bytes_per_step_max must be above 0");
  }
  return ok_status();
}

}  // namespace

Result<MigrationPlan> plan_migration(const ExpertPlacement& from, const ExpertPlacement& to,
                                     const MigrationOptions& options, std::span<const int32_t> layer_order) {
  RETURN_IF_ERROR(validate(from, to, options));
  std::vector<int32_t> order(layer_order.begin(), layer_order.end());
  if (order.empty()) {
    order.resize(from.num_layers);
    std::iota(order.begin(), order.end(), 0);
  }
  std::vector<int32_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (int32_t l = 0; l < static_cast<int32_t>(sorted.size()); ++l) {
    if (sorted[l] != l || static_cast<int>(sorted.size()) != from.num_layers) {
      return invalid_argument("layer_order is no order of the {} layers", from.num_layers);
    }
  }
  MigrationPlan plan;
  std::vector<int32_t> phy2log(from.phy2log.size());
  for (int32_t layer : order) {
    const std::vector<int32_t> slots = LayerArranger(from.slots(layer), to.slots(layer), options).arrange();
    std::copy(slots.begin(), slots.end(), phy2log.begin() + static_cast<ptrdiff_t>(layer) * from.num_slots);
    LayerScheduler scheduler(from.slots(layer), slots, options);
    plan.num_moves += scheduler.num_moves();
    plan.spare_slots = std::max(plan.spare_slots, scheduler.spare_slots());
    scheduler.run(layer, plan.steps);
  }
  plan.bytes_total = plan.num_moves * options.expert_bytes;
  ASSIGN_OR_RETURN(plan.target, placement_from_slots(from.num_layers, from.num_experts, std::move(phy2log)));
  return plan;
}

Status verify_migration(const ExpertPlacement& from, const MigrationPlan& plan,
                        const MigrationOptions& options) {
  RETURN_IF_ERROR(validate(from, plan.target, options));
  const int slots_per_gpu = from.num_slots / options.num_gpus;
  std::vector<int32_t> live = from.phy2log;
  std::vector<int64_t> arrived(live.size(), 0);
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    std::vector<int64_t> sent(options.num_gpus, 0), received(options.num_gpus, 0);
    for (const ExpertCopy& copy : plan.steps[s].copies) {
      const size_t row = static_cast<size_t>(copy.layer) * from.num_slots;
      if (live[row + copy.from_slot] != copy.expert) {
        return make_status(StatusCode::kInternal,
                           "always_live: step {} reads layer {} expert {} from slot {}, which is not live", s,
                           copy.layer, copy.expert, copy.from_slot);
      }
      if (plan.target.phy2log[row + copy.to_slot] != copy.expert ||
          arrived[row + copy.to_slot] != copy.offset_bytes) {
        return make_status(StatusCode::kInternal,
                           "reaches_target: step {} writes layer {} slot {} out of turn", s, copy.layer,
                           copy.to_slot);
      }
      arrived[row + copy.to_slot] += copy.bytes;
      sent[copy.from_slot / slots_per_gpu] += copy.bytes;
      received[copy.to_slot / slots_per_gpu] += copy.bytes;
    }
    for (int g = 0; g < options.num_gpus; ++g) {
      if (std::max(sent[g], received[g]) > options.bytes_per_step_max) {
        return make_status(StatusCode::kInternal, "bytes_bounded: step {} moves {} bytes on GPU {}", s,
                           std::max(sent[g], received[g]), g);
      }
    }
    const int32_t layer = plan.steps[s].goes_live;
    if (layer < 0) continue;
    const size_t row = static_cast<size_t>(layer) * from.num_slots;
    for (int slot = 0; slot < from.num_slots; ++slot) {
      const int32_t expert = plan.target.phy2log[row + slot];
      if (live[row + slot] != expert && arrived[row + slot] != options.expert_bytes) {
        return make_status(StatusCode::kInternal,
                           "always_live: layer {} goes live before slot {} has arrived", layer, slot);
      }
      live[row + slot] = expert;
    }
  }
  if (live != plan.target.phy2log)
    return make_status(StatusCode::kInternal, "reaches_target: some layer never goes live");
  return ok_status();
}

std::vector<int32_t> order_by_gain(const ExpertWeights& weights, const ExpertPlacement& from,
                                   const ExpertPlacement& to, int num_gpus) {
  std::vector<double> gain(from.num_layers);
  for (int l = 0; l < from.num_layers; ++l) {
    int64_t moves = 0;
    const int slots_per_gpu = from.num_slots / num_gpus;
    for (int g = 0; g < num_gpus; ++g) {
      moves += copies_needed(from.slots(l).subspan(g * slots_per_gpu, slots_per_gpu),
                             to.slots(l).subspan(g * slots_per_gpu, slots_per_gpu));
    }
    gain[l] = (gpu_load_summary(weights.layer(l), from, l, num_gpus).max_load -
               gpu_load_summary(weights.layer(l), to, l, num_gpus).max_load) /
              static_cast<double>(std::max<int64_t>(1, moves));
  }
  std::vector<int32_t> order(from.num_layers);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return gain[a] > gain[b]; });
  return order;
}

// Shortest augmenting paths with potentials, one row at a time.
std::vector<int32_t> assign_min_cost(std::span<const int64_t> cost, int n) {
  CHECK(cost.size() == static_cast<size_t>(n) * n);
  constexpr int64_t kFar = INT64_MAX / 4;
  std::vector<int64_t> row_potential(n + 1, 0), column_potential(n + 1, 0), distance(n + 1);
  std::vector<int32_t> row_of(n + 1, 0), before(n + 1, 0);  // 1-based; 0 is "none"
  std::vector<char> done(n + 1);
  for (int row = 1; row <= n; ++row) {
    row_of[0] = row;
    int column = 0;
    std::fill(distance.begin(), distance.end(), kFar);
    std::fill(done.begin(), done.end(), 0);
    do {
      done[column] = 1;
      const int r = row_of[column];
      int nearest = 0;
      for (int c = 1; c <= n; ++c) {
        if (done[c]) continue;
        const int64_t reduced =
            cost[static_cast<size_t>(r - 1) * n + c - 1] - row_potential[r] - column_potential[c];
        if (reduced < distance[c]) distance[c] = reduced, before[c] = column;
        if (nearest == 0 || distance[c] < distance[nearest]) nearest = c;
      }
      const int64_t step = distance[nearest];
      for (int c = 0; c <= n; ++c) {
        if (done[c]) {
          row_potential[row_of[c]] += step, column_potential[c] -= step;
        } else {
          distance[c] -= step;
        }
      }
      column = nearest;
    } while (row_of[column] != 0);
    while (column != 0) {
      row_of[column] = row_of[before[column]];
      column = before[column];
    }
  }
  std::vector<int32_t> column_of(n);
  for (int c = 1; c <= n; ++c) column_of[row_of[c] - 1] = c - 1;
  return column_of;
}

}  // namespace fathom
