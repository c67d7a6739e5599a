// Request traces: Mooncake's JSON lines (with block hashes) and Azure's CSV (lengths only).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sim/lengths.h"

namespace fathom::sim {

struct TraceRequest {
  int64_t arrival_us = 0;  // from the first request's arrival
  int32_t input_tokens = 0;
  int32_t output_tokens = 0;
  // Chain of prefix blocks: equal hashes at equal places mean equal tokens so far. Every block is full but
  // the last.
  std::vector<uint32_t> blocks;
};

struct Trace {
  std::string name;
  int block_tokens = 512;
  std::vector<TraceRequest> requests;  // by arrival
  // Empty, or what a reader should be told: "FILE:LINE: FIELD: ...". A CSV file that does not end in a line
  // feed may have lost digits of its last number; nothing in it tells, and published traces end that way.
  std::string doubt = {};
  std::string end_place = {};  // "FILE:LINE: FIELD" of the last arrival
  double span_s() const { return static_cast<double>(requests.back().arrival_us) / 1e6; }
  bool has_blocks() const { return !requests.empty() && !requests.front().blocks.empty(); }
};

// By the first character: '{' or '[' is JSON, anything else CSV; a byte order mark is skipped. Errors name
// file, line and field.
Result<Trace> parse_trace(const std::string& file, std::string_view text);

struct TraceStats {
  double requests_per_s = 0;  // 0 where all arrive at one instant: such a trace tells no rate
  double input_mean = 0, input_cv2 = 0, output_mean = 0, output_cv2 = 0;
  int32_t input_max = 0;
  double hit_share_bound = 0;  // prompt tokens in whole blocks seen before, with a cache that forgets nothing
  PromptMix mix;               // with such a cache
  double duration_s = 0;
};
TraceStats trace_stats(const Trace& trace);
// Of each prompt, the tokens in whole blocks that prompts before it had: what a cache that forgets nothing
// and that every rank shares would find.
std::vector<int32_t> shared_tokens(const Trace& trace);

// The first `fraction` of each `hour_s` (of the trace's own time), the rest cut
// out and the gaps closed. Errors when no request is left.
Result<Trace> first_part_of_each_hour(const Trace& trace, double fraction, double hour_s = 3600);

}  // namespace fathom::sim
