// The Monte Carlo behind a unit's expert imbalance.
#include "sim/planner_experts.h"

#include <algorithm>
#include <cmath>

#include "balance/eplb.h"
#include "base/check.h"
#include "base/det_math.h"
#include "base/rng.h"

namespace fathom::sim {
namespace {

constexpr int kLayers = 8;  // of the Monte Carlo: their mean is steady to 1 %
constexpr uint64_t kSeed = 20250228;
constexpr double kProbabilityMin = 1e-12;

}  // namespace

ExpertSpread::ExpertSpread(int experts, int ranks, int slots, const ExpertTraffic& traffic)
    : layers_(kLayers) {
  if (ranks <= 1) return;  // one rank is its own mean
  std::vector<float> placed(static_cast<size_t>(kLayers * experts));
  std::vector<double> now(placed.size());
  Rng rng(kSeed);
  const auto normal = [&] {
    return normal_quantile(std::clamp(rng.next_double(), kProbabilityMin, 1 - kProbabilityMin));
  };
  for (size_t i = 0; i < placed.size(); ++i) {
    now[i] = det_exp(traffic.popularity_sigma * normal());
    placed[i] = static_cast<float>(now[i] * det_exp(traffic.popularity_drift * normal()));
  }
  for (int layer = 0; layer < kLayers; ++layer) {
    const size_t first = static_cast<size_t>(layer) * static_cast<size_t>(experts);
    const ExpertWeights weights{1, experts, std::span(placed).subspan(first, static_cast<size_t>(experts))};
    const auto placement = rebalance_experts(weights, {slots, 1, 1, ranks});
    CHECK_MSG(placement.ok(), placement.status().message());
    const double* popularity = now.data() + first;
    double sum = 0;
    for (int e = 0; e < experts; ++e) sum += popularity[e];
    std::vector<Rank> all(static_cast<size_t>(ranks), Rank{0, 0});
    const auto slot_expert = placement->slots(0);
    for (int s = 0; s < slots; ++s) {
      const int e = slot_expert[static_cast<size_t>(s)];
      const double copies = placement->counts(0)[static_cast<size_t>(e)];
      all[static_cast<size_t>(s / (slots / ranks))].share += popularity[e] / sum / copies * ranks;
    }
    for (Rank& rank : all) rank.noise = std::sqrt(rank.share) * normal();
    std::sort(all.begin(), all.end(), [](const Rank& a, const Rank& b) { return a.share > b.share; });
    for (const Rank& rank : all) {
      auto& kept = layers_[static_cast<size_t>(layer)];
      if (kept.empty() || rank.noise > kept.back().noise) kept.push_back(rank);
    }
  }
}

double ExpertSpread::imbalance(double copies_per_rank) const {
  const double noise_share = 1 / std::sqrt(copies_per_rank);
  double sum = 0;
  for (const auto& layer : layers_) {
    double busiest = 1;
    for (const Rank& rank : layer) busiest = std::max(busiest, rank.share + noise_share * rank.noise);
    sum += busiest;
  }
  return sum / static_cast<double>(layers_.size());
}

const ExpertSpread& ExpertSpreads::of(int experts, int ranks, int slots, const ExpertTraffic& traffic) {
  const std::tuple key{experts, ranks, slots, traffic.popularity_sigma, traffic.popularity_drift};
  auto found = drawn_.find(key);
  if (found == drawn_.end()) {
    found = drawn_.emplace(key, ExpertSpread(experts, ranks, slots, traffic)).first;
  }
  return found->second;
}

}  // namespace fathom::sim
