// A small fleet, exact to the block: prefill and decode units of ranks with the servers' balancers, step
// plans, KV books and hand-over legs, on virtual time. Replays traces and injects faults under checkers. Only
// time, network and the forward pass are models.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "balance/decode_balancer.h"
#include "balance/prefill_balancer.h"
#include "sim/cost_model.h"
#include "sim/fleet_metrics.h"
#include "sim/scale.h"
#include "sim/trace.h"

namespace fathom::sim {

enum class FaultKind {
  kUnitLoss,      // a unit and all it holds is gone; it comes back empty at the end
  kSlowRank,      // one rank computes `factor` times slower
  kStaleReports,  // load reports arrive `factor` seconds late
  kFlashCrowd,    // `factor` times the arrivals
  kLostRegistry,  // membership changes are not learnt
  kNoNodes,       // units that start do not come up: of fleets that the autoscaler scales
};
Result<FaultKind> parse_fault_kind(std::string_view name);

struct Fault {
  FaultKind kind = FaultKind::kUnitLoss;
  double at_s = 0, for_s = 0;
  bool decode = true;  // which kind of unit
  int unit = 0, rank = 0;
  double factor = 2;
  bool operator==(const Fault&) const = default;
};

// Deliberate errors, one for each rule, so that tests can show that the checkers find them.
enum class BlockSabotage {
  kNone,
  kLoseToken,      // a decode step's tokens never reach the api
  kRepeatToken,    // they reach it twice
  kSecondWriter,   // a request writes into a block of another
  kSkewBooks,      // a reference nobody holds
  kLeakBlock,      // a block nobody gives back
  kKeepSequence,   // a decode rank does not drop what has ended
  kForgetRequest,  // neither served nor answered
  kAnswerLate,     // a request nobody serves is answered after its deadline
  kStayUnknown,    // the registry comes back and tells nobody
};

struct BlockFleetOptions {
  int prefill_units = 1, prefill_ranks = 32;
  int decode_units = 1, decode_ranks = 32;
  int expert_slots = 288;
  int32_t prefill_blocks_per_rank = 0;  // 0: what the profile's memory holds
  int32_t decode_blocks_per_rank = 0;
  int32_t chunk_tokens = 16384;  // a rank's prefill budget
  double store_tb = 0;           // of the external KV store that every prefill rank reads; 0: there is none
  PrefillPolicy prefill_policy = PrefillPolicy::kFathom;
  DecodePolicy decode_policy = DecodePolicy::kFathom;
  // Decode steps as if KV and requests were spread evenly: the bound of every decode policy.
  bool perfect_decode_balance = false;
  int num_routers = 1;  // side by side, each with its prefill and decode balancer, requests in turn
  double report_delay_ms = 50;
  double mtp_acceptance = 0.85;
  double expert_imbalance = 1.15;  // f_ep of both phases: between the published day's 1.08 and 1.20
  double deadline_s = 600;
  double slo_ttft_s = 10;  // objectives, for attainment and goodput
  double slo_tokens_per_s_per_user = 15;
  double rate_scale = 1;  // arrivals come this much faster than in the trace
  uint64_t seed = 1;
  double message_loss = 0;  // of hand-over messages
  double message_delay_ms_max = 2;
  double lease_s = 5;
  double detect_s = 1;  // until a lost unit is known to be lost
  std::vector<Fault> faults;
  bool check_books_often = false;
  // Liveness: once all faults have healed and so much time has passed, no request may run into its deadline.
  // 0: not demanded, for loads that are too much for the fleet.
  double liveness_s = 0;
  BlockSabotage sabotage = BlockSabotage::kNone;
  // Which of the units serve; empty: all, throughout. Asked every
  // scale_interval_s until the last request has arrived; before that
  // scale_initial serves.
  ScaleFunction scale;
  UnitCounts scale_initial;
  double scale_interval_s = 60;
  // The time that the result's units are told at, of a simulated time; empty: the same.
  std::function<double(double simulated_s)> clock_s;
  UnitCounts unit_nodes = kPublishedUnitNodes;
  // "FILE:LINE: FIELD" of prefill's and decode's blocks_per_rank and of prefill's units, of a fleet file.
  std::string blocks_place[2], prefill_units_place;
};

struct BlockFleetResult {
  int64_t requests = 0, finished = 0, expired = 0;  // expired: told so at their deadline
  int64_t refused_too_long = 0;                     // told so at once: longer than the memory of any rank
  int64_t replays = 0, retractions = 0, refused_offers = 0, stale_tokens = 0;
  int64_t input_tokens = 0, cached_tokens = 0, output_tokens = 0;
  // With a store: of cached_tokens those read from it, reads that computing would have beaten, what it holds
  // at the end and had to drop, and how long a read took.
  int64_t read_tokens = 0, reads_left_out = 0;
  double store_tb_used = 0;
  int64_t store_evicted_blocks = 0;
  LogHistogram read_us;
  int64_t evicted_blocks = 0;          // of prefill ranks
  int64_t expected_cached_tokens = 0;  // of the same prompts as cached_tokens, what their router counted on
  double prefill_tokens_ratio = 1,
         prefill_cost_ratio = 1;  // largest over mean of the ranks, over busy forwards
  double decode_kv_ratio = 1, decode_requests_ratio = 1;  // over steps with at least four requests per rank
  double tokens_per_s_per_user = 0;                       // token-weighted
  double ended_s = 0;
  double last_arrival_s = 0;
  // By time, from the start to the last answer. Percentiles of what users feel, and means over them.
  FleetMetrics metrics;
  double cell_s = 0;                       // length of a cell
  double kv_room_tokens = 0;               // of a decode rank
  std::vector<int64_t> decode_dispatches;  // per unit
  std::vector<int64_t> prefill_tokens;     // sent to each rank, unit-major
  // Until the last arrival: nodes serving and starting, and nodes that drain,
  // times seconds; and both at one instant.
  double node_seconds = 0, drain_node_seconds = 0;
  int nodes_peak = 0;
  std::vector<DaySchedule::Change> units;  // what ran when, where they are scaled
  LogHistogram ttft_ms, gap_ms;            // gap: between tokens of a request, as seen by the api
  std::vector<std::string> violations;     // of the safety and liveness rules; must be empty

  double hit_share() const {
    return input_tokens > 0 ? static_cast<double>(cached_tokens) / static_cast<double>(input_tokens) : 0;
  }
};

// Called now and then with the share done; may be empty.
using Progress = std::function<void(double done)>;

// Its decode unit. With an acceptance of 0 there is no MTP layer.
DecodeUnitShape decode_shape_of(const BlockFleetOptions& options);

// Says which limit or constant of the profile the fleet breaks, naming file and field.
Status validate_block_fleet(const HardwareProfile& hw, const ModelShape& model,
                            const BlockFleetOptions& options);

// Checked throughout, by name: tokens_in_order, tokens_once, no_block_with_two_writers, books_balance,
// answered_by_deadline; and after the faults have healed: served_after_healing, everything_ends,
// nothing_leaks.
BlockFleetResult run_block_fleet(const HardwareProfile& hw, const ModelShape& model, const Trace& trace,
                                 const BlockFleetOptions& options, const Progress& progress = {});

}  // namespace fathom::sim
