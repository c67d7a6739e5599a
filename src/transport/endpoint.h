// The data plane's contract: how the ranks of one EP group exchange rows (dispatch, combine).
// Collective and numbered: on each channel, exchange number s is one message from every live rank to every
// live rank, itself included, empty ones too. So a receiver always knows what it waits for, and a missing
// peer is a deadline, never a hang.
//
//   Buffers   fixed size and double-buffered: a rank has at most two exchanges of a channel in flight, and
//   what a
//             message shows stays unchanged until its sender starts exchange s + 2 of that channel, which the
//             protocol of ep/ allows only when the answer to exchange s (the other channel) has come back.
//   Epoch     a group's configuration number. Messages of an older epoch never reach a receiver.
//   Mask      the live ranks. Nothing is sent to or awaited from the others.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace fathom {

inline constexpr int kMaxRanks = 1024;

// Rows of equal size in memory: row i is at base + (index ? index[i] : i) * stride_bytes.
// A transport between processes packs them, so that a receiver may see another index (none) than was sent.
struct RowGroup {
  const std::byte* base = nullptr;
  int64_t stride_bytes = 0;
  int64_t row_bytes = 0;
  int64_t num_rows = 0;
  const int32_t* index = nullptr;

  const std::byte* row(int64_t i) const { return base + (index != nullptr ? index[i] : i) * stride_bytes; }
  int64_t bytes() const { return num_rows * row_bytes; }
};

// One rank's part of an exchange, to one peer: a header that the receiver can read in place, and two row
// groups (for example quantised rows and their scales).
struct Message {
  std::span<const std::byte> header;
  std::array<RowGroup, 2> rows;

  int64_t bytes() const { return static_cast<int64_t>(header.size()) + rows[0].bytes() + rows[1].bytes(); }
};

enum class Channel : uint8_t { kDispatch, kCombine };
inline constexpr int kNumChannels = 2;
std::string_view channel_name(Channel channel);

// The live ranks of a group.
class RankMask {
 public:
  static RankMask all(int num_ranks);
  bool contains(int rank) const { return (words_[rank / 64] >> (rank % 64)) & 1; }
  void remove(int rank) { words_[rank / 64] &= ~(uint64_t{1} << (rank % 64)); }
  int count() const;

 private:
  std::array<uint64_t, kMaxRanks / 64> words_{};
};

// One rank's end. Used by one thread at a time.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  virtual int rank() const = 0;
  virtual int num_ranks() const = 0;
  virtual const RankMask& mask() const = 0;

  // Posts this rank's message of exchange `sequence` to `peer`; never waits for the peer. Sequences of a
  // channel count up from 0 in each epoch. kFailedPrecondition: the peer still holds exchange sequence - 2 (a
  // third exchange in flight), or the epoch is old.
  virtual Status send(int peer, Channel channel, uint64_t sequence, const Message& message) = 0;

  // Returns when exchange `sequence` is complete: a message from every live rank is here. Spins briefly, then
  // parks. kDeadlineExceeded after the group's timeout, naming the missing ranks; kUnavailable when the group
  // was aborted.
  virtual Status wait_all(Channel channel, uint64_t sequence) = 0;

  // What `peer` sent in exchange `sequence`; valid between wait_all and this rank's release of it.
  virtual const Message& received(int peer, Channel channel, uint64_t sequence) const = 0;

  // This rank has read everything of exchange `sequence`; its buffers may be used for sequence + 2.
  virtual void release(Channel channel, uint64_t sequence) = 0;
};

}  // namespace fathom
