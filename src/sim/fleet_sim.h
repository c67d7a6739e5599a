// The published day, request by request: arrivals, prefill units, hand-over, decode units, on one virtual
// clock. docs/simulator.md says what is modelled and what is left out.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "sim/block_fleet.h"
#include "sim/day_files.h"
#include "sim/decode_placement.h"
#include "sim/fleet_metrics.h"
#include "sim/lengths.h"
#include "sim/profile.h"
#include "sim/scale.h"

namespace fathom::sim {

struct FleetShape {
  int decode_ranks = 144, decode_nodes = kDecodeUnitNodes, decode_slots = 288;
  int prefill_ranks = 32, prefill_nodes = kPrefillUnitNodes, prefill_slots = 288;
};

// Deliberate errors, so that tests can show that the checks of a day find them.
enum class DaySabotage {
  kNone,
  kLoseRequests,  // what a lost decode unit held is not replayed
  kIgnoreRoom,    // ranks fill beyond their memory: no admission, no retraction
  kLeakKv,        // a request that finishes leaves four tokens of KV behind
};

struct FleetOptions {
  DecodePolicy decode_policy = DecodePolicy::kKvCapped;
  PrefillPolicy prefill_policy = PrefillPolicy::kFathom;
  double report_delay_ms = 50;
  double fraction = 1;  // the first part of each hour that is simulated
  uint64_t seed = 1;
  double requests_per_day = 168e6;  // published: 168e9 output tokens, at 1,000 each
  LengthOptions lengths;
  double mtp_acceptance = 0.85;            // V3 report: 85-90 %
  double decode_expert_imbalance = 1.20;   // f_ep: Monte Carlo of the published placement, stale statistics
  double prefill_expert_imbalance = 1.08;  // f_ep
  bool kv_limit = true;                    // admission by KV; off only to compare with models that have none
  bool perfect_decode_balance =
      false;               // steps as if KV and requests were spread evenly: the balancers' bound
  double slo_ttft_s = 10;  // objectives, for attainment and goodput
  double slo_tokens_per_s_per_user = 15;
  int32_t decode_blocks_per_rank = 0;    // KV room of 64-token blocks; 0: what the profile's memory holds
  int32_t prefill_chunk_tokens = 32768;  // of a rank in one forward, at most
  int32_t queued_prompts_max = 256;      // per prefill rank, as the servers' --max-queued; more are refused
  std::vector<Fault> faults;             // times in seconds of the day
  DaySabotage sabotage = DaySabotage::kNone;
  FleetShape shape;
  ScaleFunction scale;         // empty: the day's schedule
  UnitCounts scale_units_max;  // with `scale`: what it may ask for
  UnitCounts scale_initial;    // and what serves before it is first asked
  double scale_interval_s = 60;
};

// The day's decode unit. With an acceptance of 0 there is no MTP layer: one token per request and step, and
// its weights leave room for KV.
DecodeUnitShape decode_shape_of(const FleetOptions& options);
// The day's prefill unit, its up-projection and context those of the load's prompts.
PrefillUnitShape prefill_shape_of(const FleetOptions& options, const PromptMix& mix);
// KV tokens that one decode rank holds.
double decode_room_tokens(const HardwareProfile& hw, const ModelShape& model, const FleetOptions& options);

struct FleetResult {
  FleetMetrics metrics;
  double kv_room_tokens = 0;
  int64_t unfinished_requests = 0;  // still in the system at the end
  int nodes_peak = 0;               // serving, starting and draining at one instant
  // Must stay 0: steps with a rank over its room; requests that arrived, were not refused, have not finished
  // and run nowhere; KV without an owner.
  int64_t kv_over_room_steps = 0;
  int64_t lost_requests = 0;
  int64_t kv_milli_unowned = 0;            // at the end, held for no request
  std::vector<DaySchedule::Change> units;  // what ran when, in day seconds
};

// Says which constant of the profile cannot carry the day's units.
Status validate_day_profile(const HardwareProfile& hw, const ModelShape& model, const FleetOptions& options);

// Says which fault names a unit or rank that the day has not, as "--fault: ...".
Status validate_faults(const std::vector<Fault>& faults, const UnitCounts& units_max,
                       const FleetShape& shape);

FleetResult run_day(const HardwareProfile& hw, const ModelShape& model, const DayFiles& day,
                    const FleetOptions& options, const Progress& progress);

}  // namespace fathom::sim
