// For tests: what the published layout is planned from.
#pragma once

#include "sim/planner.h"
#include "sim/test_profile.h"

namespace fathom::sim {

inline PlanInput published_layout() {
  PlanInput in;
  in.hw = test_profile("h800-day");
  in.decode_nodes = 18;
  in.prefill_nodes = 4;
  in.slo_tokens_per_s_per_user = 19.5;
  return in;
}

}  // namespace fathom::sim
