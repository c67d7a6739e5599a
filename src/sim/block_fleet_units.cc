// Steps of the units: prefill forwards and decode steps, each as slow as its slowest rank.
#include <algorithm>

#include "sim/block_fleet_impl.h"

namespace fathom::sim {

void BlockFleet::wake(Unit& unit) {
  if (unit.stepping || !unit.alive) return;
  if (unit.decode) {
    begin_decode_step(unit);
  } else {
    begin_forward(unit);
  }
}

void BlockFleet::begin_forward(Unit& unit) {
  ForwardWork work;
  for (size_t r = 0; r < unit.ranks.size(); ++r) {
    const RankLoad load = unit.ranks[r].plan_prefill_step(cost_, unit.chunks[r]);
    const double us = static_cast<double>(load.cost) / 1e3 * unit.slowness[r];
    if (us > work.us_max) work.us_max = us, work.tokens_slowest = load.tokens;
    work.us_sum += us;
    work.tokens_max = std::max(work.tokens_max, load.tokens);
    work.tokens_sum += load.tokens;
    work.num_chunks += unit.chunks[r].size();
    for (const BlockRank::Chunk& chunk : unit.chunks[r])
      note_computing(requests_[static_cast<size_t>(chunk.request)]);
  }
  report_prefill(unit);
  if (work.num_chunks == 0) return;
  unit.stepping = true;
  const double us =
      prefill_forward_us(hw_, model_, sim_cost_, work.us_max, static_cast<double>(work.tokens_slowest));
  note_forward(unit, work, us);
  events_.at(now_ + static_cast<int64_t>(us * 1e3), [this, &unit, incarnation = unit.incarnation] {
    if (unit.incarnation == incarnation) end_forward(unit);
  });
}

void BlockFleet::end_forward(Unit& unit) {
  for (size_t r = 0; r < unit.ranks.size(); ++r) {
    for (const BlockRank::Chunk& chunk : unit.chunks[r]) {
      if (unit.ranks[r].finish_chunk(chunk)) prompt_done(unit, static_cast<int>(r), chunk);
    }
    unit.chunks[r].clear();
    check_rank(unit.ranks[r]);
  }
  unit.stepping = false;
  wake(unit);
}

void BlockFleet::prompt_done(Unit& unit, int rank, const BlockRank::Chunk& chunk) {
  BlockSequence& sequence = *unit.ranks[static_cast<size_t>(rank)].find(chunk.request, chunk.epoch);
  Request& request = requests_[static_cast<size_t>(chunk.request)];
  note_prompt(request, sequence);
  const auto published =
      std::span(request.block_hashes)
          .first(std::min(static_cast<size_t>(sequence.published), request.block_hashes.size()));
  report_cache(unit, rank, {published.begin(), published.end()}, true);
  if (store_) store_->put(published);
  sequence.stage = SequenceStage::kHandover;
  const int32_t position = sequence.prompt_tokens - request.prompt_tokens;
  --sequence.left_tokens;
  events_.at(now_ + kToApiNs, [this, chunk, position, u = unit.idx, rank] {
    tokens_at_api({chunk.request, chunk.epoch, position, 1, u, rank, false});
  });
  if (sequence.left_tokens == 0) {
    unit.ranks[static_cast<size_t>(rank)].erase(chunk.request, chunk.epoch);
  } else {
    offer(unit.idx, rank, chunk.request, chunk.epoch);
  }
}

int64_t BlockFleet::next_cache_report_ns(Unit& unit) {
  unit.cache_told_ns = std::max(unit.cache_told_ns, now_ + report_delay_ns());
  return unit.cache_told_ns;
}

void BlockFleet::report_cache(Unit& unit, int rank, std::vector<uint64_t> blocks, bool held) {
  if (blocks.empty()) return;
  events_.at(next_cache_report_ns(unit),
             [this, &unit, rank, held, blocks = std::move(blocks), incarnation = unit.incarnation] {
               if (unit.incarnation != incarnation) return;
               for (auto& router : routers_) {
                 const int global = router->global_rank({unit.idx, rank});
                 if (held) {
                   router->index().insert(global, blocks);
                 } else {
                   router->index().evict(global, blocks);
                 }
               }
             });
}

void BlockFleet::report_evicted(Unit& unit) {
  for (size_t r = 0; r < unit.ranks.size(); ++r) {
    std::vector<uint64_t> gone;
    for (const BlockKey& key : unit.ranks[r].take_evicted()) gone.push_back(hash_of_key_.at(key));
    result_.evicted_blocks += static_cast<int64_t>(gone.size());
    report_cache(unit, static_cast<int>(r), std::move(gone), false);
  }
}

void BlockFleet::report_empty(Unit& unit) {
  for (BlockRank& rank : unit.ranks) rank.take_evicted();
  events_.at(next_cache_report_ns(unit), [this, &unit, incarnation = unit.incarnation] {
    if (unit.incarnation == incarnation) forget_cached(unit);
  });
}

void BlockFleet::forget_cached(const Unit& unit) {
  for (auto& router : routers_) {
    for (int r = 0; r < options_.prefill_ranks; ++r)
      router->index().clear_rank(router->global_rank({unit.idx, r}));
  }
}

void BlockFleet::drop_prefill(Unit& unit, int rank, int id, uint32_t epoch) {
  BlockRank& owner = unit.ranks[static_cast<size_t>(rank)];
  owner.erase(id, epoch);
  const Request& request = requests_[static_cast<size_t>(id)];
  const std::span<const uint64_t> blocks = request.block_hashes;
  const auto missing = blocks.subspan(static_cast<size_t>(owner.num_held(*request.keys)));
  report_cache(unit, rank, {missing.begin(), missing.end()}, false);
}

// One report, late, to each of the balancers over the unit's ranks.
template <typename Deliver>
void BlockFleet::send_loads(Unit& unit, const std::vector<RankLoad>& loads, Deliver deliver) {
  ++unit.sequence;
  for (size_t i = 0; i < routers_.size(); ++i) {
    LoadReport header{
        unit.idx, unit.incarnation, unit.sequence, unit.acks[i].acked(), unit.acks[i].acked_beyond(), {}};
    events_.at(now_ + report_delay_ns(), [i, header, loads, deliver]() mutable {
      header.loads = loads;
      deliver(i, header);
    });
  }
}

void BlockFleet::report_prefill(Unit& unit) {
  report_evicted(unit);
  std::vector<RankLoad> loads;
  for (const BlockRank& rank : unit.ranks) loads.push_back(rank.prefill_load(cost_));
  send_loads(unit, loads,
             [this](size_t i, const LoadReport& report) { routers_[i]->balancer().report(report); });
}

int64_t BlockFleet::report_delay_ns() const { return seconds_ns(options_.report_delay_ms / 1e3 + stale_s_); }

void BlockFleet::begin_decode_step(Unit& unit) {
  std::vector<Stepping> stepping;
  std::vector<BlockSequence*> run, retract;
  StepWork work;
  DecodeLoad& load = work.load;
  std::vector<Stepping> retracted;
  for (size_t r = 0; r < unit.ranks.size(); ++r) {
    if (unit.ranks[r].num_sequences() == 0) continue;
    retract.clear();
    unit.ranks[r].plan_decode_step(run, retract);
    for (const BlockSequence* s : run) {
      stepping.push_back({static_cast<int>(r), s->request, s->epoch});
      int64_t& from_ns = requests_[static_cast<size_t>(s->request)].decoded_from_ns;
      if (from_ns < 0) from_ns = now_;
    }
    for (const BlockSequence* s : retract) retracted.push_back({static_cast<int>(r), s->request, s->epoch});
    const auto kv = static_cast<double>(unit.ranks[r].kv_tokens());
    load.requests_max = std::max(load.requests_max, static_cast<double>(run.size()) * unit.slowness[r]);
    load.kv_tokens_max = std::max(load.kv_tokens_max, kv * unit.slowness[r]);
    work.kv_most = std::max(work.kv_most, kv);
    work.kv_sum += kv;
  }
  for (const Stepping& s : retracted) retract_from_decode(unit, s);
  report_decode(unit);
  if (stepping.empty()) return;
  const auto num_ranks = static_cast<double>(unit.ranks.size());
  load.requests_mean = static_cast<double>(stepping.size()) / num_ranks;
  if (options_.perfect_decode_balance)
    load.requests_max = load.requests_mean, load.kv_tokens_max = work.kv_sum / num_ranks;
  unit.stepping = true;
  const SteadyLayer layer = decode_layer(decode_stages(hw_, model_, decode_shape_, load),
                                         decode_stages(hw_, model_, decode_shape_, load, false));
  const double us = decode_step_us(hw_, model_, decode_shape_, layer.layer_us);
  note_step(unit, work, layer, us);
  events_.at(now_ + static_cast<int64_t>(us * 1e3),
             [this, &unit, us, stepping = std::move(stepping), incarnation = unit.incarnation] {
               if (unit.incarnation == incarnation) end_decode_step(unit, stepping, us);
             });
}

void BlockFleet::retract_from_decode(Unit& unit, const Stepping& s) {
  ++result_.retractions;
  ++cell().retractions;
  decode_event(unit.idx, s.rank, s.request, s.epoch, HandoverEvent::kAbort);
  if (requests_[static_cast<size_t>(s.request)].epoch == s.epoch) replay(s.request);
}

void BlockFleet::end_decode_step(Unit& unit, const std::vector<Stepping>& stepping, double us) {
  for (const Stepping& at : stepping) {
    BlockRank& rank = unit.ranks[static_cast<size_t>(at.rank)];
    BlockSequence* s = rank.find(at.request, at.epoch);
    if (s == nullptr || s->stage != SequenceStage::kDecode) continue;
    const int32_t first = s->num_tokens + 1 - requests_[static_cast<size_t>(at.request)].prompt_tokens;
    const uint64_t draw =
        hash_u64(options_.seed, static_cast<uint64_t>(at.request), static_cast<uint64_t>(first));
    int32_t want = 1 + (unit_double(draw) < options_.mtp_acceptance);
    int32_t got = 0;
    while (got < std::min(want, s->left_tokens) && rank.grow(*s)) ++got;
    if (got == 0) continue;  // the plan promises one token; a second is luck
    s->left_tokens -= got;
    sabotage_rank(rank, at.request);
    note_tokens(*s, got, us);
    const int times = sabotages(BlockSabotage::kLoseToken, at.request) && s->left_tokens > 0 ? 0
                      : sabotages(BlockSabotage::kRepeatToken, at.request)                   ? 2
                                                                                             : 1;
    for (int i = 0; i < times; ++i) {
      events_.at(now_ + kToApiNs, [this, at, first, got, u = unit.idx] {
        tokens_at_api({at.request, at.epoch, first, got, u, at.rank, true});
      });
    }
    if (s->left_tokens == 0)
      decode_event(unit.idx, at.rank, at.request, at.epoch, HandoverEvent::kDecodeEnded);
  }
  for (const BlockRank& rank : unit.ranks) check_rank(rank);
  unit.stepping = false;
  wake(unit);
}

void BlockFleet::report_decode(Unit& unit) {
  std::vector<RankLoad> loads;
  for (const BlockRank& rank : unit.ranks) loads.push_back(rank.decode_load(live_growth_tokens_));
  send_loads(unit, loads,
             [this](size_t i, const LoadReport& report) { decode_balancers_[i]->report(report); });
}

}  // namespace fathom::sim
