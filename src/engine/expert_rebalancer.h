// Where an EP group's expert replicas live, by what its tokens have chosen: counts of steps in, placements of
// single layers out, between steps. In one process slots refer to weights, so a new placement moves no bytes.
//
// Invariants, by name:
// * one_layer_a_step: between two steps at most one layer is placed anew, some ten microseconds of work
// * worth_it: a layer is replaced only if its busiest rank's load falls by gain_min of it
// * fresh: a window that is over counts for twice as much as all before it
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ep/placement.h"

namespace fathom {

struct ExpertRebalancerOptions {
  // A window of statistics ends when an expert got so many tokens on average: below some dozens, chance
  // decides which one is hot.
  int64_t window_tokens_per_expert = 128;
  double gain_min = 0.05;
};

// One owner: whoever steps the group. `table` outlives it.
class ExpertRebalancer {
 public:
  explicit ExpertRebalancer(PlacementTable& table, const ExpertRebalancerOptions& options = {});

  // After each step: [layers, experts], the tokens that chose each expert in it.
  void after_step(std::span<const int64_t> expert_tokens);

  int64_t num_replaced() const { return num_replaced_; }  // layers, since the start

 private:
  void place_anew(int layer);

  const ExpertRebalancerOptions options_;
  PlacementTable& table_;
  const PlacementShape shape_;
  std::vector<int64_t> window_;  // [layers, experts] since the last window's end
  std::vector<float> weights_;   // [layers, experts]
  int64_t window_routed_ = 0;    // (token, expert) pairs of the first layer; all layers have as many
  int next_layer_;               // to look at; shape_.num_layers: none
  int64_t num_replaced_ = 0;
};

}  // namespace fathom
