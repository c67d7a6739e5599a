// Limits of the limits. Those that have a flag of `fathom serve` are named as it.
#include "engine/options.h"

#include <algorithm>

#include "kv/storage.h"

namespace fathom {
namespace {

// Written so that NaN fails.
template <typename T>
Status expect_within(const char* name, T value, T low, T high) {
  if (value >= low && value <= high) return ok_status();
  return invalid_argument("{}: {} is outside [{}, {}]", name, value, low, high);
}

}  // namespace

Status EngineOptions::validate() const {
  constexpr int32_t kManyRanks = 1024;
  constexpr double kDay = 86400;
  RETURN_IF_ERROR(expect_within("--prefill-ep", prefill_ep, 1, kManyRanks));
  RETURN_IF_ERROR(expect_within("--decode-ep", decode_ep, 1, kManyRanks));
  RETURN_IF_ERROR(expect_within("--redundant-experts", redundant_experts, 0, 4096));
  RETURN_IF_ERROR(expect_within("--threads", threads, 1, 1024));
  RETURN_IF_ERROR(expect_within<int64_t>("--kv-memory", kv_memory_bytes, 1, int64_t{1} << 50));
  RETURN_IF_ERROR(expect_within("--max-context", max_context, 2, 1 << 24));
  RETURN_IF_ERROR(expect_within("--max-running", max_running, 1, 1 << 16));
  RETURN_IF_ERROR(expect_within("--max-queued", max_queued, 0, 1 << 20));
  RETURN_IF_ERROR(expect_within("--queue-timeout", queue_seconds_max, 0.0, kQueueSecondsMax));
  RETURN_IF_ERROR(expect_within("--prefill-chunk", prefill_chunk_tokens, kBlockTokens, 1 << 20));
  if (prefill_chunk_tokens % kBlockTokens != 0) {
    return invalid_argument("--prefill-chunk: {} is not a multiple of {}", prefill_chunk_tokens,
                            kBlockTokens);
  }
  RETURN_IF_ERROR(expect_within("decode_max_per_rank", decode_max_per_rank, 0, 1 << 16));
  RETURN_IF_ERROR(expect_within("decode_gap_ratio_max", decode_gap_ratio_max, 1.0, 1000.0));
  RETURN_IF_ERROR(expect_within("decode_gap_seconds_max", decode_gap_seconds_max, 0.0, kDay));
  RETURN_IF_ERROR(expect_within("prefill_step_seconds_max", prefill_step_seconds_max, 0.0, kDay));
  RETURN_IF_ERROR(expect_within("handover_lease_seconds", handover_lease_seconds, 0.0, kDay));
  return expect_within("sweep_seconds", sweep_seconds, 0.001, 1.0);
}

int32_t EngineOptions::prefill_tokens_per_rank() const {
  constexpr int32_t kLeast = 2 * kBlockTokens;
  const int32_t share =
      blocks_for_tokens((prefill_chunk_tokens + prefill_ep - 1) / prefill_ep) * kBlockTokens;
  return std::min(prefill_chunk_tokens, std::max(kLeast, share));
}

int32_t EngineOptions::decode_slots_per_rank() const {
  if (decode_max_per_rank > 0) return decode_max_per_rank;
  return (max_running + decode_ep - 1) / decode_ep;
}

}  // namespace fathom
