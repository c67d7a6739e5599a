// Every limit of an engine, checked once at start.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/numa.h"
#include "base/status.h"
#include "kernels/formats.h"

namespace fathom {

inline constexpr double kQueueSecondsMax = 86400;  // of queue_seconds_max

struct EngineOptions {
  int32_t prefill_ep = 1;         // ranks of the prefill engine
  int32_t decode_ep = 1;          // ranks of the decode engine
  int32_t redundant_experts = 0;  // extra expert replicas in each engine's EP group
  bool deterministic = false;     // bit-equal tokens whatever the batch, chunks, ranks and cache; slower
  std::optional<ActFormat>
      dispatch_format;  // of tokens sent to experts; unset: what the experts' kernels read
  // Nodes to spread ranks, weights and KV over, if more than one; empty: the system places all.
  std::vector<NumaNode> numa_nodes;
  int32_t threads = 1;  // thread budget of both engines together; they take turns

  // Memory of the block pool; holds at least one max_context. Expanded prompts may take a sixteenth of it
  // more.
  int64_t kv_memory_bytes = int64_t{1} << 30;
  int32_t max_context = 4096;  // tokens, prompt + output, of one request
  int32_t max_running = 64;    // requests being prefilled or decoded at a time, over all ranks
  int32_t max_queued = 256;    // requests waiting for that; more are refused
  // A request that waited longer, to start or for its next step, ends with kInsufficientResources.
  double queue_seconds_max = 600;

  int32_t decode_max_per_rank = 0;  // sequences of one decode rank; 0: max_running ÷ decode_ep, rounded up
  // Most tokens of one prefill step over all ranks, a multiple of 64. A rank takes its share of it, but up to
  // 128 in any case; buffers are sized for that.
  int32_t prefill_chunk_tokens = 1024;
  // While sequences decode, a prefill step is kept so short that the gap between two of their tokens stays
  // below decode_gap_ratio_max times a decode step, and below decode_gap_seconds_max; but never under
  // 64 tokens. The ratio is what holds the 99th percentile of the gaps near the median.
  double decode_gap_ratio_max = 2.5;
  double decode_gap_seconds_max = 0.25;
  // Length a prefill step may reach when nothing decodes: bounds how long a new request waits behind it (a
  // cancelled one may stop it, see SharedStepStop). Longer steps read weights and expand the stored latent
  // less often.
  double prefill_step_seconds_max = 1.5;

  double handover_lease_seconds = 10;  // a hand-over without an answer for so long is given up and replayed
  double sweep_seconds = 0.05;  // how often deadlines and leases are looked at when nothing else happens

  std::vector<int32_t> eos_token_ids;  // the model's end tokens

  // kInvalidArgument naming the option, by its flag where it has one, and its limits.
  Status validate() const;
  // decode_max_per_rank, or what it stands for.
  int32_t decode_slots_per_rank() const;
  // The largest chunk of one rank, a multiple of 64.
  int32_t prefill_tokens_per_rank() const;
};

}  // namespace fathom
