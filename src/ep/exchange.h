// Dispatch and combine: tokens go to the ranks that hold their experts, results come back (facts of DeepEP
// V1).
//
//   normal       prefill: a token's row goes once to each rank that needs it; the expert side applies the
//   gate
//                weights, sums a token's results per rank in the order of its choices, and returns one row;
//                the source adds the ranks' rows in rank order.
//   low latency  decode: one row per (token, slot); results return one by one; the source applies the gate
//   weights
//                and adds in F32, in the order of the token's choices, or of their experts (deterministic:
//                then the sum depends neither on where experts are nor on how many ranks there are).
//
// Which slot takes a (token, choice) is given; nothing is chosen here. A dispatched row is the expert GEMM's
// own input (quantised once, at its source), also when source and expert are the same rank. A combined row is
// BF16, or F32 for F32 models.
//
// Wire figures are those of the published benchmarks: 16 bytes of header and the row per dispatched row
// (7,408 B for FP8 at hidden size 7168), the row alone per combined one (14,336 B for BF16).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "tensor/arena.h"
#include "tensor/dtype.h"
#include "transport/endpoint.h"

namespace fathom {

enum class ExchangeMode : uint8_t { kNormal, kLowLatency };

inline constexpr int64_t kDispatchRowHeaderBytes = 16;
inline constexpr int kTopKMax = 64;  // choices per token

struct ExchangeShape {
  ExchangeMode mode = ExchangeMode::kLowLatency;
  bool expert_order = false;  // low latency only: add in the order of expert numbers (deterministic)
  int num_ranks = 1;
  int slots_per_rank = 1;
  int top_k = 1;  // choices per token
  int64_t hidden = 0;
  int64_t max_tokens_per_rank = 0;
  int64_t payload_row_bytes = 0;  // a dispatched row without its scales
  int64_t scale_row_bytes = 0;    // its scales; 0 where the format has none
  DType result = DType::kBf16;    // kBf16 or kF32: an expert's result and a combined row

  int num_slots() const { return num_ranks * slots_per_rank; }
  // Rows the experts of one rank may get: every token of every rank, as often as the rank has slots for it.
  int64_t max_expert_rows() const {
    return num_ranks * max_tokens_per_rank * (top_k < slots_per_rank ? top_k : slots_per_rank);
  }
  int64_t result_row_bytes() const { return hidden * dtype_bytes(result); }
};

// A rank's tokens and where they go. Everything stays unchanged until combine has been received.
struct Routing {
  int64_t num_tokens = 0;
  const int32_t* slots =
      nullptr;  // [num_tokens, top_k]; -1: this choice is dropped (its expert is unreachable)
  const int32_t* experts = nullptr;  // [num_tokens, top_k], distinct within a token
  const float* weights = nullptr;    // [num_tokens, top_k]
};

// The dispatched rows of a source: row t is token t.
struct PayloadRows {
  const std::byte* data = nullptr;
  int64_t stride_bytes = 0;
  const std::byte* scales = nullptr;
  int64_t scale_stride_bytes = 0;
};

// Sums over the exchanges of a step; a sender counts. "remote" leaves out what stays on the rank.
struct ExchangeStats {
  int64_t dispatch_rows = 0;
  int64_t combine_rows = 0;
  int64_t dispatch_bytes = 0;
  int64_t combine_bytes = 0;
  int64_t remote_dispatch_bytes = 0;
  int64_t remote_combine_bytes = 0;

  ExchangeStats& operator+=(const ExchangeStats& other);
};

// One dispatch and its combine, in flight. All memory is sized at construction.
class Flight {
 public:
  Flight(Endpoint& endpoint, const ExchangeShape& shape);

  // --- Source side. `flags`: any bits for all ranks (they are OR-ed).
  Status send_dispatch(uint64_t sequence, const Routing& routing, const PayloadRows& payload, uint32_t flags);

  // --- Expert side.
  // Waits for all ranks' tokens and lays them out: rows [slot_begin(j), slot_begin(j + 1)) are those of local
  // slot j, ordered by source rank, then token.
  Status receive_dispatch();
  int64_t num_expert_rows() const { return slot_begin_.back(); }
  int64_t slot_begin(int local_slot) const { return slot_begin_[local_slot]; }
  // The payload of an expert row and its scales (null where the format has none), as they arrived.
  const std::byte* payload(int64_t row) const { return row_sources_.as<const std::byte*>()[2 * row]; }
  const std::byte* payload_scales(int64_t row) const {
    return row_sources_.as<const std::byte*>()[2 * row + 1];
  }
  // Where experts write their results: rows of shape.result.
  std::byte* expert_output() { return expert_output_.data(); }
  DType expert_output_dtype() const { return shape_.result; }

  // Normal mode, before send_combine: sums of rows [begin, end) of num_return_rows(). Thread-safe for
  // disjoint ranges.
  int64_t num_return_rows() const;
  // scratch: hidden floats of the calling thread.
  void reduce(int64_t begin, int64_t end, float* scratch);
  Status send_combine();

  // --- Source side again.
  Status receive_combine();
  // out[0, hidden) = the sum over token t's experts. Thread-safe for distinct tokens.
  void combine_token(int64_t token, float* out) const;
  // All tokens are combined: buffers may be used again.
  void finish();

  uint32_t flags() const { return flags_; }  // of all ranks, after receive_dispatch
  ExchangeStats take_stats();

 private:
  struct Header {
    uint32_t flags;
    int32_t num_rows;
    int32_t num_pairs;
    int32_t reserved;
  };
  // A dispatch message's header, read in place: Header, then 4-byte words.
  struct HeaderView {
    const Header* fixed;
    const int32_t* slot_counts;  // [slots_per_rank] pairs of each slot of the receiver
    // Normal mode only:
    const int32_t* pair_rows;    // [pairs] row of each pair, pairs ordered by slot, then token
    const int32_t* row_begin;    // [rows + 1] into the next two
    const int32_t* order_pairs;  // [pairs] the pairs of each row, in the order of the token's choices
    const float* order_weights;  // [pairs]
  };

  int64_t header_words(int64_t num_rows, int64_t num_pairs) const;
  HeaderView view_header(std::span<const std::byte> bytes) const;
  Status check_header(int peer, std::span<const std::byte> bytes) const;
  void sort_pairs();
  void plan_rows();
  void write_headers(uint32_t flags);
  void count_rows(ExchangeStats& stats, int peer, int64_t dispatched, int64_t combined) const;
  void place_rows(int peer);
  void combine_low_latency(int64_t token, float* out) const;
  void combine_normal(int64_t token, float* out) const;

  int rank_of(int slot) const { return slot / shape_.slots_per_rank; }
  bool normal() const { return shape_.mode == ExchangeMode::kNormal; }

  Endpoint& endpoint_;
  const ExchangeShape shape_;
  uint64_t sequence_ = 0;
  uint32_t flags_ = 0;
  ExchangeStats stats_;

  // Source side.
  Routing routing_;
  std::vector<int32_t> pair_begin_;    // [slots + 1] pairs of each slot, in pair order
  std::vector<int32_t> pair_tokens_;   // [pairs] ordered by slot, then token
  std::vector<int32_t> pair_of_;       // [tokens, top_k] place in pair order; -1: dropped
  std::vector<int32_t> row_begin_;     // [ranks + 1] normal: rows of each rank
  std::vector<int32_t> row_tokens_;    // [rows] normal: token of each row, rows ordered by rank, then token
  std::vector<int32_t> row_of_;        // [tokens, top_k] normal: row of the choice, counted within its rank
  std::vector<int32_t> rank_cursor_;   // [ranks] scratch
  std::vector<int32_t> rank_token_;    // [ranks] scratch: last token that went to the rank
  std::vector<int64_t> header_begin_;  // [ranks + 1] in words
  std::vector<int32_t> headers_;       // message headers, one after the other
  std::vector<const Message*> combined_;  // [ranks] what came back

  // Expert side.
  std::vector<int64_t> slot_begin_;        // [slots_per_rank + 1]
  std::vector<int64_t> slot_cursor_;       // [slots_per_rank] scratch
  std::vector<HeaderView> arrived_;        // [ranks]
  std::vector<int64_t> return_begin_;      // [ranks + 1] pairs of each source
  std::vector<int64_t> return_row_begin_;  // [ranks + 1] normal: rows of each source
  AlignedBuffer return_rows_;              // int32 [pairs] expert row of each pair, in its source's order
  AlignedBuffer row_sources_;              // const std::byte* [expert rows, 2] payload and scales
  AlignedBuffer expert_output_;
  AlignedBuffer reduced_;  // normal: rows of shape.result to return, by source
};

// A rank's exchanges, numbered; with two flights two may be in flight at a time (two micro-batches).
class ExpertExchange {
 public:
  ExpertExchange(Endpoint& endpoint, const ExchangeShape& shape, int num_flights = 1) {
    flights_.reserve(num_flights);
    for (int i = 0; i < num_flights; ++i) flights_.emplace_back(endpoint, shape);
  }

  // The flight of the next exchange and its number; every rank takes them in the same order.
  struct Ticket {
    Flight* flight = nullptr;
    uint64_t sequence = 0;
  };
  Ticket next() {
    const uint64_t sequence = next_sequence_++;
    return {&flights_[sequence % flights_.size()], sequence};
  }
  ExchangeStats take_stats();

 private:
  uint64_t next_sequence_ = 0;
  std::vector<Flight> flights_;
};

}  // namespace fathom
