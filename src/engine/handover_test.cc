// Visits every state that two legs, the messages between them and the writer can reach, with messages lost,
// late and out of order, and aborts and lease expiries at any moment, and checks the rules in each.
#include "engine/handover.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace fathom {
namespace {

using enum HandoverAction;
using Message = HandoverMessage;
using Event = HandoverEvent;

// For the trace that leads to a broken rule.
std::string message_name(Message message) {
  constexpr const char* kNames[] = {"offer", "written", "stopped", "cancel", "accept", "reject", "ack"};
  return kNames[static_cast<size_t>(message)];
}

enum class Writer : uint8_t { kNone, kActive, kComplete, kIncomplete };

struct World {
  PrefillLeg prefill{7};
  DecodeLeg decode{7};
  std::multiset<Message> to_decode, to_prefill;
  Writer writer = Writer::kNone;
  bool fenced = false;
  bool prefill_holds = true;
  bool decode_holds = false;
  bool decode_runs = false;
  bool decode_has_run = false;
  std::string trace;  // how we got here; not part of the state

  auto key() const {
    return std::tuple(prefill, decode, to_decode, to_prefill, writer, fenced, prefill_holds, decode_holds,
                      decode_runs, decode_has_run);
  }
  bool operator<(const World& other) const { return key() < other.key(); }
};

void apply_prefill(World& w, HandoverAction actions) {
  if (has(actions, kStartWrite)) {
    EXPECT_EQ(w.writer, Writer::kNone) << w.trace;
    EXPECT_TRUE(w.decode_holds || w.fenced) << "written to blocks nobody reserved:" << w.trace;
    w.writer = Writer::kActive;
  }
  if (has(actions, kRelease)) {
    EXPECT_TRUE(w.prefill_holds) << "prefill released twice:" << w.trace;
    EXPECT_NE(w.writer, Writer::kActive) << "prefill released what is being read:" << w.trace;
    w.prefill_holds = false;
  }
  if (has(actions, kSendOffer)) w.to_decode.insert(Message::kOffer);
  if (has(actions, kSendWritten)) w.to_decode.insert(Message::kWritten);
  if (has(actions, kSendStopped)) w.to_decode.insert(Message::kStopped);
  if (has(actions, kSendCancel)) {
    EXPECT_NE(w.writer, Writer::kActive) << "a cancel promises that nothing is written:" << w.trace;
    w.to_decode.insert(Message::kCancel);
  }
  const HandoverAction foreign =
      kReserve | kFence | kStartDecode | kAbortDecode | kSendAccept | kSendReject | kSendAck;
  EXPECT_FALSE(has(actions, foreign)) << w.trace;
}

void apply_decode(World& w, HandoverAction actions) {
  if (has(actions, kReserve)) {
    EXPECT_FALSE(w.decode_holds) << w.trace;
    w.decode_holds = true;
  }
  if (has(actions, kFence)) w.fenced = true;
  if (has(actions, kStartDecode)) {
    EXPECT_FALSE(w.decode_has_run) << "decode started twice:" << w.trace;
    EXPECT_TRUE(w.writer == Writer::kComplete && !w.fenced) << "decode started on torn KV:" << w.trace;
    w.decode_runs = w.decode_has_run = true;
  }
  if (has(actions, kAbortDecode)) {
    EXPECT_TRUE(w.decode_runs) << w.trace;
    w.decode_runs = false;
  }
  if (has(actions, kRelease)) {
    EXPECT_TRUE(w.decode_holds) << "decode released twice:" << w.trace;
    EXPECT_TRUE(w.writer != Writer::kActive || w.fenced) << "released under the writer:" << w.trace;
    EXPECT_FALSE(w.decode_runs) << "released under a running sequence:" << w.trace;
    w.decode_holds = false;
  }
  if (has(actions, kSendAccept)) w.to_prefill.insert(Message::kAccept);
  if (has(actions, kSendReject)) w.to_prefill.insert(Message::kReject);
  if (has(actions, kSendAck)) w.to_prefill.insert(Message::kAck);
  if (has(actions, kSendCancel)) w.to_prefill.insert(Message::kCancel);
  const HandoverAction foreign = kStartWrite | kStopWrite | kSendOffer | kSendWritten | kSendStopped;
  EXPECT_FALSE(has(actions, foreign)) << w.trace;
}

World with(const World& w, const std::string& step) {
  World next = w;
  next.trace += " " + step;
  return next;
}

// Deliveries and losses of every message under way.
void add_messages(const World& w, std::vector<World>& next) {
  for (const Message message : std::set<Message>(w.to_decode.begin(), w.to_decode.end())) {
    const std::string name = message_name(message);
    World lost = with(w, "lose-" + name);
    lost.to_decode.erase(lost.to_decode.find(message));
    next.push_back(lost);
    for (const bool can_reserve : {true, false}) {
      if (!can_reserve && message != Message::kOffer) continue;
      World got = with(w, name + (can_reserve ? "" : "(full)"));
      got.to_decode.erase(got.to_decode.find(message));
      apply_decode(got, message == Message::kOffer ? got.decode.on_offer(can_reserve)
                                                   : got.decode.on_message(message));
      next.push_back(got);
    }
  }
  for (const Message message : std::set<Message>(w.to_prefill.begin(), w.to_prefill.end())) {
    const std::string name = message_name(message);
    World lost = with(w, "lose-" + name);
    lost.to_prefill.erase(lost.to_prefill.find(message));
    next.push_back(lost);
    World got = with(w, name);
    got.to_prefill.erase(got.to_prefill.find(message));
    apply_prefill(got, got.prefill.on_message(message));
    next.push_back(got);
  }
}

void add_events(const World& w, bool with_aborts, std::vector<World>& next) {
  if (w.writer == Writer::kActive) {
    for (const Writer end : {Writer::kComplete, Writer::kIncomplete}) {
      // Only a writer told to stop, or cut off, ends early.
      const bool may_tear = w.prefill.state() == PrefillLeg::State::kStopping;
      if (end == Writer::kIncomplete && !may_tear) continue;
      World ended = with(w, end == Writer::kComplete ? "write-complete" : "write-stopped");
      ended.writer = end;
      apply_prefill(ended, ended.prefill.on_event(Event::kWriteEnded));
      next.push_back(ended);
    }
  }
  for (const Event event : {Event::kAbort, Event::kLeaseExpired}) {
    if (event == Event::kAbort && !with_aborts) continue;
    const std::string name = event == Event::kAbort ? "abort" : "expire";
    World at_prefill = with(w, "prefill-" + name);
    apply_prefill(at_prefill, at_prefill.prefill.on_event(event));
    next.push_back(at_prefill);
    if (w.decode.state() == DecodeLeg::State::kDecoding && event == Event::kLeaseExpired) continue;
    World at_decode = with(w, "decode-" + name);
    apply_decode(at_decode, at_decode.decode.on_event(event));
    next.push_back(at_decode);
  }
  if (w.decode_runs) {
    World ended = with(w, "decode-ended");
    ended.decode_runs = false;
    apply_decode(ended, ended.decode.on_event(Event::kDecodeEnded));
    next.push_back(ended);
  }
}

std::vector<World> successors(const World& w, bool with_aborts) {
  std::vector<World> next;
  add_messages(w, next);
  add_events(w, with_aborts, next);
  return next;
}

World started() {
  World w;
  apply_prefill(w, w.prefill.start());
  return w;
}

void check_state(const World& w) {
  EXPECT_EQ(w.prefill_holds, !w.prefill.ended()) << w.trace;
  const bool decode_live = !w.decode.ended() && w.decode.state() != DecodeLeg::State::kIdle;
  EXPECT_EQ(w.decode_holds, decode_live) << w.trace;
  EXPECT_EQ(w.decode_runs, w.decode.state() == DecodeLeg::State::kDecoding) << w.trace;
  if (w.prefill.state() == PrefillLeg::State::kDone) {
    EXPECT_TRUE(w.decode_has_run) << w.trace;
  }
}

TEST(Handover, every_reachable_state_keeps_the_books) {
  std::set<World> seen = {started()};
  std::deque<World> open = {started()};
  std::set<std::pair<PrefillLeg::State, DecodeLeg::State>> ends;
  while (!open.empty()) {
    const World w = open.front();
    open.pop_front();
    check_state(w);
    if (w.prefill.ended() && w.decode.ended() && w.to_decode.empty() && w.to_prefill.empty()) {
      EXPECT_FALSE(w.prefill_holds || w.decode_holds || w.decode_runs) << w.trace;
      ends.emplace(w.prefill.state(), w.decode.state());
    }
    for (const World& next : successors(w, true)) {
      if (seen.insert(next).second) open.push_back(next);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(seen.size(), 200u);
  EXPECT_EQ(ends.size(), 4u) << "done, rejected, aborted and expired are all reached";
}

// With no message delivered ever again, the writer's end, the leases and the end of decode bring both legs to
// their ends: nothing is held for ever.
TEST(Handover, leases_alone_end_every_state) {
  std::set<World> seen = {started()};
  std::deque<World> open = {started()};
  while (!open.empty()) {
    World w = open.front();
    open.pop_front();
    for (const World& next : successors(w, true)) {
      if (seen.insert(next).second) open.push_back(next);
    }
    w.to_decode.clear();
    w.to_prefill.clear();
    for (int round = 0; round < 3; ++round) {
      apply_prefill(w, w.prefill.on_event(Event::kLeaseExpired));
      apply_decode(w, w.decode.on_event(Event::kLeaseExpired));
      if (w.writer == Writer::kActive) {
        w.writer = Writer::kIncomplete;
        apply_prefill(w, w.prefill.on_event(Event::kWriteEnded));
      }
      if (w.decode_runs) {
        w.decode_runs = false;
        apply_decode(w, w.decode.on_event(Event::kDecodeEnded));
      }
    }
    EXPECT_TRUE(w.prefill.ended() && !w.prefill_holds) << w.trace;
    EXPECT_TRUE((w.decode.ended() || w.decode.state() == DecodeLeg::State::kIdle) && !w.decode_holds)
        << w.trace;
    if (HasFailure()) return;
  }
}

// A reject, or a cancel of either side, frees the other side by message alone, without waiting for a lease.
TEST(Handover, without_losses_no_lease_is_needed) {
  std::set<World> seen;
  std::deque<World> open = {started()};
  int num_ends = 0;
  while (!open.empty()) {
    const World w = open.front();
    open.pop_front();
    std::vector<World> next = successors(w, true);
    std::erase_if(next, [](const World& n) {
      const std::string last = n.trace.substr(n.trace.rfind(' ') + 1);
      return last.starts_with("lose-") || last.ends_with("-expire");
    });
    std::erase_if(next, [&](const World& n) { return n.key() == w.key(); });
    if (next.empty()) {
      ++num_ends;
      EXPECT_TRUE(w.prefill.ended()) << w.trace;
      EXPECT_FALSE(w.decode_holds) << w.trace;
    }
    for (const World& n : next) {
      if (seen.insert(n).second) open.push_back(n);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(num_ends, 0);
}

TEST(Handover, the_plain_run) {
  World w = started();
  apply_decode(w, w.decode.on_offer(true));
  apply_prefill(w, w.prefill.on_message(Message::kAccept));
  w.writer = Writer::kComplete;
  apply_prefill(w, w.prefill.on_event(Event::kWriteEnded));
  apply_decode(w, w.decode.on_message(Message::kWritten));
  EXPECT_TRUE(w.prefill_holds && w.decode_holds && w.decode_runs)
      << "released only after the acknowledgement";
  apply_prefill(w, w.prefill.on_message(Message::kAck));
  EXPECT_EQ(w.prefill.state(), PrefillLeg::State::kDone);
  EXPECT_FALSE(w.prefill_holds);
}

}  // namespace
}  // namespace fathom
