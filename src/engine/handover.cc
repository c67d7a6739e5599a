// The two legs' transitions. What is not listed for a state is ignored: it is late, or of no consequence.
#include "engine/handover.h"

#include "base/check.h"

namespace fathom {

using enum HandoverAction;

HandoverAction PrefillLeg::end(State outcome, HandoverAction actions) {
  state_ = outcome;
  return actions | kRelease;
}

HandoverAction PrefillLeg::stop_writing(State outcome) {
  state_ = State::kStopping;
  outcome_ = outcome;
  return kStopWrite;
}

HandoverAction PrefillLeg::start() {
  CHECK(state_ == State::kIdle);
  state_ = State::kOffered;
  return kSendOffer;
}

HandoverAction PrefillLeg::on_message(HandoverMessage message) {
  switch (state_) {
    case State::kOffered:
      if (message == HandoverMessage::kAccept) {
        state_ = State::kWriting;
        return kStartWrite;
      }
      if (message == HandoverMessage::kReject) return end(State::kRejected, kNone);
      // Decode changed its mind and its accept is still under way: it holds its blocks until told.
      if (message == HandoverMessage::kCancel) return end(State::kRejected, kSendStopped);
      return kNone;
    case State::kWriting:
      if (message == HandoverMessage::kCancel || message == HandoverMessage::kReject) {
        return stop_writing(State::kRejected);
      }
      return kNone;
    case State::kWritten:
      if (message == HandoverMessage::kAck) return end(State::kDone, kNone);
      if (message == HandoverMessage::kCancel || message == HandoverMessage::kReject) {
        return end(State::kRejected, kNone);
      }
      return kNone;
    default:
      // An accept for an offer given up: nothing was or will be written.
      if (ended() && message == HandoverMessage::kAccept) return kSendStopped;
      return kNone;
  }
}

HandoverAction PrefillLeg::on_event(HandoverEvent event) {
  const State outcome = event == HandoverEvent::kAbort ? State::kAborted : State::kExpired;
  switch (state_) {
    case State::kIdle:
    case State::kOffered:
    case State::kWritten:
      if (event == HandoverEvent::kWriteEnded) return kNone;
      return end(outcome, state_ == State::kIdle ? kNone : kSendCancel);
    case State::kWriting:
      if (event == HandoverEvent::kWriteEnded) {
        state_ = State::kWritten;
        return kSendWritten;
      }
      return stop_writing(outcome);
    case State::kStopping:
      if (event == HandoverEvent::kWriteEnded) return end(outcome_, kSendStopped);
      return kNone;
    default:
      return kNone;
  }
}

HandoverAction DecodeLeg::close(HandoverAction actions) {
  state_ = State::kClosed;
  return actions;
}

HandoverAction DecodeLeg::on_offer(bool can_reserve) {
  if (state_ != State::kIdle || !can_reserve) {
    return state_ == State::kIdle || state_ == State::kClosed ? close(kSendReject) : kNone;
  }
  state_ = State::kReserved;
  return kReserve | kSendAccept;
}

HandoverAction DecodeLeg::on_message(HandoverMessage message) {
  const bool writer_has_ended = message == HandoverMessage::kWritten ||
                                message == HandoverMessage::kStopped || message == HandoverMessage::kCancel;
  if (!writer_has_ended) return kNone;
  switch (state_) {
    case State::kIdle:
      return close(kNone);  // the cancel overtook its offer
    case State::kReserved:
      if (message != HandoverMessage::kWritten) return close(kRelease);
      state_ = State::kDecoding;
      return kStartDecode | kSendAck;
    case State::kDraining:
      return close(message == HandoverMessage::kWritten ? kRelease | kSendReject : kRelease);
    case State::kDecoding:
      // The prefill side gave up before it heard the acknowledgement, and replays the request.
      return message == HandoverMessage::kCancel ? close(kAbortDecode | kRelease) : kNone;
    case State::kClosed:
      return message == HandoverMessage::kWritten ? kSendReject : kNone;
  }
  return kNone;
}

HandoverAction DecodeLeg::on_event(HandoverEvent event) {
  switch (state_) {
    case State::kIdle:
      return close(kNone);
    case State::kReserved:
      if (event == HandoverEvent::kLeaseExpired) return close(kFence | kRelease | kSendCancel);
      if (event != HandoverEvent::kAbort) return kNone;
      state_ = State::kDraining;
      return kSendCancel;
    case State::kDraining:
      return event == HandoverEvent::kLeaseExpired ? close(kFence | kRelease) : kNone;
    case State::kDecoding:
      if (event == HandoverEvent::kDecodeEnded) return close(kRelease);
      return event == HandoverEvent::kAbort ? close(kAbortDecode | kRelease) : kNone;
    case State::kClosed:
      return kNone;
  }
  return kNone;
}

}  // namespace fathom
