// An operator's own measurements as steps: load, length and time of each, for planner_fit. From a CSV, or
// from the text a server's /metrics gives (docs/metrics.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom::sim {

struct MeasuredStep {
  bool decode = false;
  double load_per_rank = 0;  // decode: requests; prefill: tokens
  double length = 0;         // decode: KV tokens per request; prefill: context tokens per computed token
  double time_ms = 0;
  int line = 0;  // of its file, where it has one of its own
};

// What the measurements do not say themselves.
struct MeasuredOn {
  double decode_ranks = 1, prefill_ranks = 1;
  double input_cv2 = 1, output_cv2 = 1;  // spread of lengths; means are in the metrics
};

// Rows phase,load,length,time_ms. Errors name file, line and field.
Result<std::vector<MeasuredStep>> steps_from_csv(const std::string& file, std::string_view text);

// One mean step of each phase that ran. Used, summed over label sets: fathom_decode_steps_total,
// fathom_decode_step_seconds_total, fathom_generated_tokens_total, fathom_prefill_steps_total,
// fathom_prefill_step_seconds_total, fathom_prefill_tokens_total, fathom_prompt_hit_tokens_total,
// fathom_prompt_miss_tokens_total and fathom_time_to_first_token_seconds_count. Errors name file, line and
// metric.
Result<std::vector<MeasuredStep>> steps_from_metrics(const std::string& file, std::string_view text,
                                                     const MeasuredOn& on);

// Whether a text is Prometheus' rather than a CSV.
bool looks_like_metrics(std::string_view text);

}  // namespace fathom::sim
