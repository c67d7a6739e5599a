// Requests, faults and checks of the block-exact fleet; steps and hand-over are in the files beside it.
#include "sim/block_fleet.h"

#include <algorithm>

#include "balance/route_hashes.h"
#include "sim/block_fleet_impl.h"

namespace fathom::sim {
namespace {

constexpr int64_t kProgressCalls = 1000;      // in a run
constexpr uint64_t kRouteRoot = 1;            // one model, one tenant
constexpr double kRankBlocksMin = 8;          // one prompt of a few blocks must fit
constexpr double kFleetBlocksMax = 32 << 20;  // some hundred MB of books

// As asked, or what the memory beside the weights holds.
double blocks_per_rank(const HardwareProfile& hw, const ModelShape& model, const BlockFleetOptions& options,
                       int32_t asked, int ranks) {
  if (asked > 0) return asked;
  const double slots = static_cast<double>(options.expert_slots) / ranks;
  return kv_room_tokens(hw, model, slots, options.mtp_acceptance > 0) / kBlockTokens;
}

}  // namespace

DecodeUnitShape decode_shape_of(const BlockFleetOptions& options) {
  const bool mtp = options.mtp_acceptance > 0;
  return {static_cast<double>(options.decode_ranks), static_cast<double>(options.expert_slots),
          mtp ? 2.0 : 1.0, options.expert_imbalance, mtp};
}

Status validate_block_fleet(const HardwareProfile& hw, const ModelShape& model,
                            const BlockFleetOptions& options) {
  const int routed = options.prefill_units * options.prefill_ranks;
  if (routed > PrefixIndex::kRanksMax) {
    return invalid_argument("{}: {} prefill ranks in all, a router knows at most {}",
                            options.prefill_units_place, routed, PrefixIndex::kRanksMax);
  }
  double total = 0, most = 0;
  bool most_decode = false;
  for (const bool decode : {false, true}) {
    const int ranks = decode ? options.decode_ranks : options.prefill_ranks;
    const int32_t asked = decode ? options.decode_blocks_per_rank : options.prefill_blocks_per_rank;
    const double blocks = blocks_per_rank(hw, model, options, asked, ranks);
    if (blocks < kRankBlocksMin) {
      return invalid_argument(
          "{}: {} GB leave room for {:.0f} KV blocks per {} rank of {:.2f} expert slots, at least {} are "
          "needed",
          hw.hbm_place, hw.hbm_gb, blocks, decode ? "decode" : "prefill",
          static_cast<double>(options.expert_slots) / ranks, kRankBlocksMin);
    }
    const double phase = blocks * ranks * (decode ? options.decode_units : options.prefill_units);
    total += phase;
    if (phase > most) most = phase, most_decode = decode;
  }
  if (total <= kFleetBlocksMax) return ok_status();
  // Named is the phase that has most of them: its ranks' number, or the memory they are taken from.
  std::string place = options.blocks_place[most_decode];
  const bool asked = (most_decode ? options.decode_blocks_per_rank : options.prefill_blocks_per_rank) > 0;
  if (place.empty()) place = asked ? "blocks_per_rank" : hw.hbm_place;
  return invalid_argument("{}: {:.0f} KV blocks in all ranks, a replay holds at most {:.0f}", place, total,
                          kFleetBlocksMax);
}

BlockFleet::BlockFleet(const HardwareProfile& hw, const ModelShape& model, const Trace& trace,
                       const BlockFleetOptions& options)
    : hw_(hw), model_(model), trace_(trace), options_(options), rng_(options.seed) {
  const TraceStats stats = trace_stats(trace);
  const PrefillUnitShape prefill{static_cast<double>(options.prefill_ranks),
                                 static_cast<double>(options.expert_slots), options.expert_imbalance,
                                 stats.mix.cached_per_computed, stats.mix.context_tokens};
  sim_cost_ = fit_prefill_cost(hw, model, prefill);
  live_growth_tokens_ = static_cast<int64_t>(stats.output_mean * (1 + stats.output_cv2) / 2);
  cost_.ns_per_token = sim_cost_.a_us_per_token * 1e3;
  cost_.ns_per_pair = sim_cost_.b_us_per_pair * 1e3;
  decode_shape_ = decode_shape_of(options);
  result_.decode_dispatches.resize(static_cast<size_t>(options.decode_units));
  result_.prefill_tokens.resize(static_cast<size_t>(options.prefill_units * options.prefill_ranks));
  make_units();
  make_store();
  make_balancers();
}

BlockFleetResult BlockFleet::run(const Progress& progress) {
  for (size_t i = 0; i < trace_.requests.size(); ++i) {
    const auto at =
        static_cast<int64_t>(static_cast<double>(trace_.requests[i].arrival_us) * 1e3 / options_.rate_scale);
    events_.at(at, [this, i] { arrive(i); });
    healed_ns_ = std::max(healed_ns_, at);
  }
  last_arrival_ns_ = healed_ns_;
  start_scaling();
  for (const Fault& fault : options_.faults) schedule(fault);
  const int64_t limit = healed_ns_ + seconds_ns(options_.deadline_s * 2 + 60);
  const auto all = static_cast<int64_t>(trace_.requests.size());
  int64_t told = 0;
  while (!events_.empty() && events_.next_ns() <= limit) {
    now_ = events_.next_ns();
    events_.pop()();
    const int64_t ended = num_ended();
    if (!progress || (ended - told) * kProgressCalls < all) continue;
    told = ended;
    progress(
        std::min(1.0, static_cast<double>(ended) / static_cast<double>(std::max(all, result_.requests))));
  }
  check_end();
  finish_metrics();
  return std::move(result_);
}

void BlockFleet::violation(std::string text) {
  if (result_.violations.size() < kViolationsMax) {
    result_.violations.push_back(fmt::format("{:.3f} s: {}", static_cast<double>(now_) / 1e9, text));
  }
}

int32_t BlockFleet::blocks_of(int32_t asked, int ranks) const {
  return static_cast<int32_t>(blocks_per_rank(hw_, model_, options_, asked, ranks));
}

void BlockFleet::make_units() {
  const auto budget_ns = static_cast<int64_t>(hw_.prefill_rank_budget_ms_per_layer * 1e6);
  const auto make = [&](bool decode, int count, int ranks, int32_t blocks) {
    for (int u = 0; u < count; ++u) {
      Unit& unit = units_.emplace_back();
      unit.decode = decode;
      unit.idx = u;
      for (int r = 0; r < ranks; ++r) {
        unit.ranks.emplace_back(blocks, options_.chunk_tokens, budget_ns);
        if (!decode) unit.ranks.back().remember_evicted();
      }
      unit.slowness.assign(static_cast<size_t>(ranks), 1.0);
      unit.acks.resize(static_cast<size_t>(options_.num_routers));
      unit.chunks.resize(static_cast<size_t>(ranks));
    }
  };
  make(false, options_.prefill_units, options_.prefill_ranks,
       blocks_of(options_.prefill_blocks_per_rank, options_.prefill_ranks));
  make(true, options_.decode_units, options_.decode_ranks,
       blocks_of(options_.decode_blocks_per_rank, options_.decode_ranks));
}

void BlockFleet::make_balancers() {
  const std::vector<int> ranks(static_cast<size_t>(options_.prefill_units), options_.prefill_ranks);
  for (int i = 0; i < options_.num_routers; ++i) {
    PrefillRouterOptions router;
    router.balancer.policy = options_.prefill_policy;
    router.balancer.cost = cost_;
    router.balancer.seed = options_.seed;
    router.balancer.balancer_idx = i;
    router.balancer.num_balancers = options_.num_routers;
    routers_.push_back(std::make_unique<PrefillRouter>(router, ranks));
  }
  DecodeBalancerOptions decode;
  decode.policy = options_.decode_policy;
  decode.seed = options_.seed;
  decode.admission.capacity_tokens =
      int64_t{blocks_of(options_.decode_blocks_per_rank, options_.decode_ranks)} * kBlockTokens;
  decode.num_balancers = options_.num_routers;
  for (int i = 0; i < options_.num_routers; ++i) {
    decode.balancer_idx = i;
    decode_balancers_.push_back(std::make_unique<DecodeBalancer>(decode));
    for (int u = 0; u < options_.decode_units; ++u) decode_balancers_.back()->add_unit(options_.decode_ranks);
  }
}

void BlockFleet::make_store() {
  if (options_.store_tb <= 0) return;
  const double block_bytes = model_.kv_bytes_per_token() * kBlockTokens;
  BlockStoreOptions store;
  store.blocks_max = std::max<int64_t>(1, static_cast<int64_t>(options_.store_tb * 1e12 / block_bytes));
  store.num_nodes = options_.prefill_units * nodes_per_unit();
  store.ns_per_block = block_bytes / hw_.kv_read_gb_per_s_per_node;
  store.latency_ns = static_cast<int64_t>(hw_.kv_read_latency_ms * 1e6);
  store_ = std::make_unique<BlockStore>(store);
  cost_.load_ns_per_token = store.ns_per_block / kBlockTokens / model_.layers;
}

Unit& BlockFleet::prefill_unit(int u) { return units_[static_cast<size_t>(u)]; }

Unit& BlockFleet::decode_unit(int u) { return units_[static_cast<size_t>(options_.prefill_units + u)]; }

BlockRank& BlockFleet::rank_of(bool decode, int unit, int rank) {
  return (decode ? decode_unit(unit) : prefill_unit(unit)).ranks[static_cast<size_t>(rank)];
}

std::vector<int32_t> BlockFleet::prompt_tokens(const TraceRequest& r, uint64_t unique) const {
  std::vector<int32_t> tokens(static_cast<size_t>(r.input_tokens));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const size_t block = i / static_cast<size_t>(trace_.block_tokens);
    const uint64_t id = r.blocks.empty() ? unique << 32 : r.blocks[block];
    tokens[i] = static_cast<int32_t>(hash_u64(id, i) % kTokenSpace);
  }
  return tokens;
}

void BlockFleet::arrive(size_t trace_idx) {
  admit(trace_.requests[trace_idx], trace_idx + 1);
  // A flash crowd brings more of the kind, with prompts of their own.
  double extra = crowd_ - 1;
  for (; extra > 0; extra -= 1) {
    if (extra < 1 && rng_.next_double() >= extra) break;
    TraceRequest other = trace_.requests[trace_idx];
    other.blocks.clear();
    admit(other, trace_.requests.size() + 1 + requests_.size());
  }
}

void BlockFleet::admit(const TraceRequest& r, uint64_t unique) {
  const auto id = static_cast<int>(requests_.size());
  Request& request = requests_.emplace_back();
  request.arrival_ns = now_;
  request.prompt_tokens = r.input_tokens;
  request.output_tokens = r.output_tokens;
  ++result_.requests;
  ++cell().arrived_requests;
  if (!fits_a_rank(r)) {
    request.phase = Phase::kRefused;
    ++result_.refused_too_long;
    ++cell().refused_requests;
    last_end_ns_ = now_;
    return;
  }
  KeyChain keys(root_key("simulated", "simulated", ""));
  const std::vector<int32_t> tokens = prompt_tokens(r, unique);
  keys.extend(tokens);
  append_route_hashes(kRouteRoot, tokens, kBlockTokens, request.block_hashes);
  for (int32_t b = 0; b < keys.size(); ++b)
    hash_of_key_.emplace(keys[b], request.block_hashes[static_cast<size_t>(b)]);
  request.keys = std::make_shared<const KeyChain>(std::move(keys));
  result_.input_tokens += r.input_tokens;
  scaled_input_ += r.input_tokens;
  scaled_output_ += r.output_tokens;
  request.deadline_ns = now_ + seconds_ns(options_.deadline_s);
  if (sabotages(BlockSabotage::kForgetRequest, id)) return;
  if (sabotages(BlockSabotage::kAnswerLate, id)) {
    events_.at(request.deadline_ns + seconds_ns(1), [this, id] { deadline(id); });
    return;
  }
  events_.at(request.deadline_ns, [this, id] { deadline(id); });
  route(id);
}

bool BlockFleet::fits_a_rank(const TraceRequest& r) const {
  const auto blocks_for = [](int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; };
  if (blocks_for(r.input_tokens) > blocks_of(options_.prefill_blocks_per_rank, options_.prefill_ranks))
    return false;
  if (r.output_tokens == 1) return true;  // prefill's own
  const int32_t room = blocks_of(options_.decode_blocks_per_rank, options_.decode_ranks);
  return blocks_for(r.input_tokens) < room &&
         blocks_for(int64_t{r.input_tokens} + r.output_tokens - 1) <= room;
}

void BlockFleet::deadline(int id) {
  Request& request = requests_[static_cast<size_t>(id)];
  if (request.ended()) return;
  abort_where_it_runs(id);
  ++request.epoch;
  request.phase = Phase::kExpired;
  note_end(request);
  check_answered(request, id);
}

void BlockFleet::route(int id) {
  Request& request = requests_[static_cast<size_t>(id)];
  if (request.ended()) return;
  const size_t router_idx = router_of(id);
  const int64_t tokens = request.prompt_tokens + request.sent_tokens;
  const int stored = store_ ? store_->num_held(request.block_hashes) : 0;
  const auto placed = routers_[router_idx]->route(tokens, request.block_hashes, stored);
  if (!placed) {  // no unit accepts: try again until the deadline
    request.phase = Phase::kUnrouted;
    events_.at(now_ + kRetryNs, [this, id, epoch = request.epoch] {
      const Request& r = requests_[static_cast<size_t>(id)];
      if (r.phase == Phase::kUnrouted && r.epoch == epoch) route(id);
    });
    return;
  }
  const RankRef to = placed->choice.rank;
  request.expected_cached_tokens = placed->choice.cached_tokens / kBlockTokens * kBlockTokens;
  request.phase = Phase::kPrefill;
  request.prefill_unit = to.unit;
  request.prefill_rank = to.rank;
  request.prefill_since_ns = now_;
  result_.prefill_tokens[static_cast<size_t>(to.unit * options_.prefill_ranks + to.rank)] += tokens;
  Unit& unit = prefill_unit(to.unit);
  if (!unit.alive) return;  // sent into the void; found out when the loss is
  unit.acks[router_idx].accept(placed->dispatch);
  auto sequence = std::make_unique<BlockSequence>();
  sequence->request = id;
  sequence->epoch = request.epoch;
  sequence->age = next_age_++;
  sequence->prompt_tokens = sequence->num_tokens = static_cast<int32_t>(tokens);
  sequence->left_tokens = request.output_tokens - request.sent_tokens;
  sequence->keys = request.keys;
  sequence->prefill_leg = PrefillLeg(request.epoch);
  if (store_) begin_read(*sequence, to);
  unit.ranks[static_cast<size_t>(to.rank)].add(std::move(sequence));
  // What the rank is going to hold, so that other routers' prompts with this prefix come here too.
  report_cache(unit, to.rank, request.block_hashes, true);
  wake(unit);
}

void BlockFleet::begin_read(BlockSequence& sequence, RankRef to) {
  const Request& request = requests_[static_cast<size_t>(sequence.request)];
  Unit& unit = prefill_unit(to.unit);
  const int32_t held = unit.ranks[static_cast<size_t>(to.rank)].num_held(*sequence.keys);
  const int32_t wanted =
      std::min(store_->num_held(request.block_hashes), (sequence.num_tokens - 1) / kBlockTokens);
  if (wanted <= held) return;
  const int node = to.unit * nodes_per_unit() + to.rank / ranks_per_node();
  const int64_t computing_ns = static_cast<int64_t>(
      model_.layers * static_cast<double>(cost_.cost_ns(int64_t{wanted - held} * kBlockTokens,
                                                        int64_t{held} * kBlockTokens)));
  if (store_->read_end_ns(node, now_, wanted - held) - now_ >= computing_ns) {
    ++result_.reads_left_out;
    return;
  }
  const auto blocks = std::span<const uint64_t>(request.block_hashes)
                          .subspan(static_cast<size_t>(held), static_cast<size_t>(wanted - held));
  const int64_t end_ns = store_->read(node, now_, blocks);
  result_.read_us.add(static_cast<uint64_t>((end_ns - now_) / 1000));
  sequence.store_blocks = wanted;
  sequence.loading = true;
  events_.at(end_ns, [this, &unit, rank = to.rank, id = sequence.request, epoch = sequence.epoch,
                      incarnation = unit.incarnation] {
    if (unit.incarnation != incarnation) return;
    unit.ranks[static_cast<size_t>(rank)].loaded(id, epoch);
    wake(unit);
  });
}

void BlockFleet::replay(int id) {
  Request& request = requests_[static_cast<size_t>(id)];
  if (request.ended()) return;
  ++result_.replays;
  ++cell().replays;
  ++request.epoch;
  request.decode_unit = request.decode_rank = -1;
  request.waits_from_ns = -1;
  route(id);
}

void BlockFleet::abort_where_it_runs(int id) {
  const Request& request = requests_[static_cast<size_t>(id)];
  if (request.prefill_unit >= 0) {
    prefill_event(request.prefill_unit, request.prefill_rank, id, request.epoch, HandoverEvent::kAbort);
  }
  if (request.decode_unit >= 0) {
    decode_event(request.decode_unit, request.decode_rank, id, request.epoch, HandoverEvent::kAbort);
  }
}

void BlockFleet::tokens_at_api(const NewTokens& tokens) {
  const int id = tokens.request;
  Request& request = requests_[static_cast<size_t>(id)];
  if (request.epoch != tokens.epoch || request.ended()) {
    result_.stale_tokens += tokens.count;
    if (tokens.from_decode) decode_event(tokens.unit, tokens.rank, id, tokens.epoch, HandoverEvent::kAbort);
    return;
  }
  if (tokens.first != request.sent_tokens) {
    violation(fmt::format("{}: request {} got token {} after {}",
                          tokens.first < request.sent_tokens ? "tokens_once" : "tokens_in_order", id,
                          tokens.first, request.sent_tokens));
  }
  note_token(request);
  request.last_token_ns = now_;
  request.sent_tokens += tokens.count;
  result_.output_tokens += tokens.count;
  if (tokens.from_decode) request.phase = Phase::kDecode;
  if (request.sent_tokens > request.output_tokens)
    violation(fmt::format("tokens_once: request {} got too many", id));
  if (request.sent_tokens >= request.output_tokens) {
    request.phase = Phase::kFinished;
    note_end(request);
    check_answered(request, id);
  }
}

void BlockFleet::schedule(const Fault& fault) {
  const int64_t at = seconds_ns(fault.at_s);
  const int64_t until = at + seconds_ns(fault.for_s);
  healed_ns_ = std::max(healed_ns_, until);
  events_.at(at, [this, fault] { apply_fault(fault, true); });
  events_.at(until, [this, fault] { apply_fault(fault, false); });
}

Unit& BlockFleet::unit_of(const Fault& fault) {
  return fault.decode ? decode_unit(fault.unit) : prefill_unit(fault.unit);
}

void BlockFleet::apply_fault(const Fault& fault, bool begins) {
  active_.set(fault, begins);
  switch (fault.kind) {
    case FaultKind::kUnitLoss: {
      Unit& unit = unit_of(fault);
      if (begins && unit.alive) lose(unit);
      if (!active_.lost(fault.decode, fault.unit)) come_back(unit);
      break;
    }
    case FaultKind::kSlowRank:
      unit_of(fault).slowness[static_cast<size_t>(fault.rank)] =
          active_.slowness(fault.decode, fault.unit, fault.rank);
      break;
    case FaultKind::kStaleReports:
      stale_s_ = active_.stale_s();
      break;
    case FaultKind::kFlashCrowd:
      crowd_ = active_.crowd();
      break;
    case FaultKind::kLostRegistry:
      registry_lost_ = active_.any(FaultKind::kLostRegistry);
      if (registry_lost_ || options_.sabotage == BlockSabotage::kStayUnknown) break;
      for (Unit& unit : units_) {
        if (unit.alive) set_accepting(unit, unit.open);
      }
      break;
    case FaultKind::kNoNodes:
      starts_blocked_ = active_.any(FaultKind::kNoNodes);
      break;
  }
}

void BlockFleet::lose(Unit& unit) {
  if (!unit.alive) return;
  unit.alive = false;
  unit.stepping = false;
  ++unit.incarnation;
  for (BlockRank& rank : unit.ranks) rank.clear();
  for (auto& chunks : unit.chunks) chunks.clear();
  events_.at(now_ + seconds_ns(options_.detect_s),
             [this, &unit, incarnation = unit.incarnation] { found_lost(unit, incarnation); });
}

void BlockFleet::found_lost(Unit& unit, uint64_t incarnation) {
  if (unit.incarnation == incarnation && !unit.alive) set_accepting(unit, false);
  for (int id = 0; id < static_cast<int>(requests_.size()); ++id) {
    Request& request = requests_[static_cast<size_t>(id)];
    if (request.ended() || request.phase == Phase::kUnrouted) continue;
    const bool here = unit.decode ? request.decode_unit == unit.idx : request.prefill_unit == unit.idx;
    if (!here || still_held(unit, request, id)) continue;
    if (!unit.decode && request.decode_unit >= 0 && held_by_decode(request, id)) continue;
    abort_where_it_runs(id);
    replay(id);
  }
}

bool BlockFleet::still_held(Unit& unit, const Request& request, int id) {
  const int rank = unit.decode ? request.decode_rank : request.prefill_rank;
  return unit.ranks[static_cast<size_t>(rank)].find(id, request.epoch) != nullptr;
}

bool BlockFleet::held_by_decode(const Request& request, int id) {
  BlockSequence* s = rank_of(true, request.decode_unit, request.decode_rank).find(id, request.epoch);
  return s != nullptr && s->stage == SequenceStage::kDecode;
}

void BlockFleet::come_back(Unit& unit) {
  if (unit.alive) return;
  unit.alive = true;
  ++unit.incarnation;
  unit.sequence = 0;
  for (AckTracker& acks : unit.acks) acks = AckTracker();
  // A new incarnation starts with empty loads; reports of the old one are ignored from here on.
  if (unit.decode) {
    report_decode(unit);
  } else {
    report_empty(unit);
    report_prefill(unit);
  }
  if (!registry_lost_) set_accepting(unit, unit.open);
}

void BlockFleet::set_accepting(Unit& unit, bool accepting) {
  if (unit.decode) {
    for (auto& balancer : decode_balancers_) balancer->set_accepting(unit.idx, accepting);
    return;
  }
  for (auto& router : routers_) router->balancer().set_accepting(unit.idx, accepting);
  if (!accepting) forget_cached(unit);
}

void BlockFleet::check_answered(const Request& request, int id) {
  if (now_ > request.deadline_ns) {
    violation(fmt::format("answered_by_deadline: request {} {:.3f} s late", id,
                          static_cast<double>(now_ - request.deadline_ns) / 1e9));
  }
  const bool in_good_time = request.deadline_ns > healed_ns_ + seconds_ns(options_.liveness_s);
  if (request.phase == Phase::kExpired && options_.liveness_s > 0 && in_good_time)
    violation(fmt::format("served_after_healing: request {} ran into its deadline", id));
}

void BlockFleet::sabotage_rank(BlockRank& rank, int id) {
  if (rank_sabotaged_ ||
      !(sabotages(BlockSabotage::kSecondWriter, id) || sabotages(BlockSabotage::kSkewBooks, id) ||
        sabotages(BlockSabotage::kLeakBlock, id)))
    return;
  rank_sabotaged_ = rank.sabotage(options_.sabotage, id);
}

void BlockFleet::check_rank(const BlockRank& rank) {
  if (!rank.violation().empty()) violation("no_block_with_two_writers: " + rank.violation());
  if (!options_.check_books_often) return;
  const Status status = rank.check();
  if (!status.ok()) violation("books_balance: " + status.message());
}

void BlockFleet::check_end() {
  for (size_t id = 0; id < requests_.size(); ++id) {
    if (!requests_[id].ended()) violation(fmt::format("answered_by_deadline: request {} never ended", id));
  }
  for (const Unit& unit : units_) {
    for (size_t r = 0; r < unit.ranks.size(); ++r) {
      const BlockRank& rank = unit.ranks[r];
      const char* kind = unit.decode ? "decode" : "prefill";
      if (rank.num_sequences() > 0) {
        violation(fmt::format("everything_ends: {} unit {} rank {} still holds {} sequences", kind, unit.idx,
                              r, rank.num_sequences()));
      }
      if (rank.references() > 0)
        violation(fmt::format("nothing_leaks: {} unit {} rank {}", kind, unit.idx, r));
      const Status status = rank.check();
      if (!status.ok()) violation("books_balance: " + status.message());
    }
  }
}

Result<FaultKind> parse_fault_kind(std::string_view name) {
  constexpr std::pair<std::string_view, FaultKind> kKinds[] = {
      {"unit-loss", FaultKind::kUnitLoss},         {"slow-rank", FaultKind::kSlowRank},
      {"stale-reports", FaultKind::kStaleReports}, {"flash-crowd", FaultKind::kFlashCrowd},
      {"lost-registry", FaultKind::kLostRegistry}, {"no-nodes", FaultKind::kNoNodes}};
  for (const auto& [text, kind] : kKinds) {
    if (text == name) return kind;
  }
  return invalid_argument(
      "--fault: \"{}\" is none of unit-loss, slow-rank, stale-reports, flash-crowd, lost-registry, no-nodes",
      name);
}

BlockFleetResult run_block_fleet(const HardwareProfile& hw, const ModelShape& model, const Trace& trace,
                                 const BlockFleetOptions& options, const Progress& progress) {
  return BlockFleet(hw, model, trace, options).run(progress);
}

}  // namespace fathom::sim
