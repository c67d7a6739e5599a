// The inside of run_block_fleet: events, requests as the api sees them, units,
// and the functions between them. One class over five files: block_fleet.cc
// (requests, faults, checks), _units.cc (steps), _handover.cc (the two legs),
// _scale.cc (which units serve), _metrics.cc (what is measured).
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

#include "balance/prefill_router.h"
#include "sim/active_faults.h"
#include "sim/block_fleet.h"
#include "sim/block_rank.h"
#include "sim/block_store.h"
#include "sim/overlap_times.h"

namespace fathom::sim {

inline constexpr int64_t kToApiNs = 1'000'000;
inline constexpr int64_t kRetryNs = 20'000'000;
inline constexpr int64_t kStopWriteNs = 1'000'000;  // of a KV copy that is told to stop
inline constexpr double kMessageMsMin = 0.2;
inline constexpr size_t kViolationsMax = 20;
inline constexpr uint64_t kTokenSpace = 1 << 17;

inline int64_t seconds_ns(double s) { return static_cast<int64_t>(s * 1e9 + 0.5); }

// Events in time order; equal times in the order they were made.
class EventQueue {
 public:
  void at(int64_t time_ns, std::function<void()> action) {
    heap_.push({time_ns, next_++, std::move(action)});
  }
  bool empty() const { return heap_.empty(); }
  int64_t next_ns() const { return heap_.top().time_ns; }
  std::function<void()> pop() {
    std::function<void()> action = std::move(const_cast<Event&>(heap_.top()).action);
    heap_.pop();
    return action;
  }

 private:
  struct Event {
    int64_t time_ns;
    uint64_t order;
    std::function<void()> action;
    bool operator<(const Event& o) const {
      return time_ns != o.time_ns ? time_ns > o.time_ns : order > o.order;
    }
  };
  std::priority_queue<Event> heap_;
  uint64_t next_ = 0;
};

enum class Phase { kUnrouted, kPrefill, kDecode, kFinished, kExpired, kRefused };

struct Request {
  int64_t arrival_ns = 0;
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
  std::shared_ptr<const KeyChain> keys;
  std::vector<uint64_t> block_hashes;  // as routers know the blocks
  Phase phase = Phase::kUnrouted;
  uint32_t epoch = 0;
  int32_t sent_tokens = 0;
  int64_t last_token_ns = 0;
  int prefill_unit = -1, prefill_rank = -1, decode_unit = -1, decode_rank = -1;
  int64_t prefill_since_ns = 0;
  int64_t expected_cached_tokens = 0;  // by the router that sent it
  int64_t deadline_ns = 0;
  // For the metrics, -1: not yet. Start of its first forward and of its first decode step, also where it is
  // replayed later; since when it waits for a decode rank with room.
  int64_t computed_from_ns = -1, decoded_from_ns = -1, waits_from_ns = -1;
  bool ttft_met = false;
  bool ended() const { return phase >= Phase::kFinished; }
};

struct Unit {
  bool decode = false;
  int idx = 0;
  std::vector<BlockRank> ranks;
  std::vector<double> slowness;  // per rank
  bool alive = true;
  bool open = true;  // the scale wants it; a closed one finishes what it has
  bool stepping = false;
  uint64_t incarnation = 1;
  uint64_t sequence = 0;
  int64_t cache_told_ns = 0;                          // when the last word of its caches arrives
  std::vector<AckTracker> acks;                       // per router
  std::vector<std::vector<BlockRank::Chunk>> chunks;  // per rank, of the running forward
};

class BlockFleet {
 public:
  BlockFleet(const HardwareProfile& hw, const ModelShape& model, const Trace& trace,
             const BlockFleetOptions& options);
  BlockFleetResult run(const Progress& progress);

 private:
  void violation(std::string text);

  // set-up

  int32_t blocks_of(int32_t asked, int ranks) const;
  int ranks_per_node() const { return std::max(1, static_cast<int>(hw_.gpus_per_node)); }
  int nodes_per_unit() const { return (options_.prefill_ranks + ranks_per_node() - 1) / ranks_per_node(); }
  void make_units();
  void make_balancers();
  void make_store();
  Unit& prefill_unit(int u);
  Unit& decode_unit(int u);
  BlockRank& rank_of(bool decode, int unit, int rank);

  // requests

  // Token ids that depend on the trace's blocks only, so that equal blocks give equal keys.
  std::vector<int32_t> prompt_tokens(const TraceRequest& r, uint64_t unique) const;
  void arrive(size_t trace_idx);
  void admit(const TraceRequest& r, uint64_t unique);
  // Whether a rank of each phase that it needs can hold it, alone and to its end.
  bool fits_a_rank(const TraceRequest& r) const;
  int64_t num_ended() const { return result_.finished + result_.expired + result_.refused_too_long; }
  void deadline(int id);
  void route(int id);
  // Asks the store for what of the prompt the rank's memory has not, where that is sooner there than
  // computed.
  void begin_read(BlockSequence& sequence, RankRef to);
  void replay(int id);

  // The api's cancel reaches both sides; whoever no longer has the request ignores it.
  void abort_where_it_runs(int id);

  // Tokens of one step of one sequence, as they reach the api.
  struct NewTokens {
    int request = 0;
    uint32_t epoch = 0;
    int32_t first = 0;  // position of the first of them
    int32_t count = 0;
    int unit = 0, rank = 0;  // whose step it was
    bool from_decode = false;
  };
  void tokens_at_api(const NewTokens& tokens);

  // prefill

  void wake(Unit& unit);
  void begin_forward(Unit& unit);
  void end_forward(Unit& unit);
  void prompt_done(Unit& unit, int rank, const BlockRank::Chunk& chunk);

  // A rank tells every router which blocks it holds now (`held`), and which it has no more or was expected
  // to have and has not: as late as load reports, and in order, so that an old eviction undoes nothing newer.
  void report_cache(Unit& unit, int rank, std::vector<uint64_t> blocks, bool held);
  void report_evicted(Unit& unit);
  void report_empty(Unit& unit);  // a new incarnation
  void forget_cached(const Unit& unit);
  // The prompt is given up before its end: its blocks were expected here.
  void drop_prefill(Unit& unit, int rank, int id, uint32_t epoch);
  int64_t next_cache_report_ns(Unit& unit);
  template <typename Deliver>  // Deliver: void(size_t router, const LoadReport&)
  void send_loads(Unit& unit, const std::vector<RankLoad>& loads, Deliver deliver);
  void report_prefill(Unit& unit);
  int64_t report_delay_ns() const;

  // hand-over

  void offer(int unit, int rank, int id, uint32_t epoch);

  // What a hand-over message carries beside its kind.
  struct Offer {
    int prefill_unit, prefill_rank, decode_unit, decode_rank, request;
    uint32_t epoch;
    int32_t prompt_tokens, num_tokens, left_tokens;
    uint64_t dispatch;
  };
  // Requests go to routers, and later to the decode balancers beside them, in turn.
  size_t router_of(int id) const { return static_cast<size_t>(id) % routers_.size(); }
  DecodeBalancer& decode_balancer_of(int id) { return *decode_balancers_[router_of(id)]; }
  Offer offer_of(const BlockSequence& s, bool at_prefill, int unit, int rank) const;
  void send(bool to_decode, HandoverMessage message, const Offer& offer);
  void prefill_message(HandoverMessage message, const Offer& offer);
  void prefill_event(int unit_idx, int rank, int id, uint32_t epoch, HandoverEvent event);
  void apply_prefill(int unit, int rank, BlockSequence& s, HandoverAction actions);
  void decode_message(HandoverMessage message, const Offer& offer);
  void decode_event(int unit_idx, int rank, int id, uint32_t epoch, HandoverEvent event);
  void apply_decode(int unit, int rank, BlockSequence& s, HandoverAction actions);

  // decode

  struct Stepping {
    int rank;
    int request;
    uint32_t epoch;
  };
  void begin_decode_step(Unit& unit);
  void retract_from_decode(Unit& unit, const Stepping& s);
  void end_decode_step(Unit& unit, const std::vector<Stepping>& stepping, double us);
  void report_decode(Unit& unit);

  // faults

  void schedule(const Fault& fault);
  Unit& unit_of(const Fault& fault);
  void apply_fault(const Fault& fault, bool begins);
  void lose(Unit& unit);

  // Heartbeats stopped: no more work goes there, and what ran there is replayed elsewhere.
  void found_lost(Unit& unit, uint64_t incarnation);
  bool still_held(Unit& unit, const Request& request, int id);
  bool held_by_decode(const Request& request, int id);
  void come_back(Unit& unit);
  void set_accepting(Unit& unit, bool accepting);

  // scale

  void start_scaling();
  void scale_units();
  void use_units(UnitCounts serving, UnitCounts held);
  void open_units(bool decode, int wanted);
  UnitCounts draining() const;
  // Nodes since the last call, up to a time.
  void account_nodes(int64_t until_ns);
  void count_drains();

  // metrics

  FleetCell& cell() { return cells_.at(now_); }
  void note_waiting(Request& request);    // for a decode rank with room
  void note_placed(Request& request);     // on one
  void note_computing(Request& request);  // a chunk of its prompt is in the forward that starts now
  void note_prompt(const Request& request, const BlockSequence& sequence);
  void note_token(Request& request);
  void note_end(const Request& request);
  struct ForwardWork {  // over the ranks of a unit
    double us_max = 0, us_sum = 0;
    int64_t tokens_max = 0, tokens_sum = 0, tokens_slowest = 0;
    size_t num_chunks = 0;
  };
  void note_forward(const Unit& unit, const ForwardWork& work, double us);
  struct StepWork {
    DecodeLoad load;  // a slow rank counts for more
    double kv_sum = 0, kv_most = 0;
  };
  void note_step(const Unit& unit, const StepWork& work, const SteadyLayer& layer, double us);
  void note_tokens(const BlockSequence& sequence, int32_t count, double us);

  // checks

  void check_rank(const BlockRank& rank);
  void check_answered(const Request& request, int id);
  // One request in eight is the victim.
  bool sabotages(BlockSabotage kind, int id) const { return options_.sabotage == kind && id % 8 == 3; }
  void sabotage_rank(BlockRank& rank, int id);
  void check_end();
  void finish_metrics();

  const HardwareProfile& hw_;
  const ModelShape& model_;
  const Trace& trace_;
  const BlockFleetOptions options_;
  Rng rng_;
  LayerCost sim_cost_;
  PrefillCost cost_;
  int64_t live_growth_tokens_ = 0;  // that a request in decode is still expected to bring
  DecodeUnitShape decode_shape_;
  EventQueue events_;
  int64_t now_ = 0;
  int64_t healed_ns_ = 0;
  std::vector<Unit> units_;
  std::vector<std::unique_ptr<PrefillRouter>> routers_;
  std::vector<std::unique_ptr<DecodeBalancer>> decode_balancers_;  // one beside each router
  std::unique_ptr<BlockStore> store_;                              // null: none
  std::vector<Request> requests_;
  std::unordered_map<BlockKey, uint64_t, BlockKeyHash> hash_of_key_;  // what workers keep beside their blocks
  uint64_t next_age_ = 0;
  ActiveFaults active_;
  double stale_s_ = 0;
  double crowd_ = 1;
  bool registry_lost_ = false;
  bool starts_blocked_ = false;
  int64_t last_arrival_ns_ = 0, last_end_ns_ = 0;
  GrowingCells cells_;
  UnitCounts held_;
  int64_t accounted_ns_ = 0;
  int64_t scaled_input_ = 0,
          scaled_output_ = 0;  // tokens that arrived since the last decision
  bool rank_sabotaged_ = false;
  int64_t busy_forwards_ = 0, busy_steps_ = 0;
  double prefill_cost_ratio_sum_ = 0, prefill_tokens_ratio_sum_ = 0;
  double kv_ratio_sum_ = 0, requests_ratio_sum_ = 0;
  double tokens_ = 0, tokens_x_speed_ = 0;
  BlockFleetResult result_;
};

}  // namespace fathom::sim
