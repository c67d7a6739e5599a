// Faults on small fleets under the checkers of safety and liveness, with everything that may meet them drawn
// from the seed: policies, routers, scaling, deadlines, memory and the network.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "balance/fleet_ledger.h"
#include "base/rng.h"
#include "sim/block_fleet.h"
#include "sim/test_fleet.h"
#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

enum class ScaleMode { kFixed, kAnyTargets, kAutoscaled };
constexpr const char* kScaleModes[] = {"fixed", "any targets", "autoscaled"};

// What a seed stands for.
struct Drawn {
  BlockFleetOptions options;
  ScaleMode scale = ScaleMode::kFixed;
  bool short_deadline = false;
  bool short_of_memory = false;
  std::string text;
};

template <typename T, size_t kCount>
T one_of(Rng& rng, const T (&values)[kCount]) {
  return values[rng.next_below(kCount)];
}

// Any units at any time.
ScaleFunction any_targets(uint64_t seed) {
  return [seed](const ScaleInput& in) {
    const uint64_t draw = hash_u64(seed, static_cast<uint64_t>(in.day_second));
    const UnitCounts units{1 + static_cast<int>(draw & 1), 1 + static_cast<int>(draw >> 1 & 1)};
    return ScaleOutput{units, units};
  };
}

// The servers' autoscaler over the small fleet, quick enough to grow and shrink within seconds.
class Autoscaled {
 public:
  Autoscaled() : options_(options()), ledger_(options_, {2, 2}, 0) {}

  ScaleOutput operator()(const ScaleInput& in) {
    ledger_.set_starts_blocked(in.starts_blocked);
    ledger_.advance(in.day_second, {in.draining.prefill, in.draining.decode});
    AutoscaleSnapshot snapshot;
    snapshot.now_s = in.day_second;
    LoadPoint point;
    point.time_s = in.day_second;
    point.tokens_per_s[0] = in.arrived_computed_tokens_per_s;
    point.tokens_per_s[1] = in.arrived_output_tokens_per_s;
    for (int k = 0; k < kNumUnitKinds; ++k) {
      snapshot.units[k] = ledger_.counts(static_cast<UnitKind>(k));
      snapshot.tokens_per_s[k] = point.tokens_per_s[k];
    }
    history_.push_back(point);
    snapshot.history = history_;
    ledger_.apply(autoscale(snapshot, options_));
    const fathom::UnitCounts prefill = ledger_.counts(UnitKind::kPrefill);
    const fathom::UnitCounts decode = ledger_.counts(UnitKind::kDecode);
    return {{decode.serving, prefill.serving}, {decode.target(), prefill.target()}, {}};
  }

 private:
  static AutoscaleOptions options() {
    AutoscaleOptions options;
    options.unit[0] = {.nodes = 2, .tokens_per_s = 16'000, .start_s = 0.5, .drain_s = 1};
    options.unit[1] = {.nodes = 2, .tokens_per_s = 1'300, .start_s = 0.5, .drain_s = 2};
    options.units_max[0] = options.units_max[1] = 2;
    options.budget_nodes = 8;
    options.interval_s = 1;
    options.minimum_stay_s = 1;
    options.look_ahead_s = 1;
    options.start_timeout_s = options.backoff_s = 1;
    return options;
  }

  const AutoscaleOptions options_;
  FleetLedger ledger_;
  std::vector<LoadPoint> history_;
};

void draw_faults(Rng& rng, int num_kinds, BlockFleetOptions& options) {
  options.message_loss = rng.next_below(2) == 0 ? 0 : 0.05;
  options.message_delay_ms_max = rng.next_below(2) == 0 ? 2 : 200;
  const int num_faults = static_cast<int>(rng.next_below(3)) + 1;
  for (int i = 0; i < num_faults; ++i) {
    Fault fault;
    fault.kind = static_cast<FaultKind>(rng.next_below(static_cast<uint64_t>(num_kinds)));
    fault.at_s = 0.5 + rng.next_double() * 5;
    fault.for_s = 0.2 + rng.next_double() * 6;
    fault.decode = rng.next_below(2) == 0;
    fault.unit = static_cast<int>(rng.next_below(2));
    fault.rank = static_cast<int>(rng.next_below(16));
    fault.factor = fault.kind == FaultKind::kSlowRank ? 4 : 2;
    options.faults.push_back(fault);
  }
}

void draw_scale(Rng& rng, Drawn& drawn) {
  drawn.scale = static_cast<ScaleMode>(rng.next_below(3));
  BlockFleetOptions& options = drawn.options;
  if (drawn.scale == ScaleMode::kFixed) return;
  options.unit_nodes = {2, 2};
  options.scale_initial = {2, 2};
  options.scale_interval_s = 1;
  if (drawn.scale == ScaleMode::kAnyTargets) {
    options.scale = any_targets(options.seed);
  } else {
    options.scale = [scaled = std::make_shared<Autoscaled>()](const ScaleInput& in) { return (*scaled)(in); };
  }
}

// All faults heal before the end.
Drawn draw(uint64_t seed) {
  Drawn drawn;
  BlockFleetOptions& options = drawn.options = small_fleet();
  options.seed = seed;
  Rng rng(hash_u64(seed, 77));
  draw_scale(rng, drawn);
  draw_faults(rng, drawn.scale == ScaleMode::kAutoscaled ? 6 : 5, options);
  options.prefill_policy =
      one_of(rng, {PrefillPolicy::kRandom, PrefillPolicy::kRoundRobin, PrefillPolicy::kLeastRequests,
                   PrefillPolicy::kLeastTokens, PrefillPolicy::kFathom});
  options.decode_policy =
      one_of(rng, {DecodePolicy::kRandom, DecodePolicy::kRoundRobin, DecodePolicy::kLeastRequests,
                   DecodePolicy::kLeastRequestsKv, DecodePolicy::kKvCount, DecodePolicy::kP2cKv,
                   DecodePolicy::kKvCapped, DecodePolicy::kFathom});
  options.num_routers = 1 + static_cast<int>(rng.next_below(3));
  options.report_delay_ms = one_of(rng, {0.0, 50.0, 1000.0});
  options.mtp_acceptance = one_of(rng, {0.0, 0.85});
  drawn.short_of_memory = rng.next_below(4) == 0;
  if (drawn.short_of_memory) options.decode_blocks_per_rank = 20;
  drawn.short_deadline = rng.next_below(3) == 0;
  if (drawn.short_deadline) options.deadline_s = 0.3 + rng.next_double() * 3;
  drawn.text =
      fmt::format("seed {}: {} / {}, {} routers, {}, deadline {:.1f} s, {} blocks a decode rank", seed,
                  prefill_policy_name(options.prefill_policy), decode_policy_name(options.decode_policy),
                  options.num_routers, kScaleModes[static_cast<int>(drawn.scale)], options.deadline_s,
                  options.decode_blocks_per_rank);
  return drawn;
}

// Short of memory, many requests of a few blocks each, which ranks run out of and must retract.
Trace load_of(const Drawn& drawn) {
  const uint64_t seed = drawn.options.seed;
  if (!drawn.short_of_memory) return small_load(seed, 25, 4);
  SyntheticOptions options;
  options.seconds = 3;
  options.requests_per_s = 80;
  options.shared_share = 0.2;
  options.lengths.input_mean_tokens = 150;
  options.lengths.input_tokens_max = 500;
  options.lengths.output_mean_tokens = 120;
  options.lengths.output_cv2 = 0.3;
  options.lengths.output_tokens_max = 400;
  return synthetic_trace(options, seed);
}

TEST(BlockFleet, SafetyAndLivenessUnderRandomFaults) {
  const char* asked = std::getenv("FATHOM_FAULT_SEEDS");  // the slow suite asks for thousands
  const uint64_t num_seeds = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 100;
  const HardwareProfile hw = test_profile("h800");
  BlockFleetResult sum;
  int64_t unit_changes = 0;
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
    const Drawn drawn = draw(seed);
    const BlockFleetResult result = run_block_fleet(hw, {}, load_of(drawn), drawn.options);
    expect_clean(result, drawn.text);
    // Every fault heals long before a deadline of a minute.
    EXPECT_TRUE(drawn.short_deadline || result.expired == 0) << drawn.text << ": " << result.expired;
    sum.requests += result.requests;
    sum.expired += result.expired;
    sum.replays += result.replays;
    sum.retractions += result.retractions;
    sum.refused_offers += result.refused_offers;
    sum.stale_tokens += result.stale_tokens;
    if (drawn.options.scale) unit_changes += static_cast<int64_t>(result.units.size()) - 1;
    if (testing::Test::HasFailure()) break;
  }
  std::printf(
      "%llu seeds: %lld requests, %lld expired, %lld replays, %lld retractions, %lld refused offers, %lld "
      "tokens of old epochs dropped, units changed %lld times\n",
      static_cast<unsigned long long>(num_seeds), static_cast<long long>(sum.requests),
      static_cast<long long>(sum.expired), static_cast<long long>(sum.replays),
      static_cast<long long>(sum.retractions), static_cast<long long>(sum.refused_offers),
      static_cast<long long>(sum.stale_tokens), static_cast<long long>(unit_changes));
  for (const int64_t count : {sum.expired, sum.replays, sum.retractions, sum.refused_offers, unit_changes})
    EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace fathom::sim
