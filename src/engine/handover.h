// The hand-over of one request from prefill to decode: two legs, one on each side, that know one another only
// by messages, which may be lost, late or out of order. Pure: a leg takes an event and says what to do.
// Servers, the single process and the simulator link the same code.
//
//   prefill leg                          decode leg
//   idle ── offer ─────────────────────▶ idle: reserves blocks, or refuses
//   offered ◀─────────── accept, reject ─
//   writing (KV moves to the reserved blocks)
//   written ── written ────────────────▶ reserved
//   done: releases its blocks ◀──── ack ─ decoding
//
// Every leg ends, whatever happens, by the other's message or by its own lease, and its blocks are released
// exactly once. A decode leg's blocks are not reusable while the other side may still write to them: they are
// released on a message that says the writer has ended (written, stopped, or a cancel, which a prefill leg
// only sends when it is not writing), or after a fence, which cuts the writer off.
//
// Messages carry the hand-over's epoch; a message of another epoch belongs to another pair of legs. A prefill
// leg that gave up after `written` cannot know whether decode has begun; its request is replayed under a new
// epoch, and tokens of the old one are dropped by whoever reads them.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>

namespace fathom {

enum class HandoverMessage : uint8_t {
  // prefill → decode
  kOffer,    // with the tokens, the parameters, the number of blocks and the lease
  kWritten,  // all KV is in the reserved blocks
  kStopped,  // nothing will be written (any more); the request is not handed over
  kCancel,   // also decode → prefill: the sender wants no hand-over, and is not writing
  // decode → prefill
  kAccept,  // blocks reserved
  kReject,  // none; or: a leg that has ended got a message it could only answer by this
  kAck,     // the request is decode's now
};

// What a leg asks its owner to do, in the order of the bits. `send_*` go to the other leg.
enum class HandoverAction : uint32_t {
  kNone = 0,
  kReserve = 1 << 0,      // decode: the slot and the blocks now belong to this leg
  kStartWrite = 1 << 1,   // prefill: start moving KV; its end is the event kWriteEnded
  kStopWrite = 1 << 2,    // prefill: stop as soon as possible; its end is the event kWriteEnded
  kFence = 1 << 3,        // decode: make the reserved blocks unreachable for the writer before going on
  kStartDecode = 1 << 4,  // decode: the request runs here from now on
  kAbortDecode = 1 << 5,  // decode: stop it
  kRelease = 1 << 6,      // the leg's blocks (and slot) go back
  kSendOffer = 1 << 7,
  kSendWritten = 1 << 8,
  kSendStopped = 1 << 9,
  kSendCancel = 1 << 10,
  kSendAccept = 1 << 11,
  kSendReject = 1 << 12,
  kSendAck = 1 << 13,
};
constexpr HandoverAction operator|(HandoverAction a, HandoverAction b) {
  return static_cast<HandoverAction>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
constexpr bool has(HandoverAction actions, HandoverAction action) {
  return (static_cast<uint32_t>(actions) & static_cast<uint32_t>(action)) != 0;
}

// Things that happen to a leg besides messages.
enum class HandoverEvent : uint8_t {
  kAbort,         // the client is gone, the deadline has passed, the server shuts down
  kLeaseExpired,  // the other side did not answer in time
  kWriteEnded,    // prefill: after kStartWrite, complete; after kStopWrite, complete or not
  kDecodeEnded,   // decode: the last token is out
};

// The prefill side. Its owner holds the request's blocks when it calls start(), until kRelease.
class PrefillLeg {
 public:
  enum class State : uint8_t {
    kIdle,
    kOffered,
    kWriting,
    kStopping,
    kWritten,
    // ends
    kDone,      // decode has it
    kRejected,  // decode will not; try another rank, or replay
    kAborted,
    kExpired,  // no answer; replay under a new epoch
  };

  explicit PrefillLeg(uint32_t epoch = 0) : epoch_(epoch) {}
  uint32_t epoch() const { return epoch_; }
  State state() const { return state_; }
  bool ended() const { return state_ >= State::kDone; }

  HandoverAction start();
  HandoverAction on_message(HandoverMessage message);
  HandoverAction on_event(HandoverEvent event);

  friend auto operator<=>(const PrefillLeg&, const PrefillLeg&) = default;

 private:
  HandoverAction end(State outcome, HandoverAction actions);
  HandoverAction stop_writing(State outcome);

  uint32_t epoch_;
  State state_ = State::kIdle;
  State outcome_ = State::kIdle;  // of kStopping
};

// The decode side. It is made when an offer (or a cancel that overtook it) arrives.
class DecodeLeg {
 public:
  enum class State : uint8_t {
    kIdle,
    kReserved,  // waits for the KV
    kDraining,  // wants to end, but the writer may still be at work
    kDecoding,
    kClosed,
  };

  explicit DecodeLeg(uint32_t epoch = 0) : epoch_(epoch) {}
  uint32_t epoch() const { return epoch_; }
  State state() const { return state_; }
  bool ended() const { return state_ == State::kClosed; }

  // `can_reserve`: a slot and enough blocks are free. (Other messages: on_message.)
  HandoverAction on_offer(bool can_reserve);
  HandoverAction on_message(HandoverMessage message);
  HandoverAction on_event(HandoverEvent event);

  friend auto operator<=>(const DecodeLeg&, const DecodeLeg&) = default;

 private:
  HandoverAction close(HandoverAction actions);

  uint32_t epoch_;
  State state_ = State::kIdle;
};

}  // namespace fathom
