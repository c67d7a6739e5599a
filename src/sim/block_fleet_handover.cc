// The hand-over between units: both legs, and the network between them, which may delay, reorder and lose.
#include "sim/block_fleet_impl.h"

namespace fathom::sim {

void BlockFleet::offer(int unit, int rank, int id, uint32_t epoch) {
  BlockSequence* sequence = rank_of(false, unit, rank).find(id, epoch);
  if (sequence == nullptr || !prefill_unit(unit).alive) return;
  Request& request = requests_[static_cast<size_t>(id)];
  const auto placed = decode_balancer_of(id).place({sequence->num_tokens, sequence->left_tokens});
  if (!placed) {  // no rank has room: the prompt's blocks wait here
    note_waiting(request);
    events_.at(now_ + kRetryNs, [this, unit, rank, id, epoch, incarnation = prefill_unit(unit).incarnation] {
      if (prefill_unit(unit).incarnation == incarnation) offer(unit, rank, id, epoch);
    });
    return;
  }
  note_placed(request);
  sequence->peer_unit = placed->rank.unit;
  sequence->peer_rank = placed->rank.rank;
  sequence->dispatch = placed->dispatch;
  ++result_.decode_dispatches[static_cast<size_t>(placed->rank.unit)];
  request.decode_unit = placed->rank.unit;
  request.decode_rank = placed->rank.rank;
  apply_prefill(unit, rank, *sequence, sequence->prefill_leg.start());
  events_.at(now_ + seconds_ns(options_.lease_s), [this, unit, rank, id, epoch] {
    prefill_event(unit, rank, id, epoch, HandoverEvent::kLeaseExpired);
  });
}

BlockFleet::Offer BlockFleet::offer_of(const BlockSequence& s, bool at_prefill, int unit, int rank) const {
  const int peer_unit = s.peer_unit, peer_rank = s.peer_rank;
  return {at_prefill ? unit : peer_unit,
          at_prefill ? rank : peer_rank,
          at_prefill ? peer_unit : unit,
          at_prefill ? peer_rank : rank,
          s.request,
          s.epoch,
          s.prompt_tokens,
          s.num_tokens,
          s.left_tokens,
          s.dispatch};
}

void BlockFleet::send(bool to_decode, HandoverMessage message, const Offer& offer) {
  if (rng_.next_double() < options_.message_loss) return;
  const int64_t delay =
      seconds_ns((kMessageMsMin + rng_.next_double() * options_.message_delay_ms_max) / 1e3);
  events_.at(now_ + delay, [this, to_decode, message, offer] {
    if (to_decode) {
      decode_message(message, offer);
    } else {
      prefill_message(message, offer);
    }
  });
}

void BlockFleet::prefill_message(HandoverMessage message, const Offer& offer) {
  Unit& unit = prefill_unit(offer.prefill_unit);
  BlockSequence* s = unit.ranks[static_cast<size_t>(offer.prefill_rank)].find(offer.request, offer.epoch);
  if (!unit.alive || s == nullptr || s->stage != SequenceStage::kHandover) return;
  apply_prefill(offer.prefill_unit, offer.prefill_rank, *s, s->prefill_leg.on_message(message));
}

void BlockFleet::prefill_event(int unit_idx, int rank, int id, uint32_t epoch, HandoverEvent event) {
  Unit& unit = prefill_unit(unit_idx);
  BlockSequence* s = unit.ranks[static_cast<size_t>(rank)].find(id, epoch);
  if (!unit.alive || s == nullptr) return;
  if (s->stage == SequenceStage::kHandover) {
    apply_prefill(unit_idx, rank, *s, s->prefill_leg.on_event(event));
    s = unit.ranks[static_cast<size_t>(rank)].find(id, epoch);  // what was applied may have ended it
    // Waiting for a decode rank, the leg has not begun: nothing but the blocks to give back.
    if (event == HandoverEvent::kAbort && s != nullptr &&
        s->prefill_leg.state() == PrefillLeg::State::kIdle) {
      unit.ranks[static_cast<size_t>(rank)].erase(id, epoch);
    }
  } else if (event == HandoverEvent::kAbort) {
    drop_prefill(unit, rank, id, epoch);
  }
  wake(unit);
}

void BlockFleet::apply_prefill(int unit, int rank, BlockSequence& s, HandoverAction actions) {
  const int id = s.request;
  const uint32_t epoch = s.epoch;
  const Offer offer = offer_of(s, true, unit, rank);
  if (has(actions, HandoverAction::kStartWrite)) {
    events_.at(now_ + seconds_ns(hw_.kv_handover_ms / 1e3), [this, unit, rank, id, epoch] {
      prefill_event(unit, rank, id, epoch, HandoverEvent::kWriteEnded);
    });
  }
  if (has(actions, HandoverAction::kStopWrite)) {
    events_.at(now_ + kStopWriteNs, [this, unit, rank, id, epoch] {
      prefill_event(unit, rank, id, epoch, HandoverEvent::kWriteEnded);
    });
  }
  if (has(actions, HandoverAction::kSendOffer)) send(true, HandoverMessage::kOffer, offer);
  if (has(actions, HandoverAction::kSendWritten)) send(true, HandoverMessage::kWritten, offer);
  if (has(actions, HandoverAction::kSendStopped)) send(true, HandoverMessage::kStopped, offer);
  if (has(actions, HandoverAction::kSendCancel)) send(true, HandoverMessage::kCancel, offer);
  if (!has(actions, HandoverAction::kRelease)) return;
  const PrefillLeg::State outcome = s.prefill_leg.state();
  // Whatever the other side heard of it, nothing more comes of this dispatch, if there was one.
  if (outcome != PrefillLeg::State::kDone && s.dispatch > 0)
    decode_balancer_of(id).cancel(s.peer_unit, s.dispatch);
  rank_of(false, unit, rank).erase(id, epoch);
  wake(prefill_unit(unit));
  if (outcome == PrefillLeg::State::kRejected) {
    ++result_.refused_offers;
    ++cell().refused_offers;
  }
  if ((outcome == PrefillLeg::State::kRejected || outcome == PrefillLeg::State::kExpired) &&
      requests_[static_cast<size_t>(id)].epoch == epoch) {
    replay(id);
  }
}

void BlockFleet::decode_message(HandoverMessage message, const Offer& offer) {
  Unit& unit = decode_unit(offer.decode_unit);
  if (!unit.alive) return;
  if (message == HandoverMessage::kOffer) unit.acks[router_of(offer.request)].accept(offer.dispatch);
  BlockRank& rank = unit.ranks[static_cast<size_t>(offer.decode_rank)];
  BlockSequence* s = rank.find(offer.request, offer.epoch);
  if (s == nullptr) {
    if (message != HandoverMessage::kOffer) return;
    auto made = std::make_unique<BlockSequence>();
    made->request = offer.request;
    made->epoch = offer.epoch;
    made->age = next_age_++;
    made->prompt_tokens = offer.prompt_tokens;
    made->num_tokens = offer.num_tokens;
    made->left_tokens = offer.left_tokens;
    made->stage = SequenceStage::kHandover;
    made->decode_leg = DecodeLeg(offer.epoch);
    made->peer_unit = offer.prefill_unit;
    made->peer_rank = offer.prefill_rank;
    s = &rank.add(std::move(made));
    apply_decode(offer.decode_unit, offer.decode_rank, *s,
                 s->decode_leg.on_offer(rank.can_reserve(offer.num_tokens)));
    events_.at(now_ + seconds_ns(options_.lease_s), [this, offer] {
      decode_event(offer.decode_unit, offer.decode_rank, offer.request, offer.epoch,
                   HandoverEvent::kLeaseExpired);
    });
    return;
  }
  const HandoverAction actions =
      message == HandoverMessage::kOffer ? s->decode_leg.on_offer(false) : s->decode_leg.on_message(message);
  apply_decode(offer.decode_unit, offer.decode_rank, *s, actions);
}

void BlockFleet::decode_event(int unit_idx, int rank, int id, uint32_t epoch, HandoverEvent event) {
  Unit& unit = decode_unit(unit_idx);
  BlockSequence* s = unit.ranks[static_cast<size_t>(rank)].find(id, epoch);
  if (!unit.alive || s == nullptr) return;
  apply_decode(unit_idx, rank, *s, s->decode_leg.on_event(event));
}

void BlockFleet::apply_decode(int unit, int rank, BlockSequence& s, HandoverAction actions) {
  BlockRank& owner = rank_of(true, unit, rank);
  const Offer offer = offer_of(s, false, unit, rank);
  if (has(actions, HandoverAction::kReserve)) owner.reserve_all(s);
  if (has(actions, HandoverAction::kFence)) s.write_fenced = true;
  if (has(actions, HandoverAction::kStartDecode)) {
    s.stage = SequenceStage::kDecode;
    s.num_stored = s.num_tokens;
  }
  if (has(actions, HandoverAction::kSendAccept)) send(false, HandoverMessage::kAccept, offer);
  if (has(actions, HandoverAction::kSendReject)) send(false, HandoverMessage::kReject, offer);
  if (has(actions, HandoverAction::kSendAck)) send(false, HandoverMessage::kAck, offer);
  if (has(actions, HandoverAction::kSendCancel)) send(false, HandoverMessage::kCancel, offer);
  // A step may be running; it looks sequences up again when it ends.
  if (s.decode_leg.ended() && !sabotages(BlockSabotage::kKeepSequence, s.request))
    owner.erase(offer.request, offer.epoch);
  wake(decode_unit(unit));
}

}  // namespace fathom::sim
