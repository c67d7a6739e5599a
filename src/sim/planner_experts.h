// How uneven the experts of a unit are, for the planner: the expert balancer places experts by popularity
// that then drifts, and every step adds the noise of its own tokens. Pure; the Monte Carlo's draws are fixed.
#pragma once

#include <map>
#include <tuple>
#include <vector>

namespace fathom::sim {

struct ExpertTraffic {
  double popularity_sigma = 0;  // of log popularity over experts
  double popularity_drift = 0;  // of its change since the placement
};

class ExpertSpread {
 public:
  ExpertSpread(int experts, int ranks, int slots, const ExpertTraffic& traffic);
  // Busiest over mean of the ranks in a step that brings each this many (token, expert) copies on average: at
  // least 1, and falling with the batch.
  double imbalance(double copies_per_rank) const;

 private:
  // A rank's load over the mean: its share, plus noise over the root of the copies. Only ranks that can be
  // the busiest at some batch are kept.
  struct Rank {
    double share = 1, noise = 0;
  };
  std::vector<std::vector<Rank>> layers_;
};

// Spreads already drawn; planning asks for the same units again and again.
class ExpertSpreads {
 public:
  const ExpertSpread& of(int experts, int ranks, int slots, const ExpertTraffic& traffic);

 private:
  std::map<std::tuple<int, int, int, double, double>, ExpertSpread> drawn_;
};

}  // namespace fathom::sim
