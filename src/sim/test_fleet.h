// For tests of block-exact replays: two prefill and two decode units of 16 ranks.
#pragma once

#include "sim/block_fleet.h"

namespace fathom::sim {

inline BlockFleetOptions two_by_sixteen_ranks() {
  BlockFleetOptions options;
  options.prefill_units = options.decode_units = 2;
  options.prefill_ranks = options.decode_ranks = 16;
  options.prefill_blocks_per_rank = 400;
  options.decode_blocks_per_rank = 300;
  options.chunk_tokens = 4096;
  options.deadline_s = 60;
  return options;
}

}  // namespace fathom::sim
