// Made-up traces: when requests come, how long they are, and what they share. The same options and seed give
// the same trace on every machine.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "sim/lengths.h"
#include "sim/trace.h"

namespace fathom::sim {

enum class ArrivalShape {
  kConstant,  // equal gaps
  kPoisson,
  kBursty,   // gaps with arrival_cv2, hyperexponential of balanced means
  kDiurnal,  // Poisson, its rate along the hours of a day
};
Result<ArrivalShape> parse_arrival_shape(std::string_view name);

enum class HitModel {
  kConversations,  // a prompt is an earlier one of its conversation, its answer and a new turn
  kTwoClass,       // as the published day: continuations hit most of their prompt, the rest a common start
};
Result<HitModel> parse_hit_model(std::string_view name);

struct SyntheticOptions {
  double seconds = 600;
  double requests_per_s = 20;  // on average; of kDiurnal over a whole day
  ArrivalShape shape = ArrivalShape::kPoisson;
  double arrival_cv2 = 4;  // kBursty; above 1
  std::array<double, 24>
      day_load{};              // kDiurnal: load of each hour, any unit; the trace starts with the first
  double day_seconds = 86400;  // kDiurnal: what the curve's day takes
  double burst_share = 0;      // of requests that come burst_size at once, whatever the shape
  int burst_size = 32;
  LengthOptions lengths;  // with kTwoClass also the classes and their hits
  HitModel hits = HitModel::kConversations;
  double shared_share = 0.5;  // kConversations: of requests that continue one of `conversations`
  int conversations = 200;
  int block_tokens = 64;
};

Trace synthetic_trace(const SyntheticOptions& options, uint64_t seed);

}  // namespace fathom::sim
