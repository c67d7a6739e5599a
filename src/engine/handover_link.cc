// Actions of the two legs, carried out in place.
#include "engine/handover_link.h"

#include "base/check.h"

namespace fathom {

void HandoverLink::offer(Sequence& s, TimePoint lease_end) {
  ++last_epoch_;
  s.stage = SequenceStage::kHandover;
  s.lease_end = lease_end;
  s.prefill_leg = PrefillLeg(last_epoch_);
  s.decode_leg = DecodeLeg(last_epoch_);
  // The offer's message is the sequence itself, standing in kHandover until try_accept().
  CHECK(s.prefill_leg.start() == HandoverAction::kSendOffer);
}

bool HandoverLink::try_accept(Sequence& s) {
  const int32_t rank = decode_.choose_rank(s);
  // A full engine lets offers wait for a slot, as long as their lease runs, rather than reject them.
  if (rank == kNoRank) return false;
  s.decode_rank = rank;
  apply_decode(s, s.decode_leg.on_offer(true));
  return s.stage == SequenceStage::kDecode;
}

void HandoverLink::expire(Sequence& s) {
  apply_prefill(s, s.prefill_leg.on_event(HandoverEvent::kLeaseExpired));
  CHECK(s.blocks.empty() && s.decode_blocks.empty());
}

void HandoverLink::abort(Sequence& s) {
  if (!s.prefill_leg.ended()) apply_prefill(s, s.prefill_leg.on_event(HandoverEvent::kAbort));
  if (!s.decode_leg.ended()) apply_decode(s, s.decode_leg.on_event(HandoverEvent::kAbort));
  CHECK(s.blocks.empty() && s.decode_blocks.empty());
}

void HandoverLink::decode_ended(Sequence& s) {
  apply_decode(s, s.decode_leg.on_event(HandoverEvent::kDecodeEnded));
  CHECK(s.blocks.empty());
}

void HandoverLink::apply_prefill(Sequence& s, HandoverAction actions) {
  using enum HandoverAction;
  // Nothing moves: the write ends as it starts.
  if (has(actions, kStartWrite)) return apply_prefill(s, s.prefill_leg.on_event(HandoverEvent::kWriteEnded));
  if (has(actions, kRelease)) prefill_.release(s);
  if (has(actions, kSendWritten)) apply_decode(s, s.decode_leg.on_message(HandoverMessage::kWritten));
  if (has(actions, kSendStopped)) apply_decode(s, s.decode_leg.on_message(HandoverMessage::kStopped));
  if (has(actions, kSendCancel)) apply_decode(s, s.decode_leg.on_message(HandoverMessage::kCancel));
}

void HandoverLink::apply_decode(Sequence& s, HandoverAction actions) {
  using enum HandoverAction;
  if (has(actions, kReserve)) decode_.reserve(s, s.decode_rank);
  if (has(actions, kRelease)) decode_.release(s);
  if (has(actions, kSendAccept)) apply_prefill(s, s.prefill_leg.on_message(HandoverMessage::kAccept));
  if (has(actions, kSendReject)) apply_prefill(s, s.prefill_leg.on_message(HandoverMessage::kReject));
  if (has(actions, kSendCancel)) apply_prefill(s, s.prefill_leg.on_message(HandoverMessage::kCancel));
  // The acknowledgement first: prefill lets go of the blocks that decode then takes over.
  if (has(actions, kSendAck)) apply_prefill(s, s.prefill_leg.on_message(HandoverMessage::kAck));
  if (has(actions, kStartDecode)) decode_.start(s);
}

}  // namespace fathom
