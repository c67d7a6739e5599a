// What the next step does: pure functions from a snapshot to a plan. Servers and the simulator link the same
// code. Sequences are named by their place in the snapshot, where they stand oldest first; age is the order
// in which requests were submitted, and a retracted request keeps its age.
//
// Rules, tested by these names:
//   the_oldest_is_never_retracted        so the oldest request always finishes
//   the_oldest_always_gets_its_step      in decode its token, in prefill a chunk, whatever memory others hold
//   retract_only_when_blocks_are_short   and the youngest holder first, one at a time
//   a_step_fits_the_blocks               new blocks of a plan never exceed the blocks available
//   a_step_fits_the_rank                 a rank's chunks never exceed its token budget
//   chunks_are_blocks_or_the_rest        a chunk ends at a multiple of 64 tokens or at the sequence's end
//   every_rank_serves_its_oldest         half of a rank's budget, short prompts share the rest
//                                        (balance/prefill_cut.h)
//   admission_is_in_order                nobody overtakes in the queue
//   admission_expects_growth             the running requests' expected growth is set aside first
//   an_empty_engine_admits               the head of the queue starts when nothing runs
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "balance/prefill_cut.h"

namespace fathom {

enum class SequenceStage : uint8_t {
  kQueued,    // holds no blocks
  kPrefill,   // its tokens' KV is being computed
  kHandover,  // computed, waiting for a decode rank
  kDecode,
};

struct PlanSequence {
  SequenceStage stage = SequenceStage::kQueued;
  int32_t rank = 0;        // in its engine; kQueued: unused
  int32_t num_tokens = 0;  // prompt + generated so far
  int32_t num_stored = 0;  // of these, tokens whose KV is stored
  int32_t num_blocks = 0;  // held; kQueued: blocks of its prefix that others hold right now
  int32_t max_growth = 0;  // tokens it may still generate
  bool waits = false;      // kPrefill: an older sequence is computing this one's next block
};

struct PlanSnapshot {
  std::vector<PlanSequence> sequences;  // oldest first
  int32_t blocks_available = 0;         // free, or cached and unused
  int32_t num_prefill_ranks = 1;
  int32_t max_running = 1;         // sequences not kQueued
  int32_t rank_chunk_tokens = 64;  // prefill budget of one rank in this step; a positive multiple of 64
  // With a cost of prefilling, its budget too, see PrefillBudget; without, every token counts the same.
  std::optional<PrefillCost> prefill_cost;
  int64_t rank_cost_ns = 0;
  double growth_fraction = 1;  // of max_growth that is expected to be used, see GrowthEstimate
};

inline constexpr int32_t kNoSequence = -1;

// Queued sequences to start now, in order.
std::vector<int32_t> plan_admission(const PlanSnapshot& snapshot);

struct PlannedChunk {
  int32_t sequence = 0;
  int32_t num_tokens = 0;
  friend bool operator==(const PlannedChunk&, const PlannedChunk&) = default;
};

// When `retract` names a sequence, nothing else is planned: take its blocks away, queue it again at its age,
// and plan again on the new snapshot. (One at a time, because what a sequence shares is only freed with its
// last holder.)
struct PrefillPlan {
  int32_t retract = kNoSequence;
  std::vector<PlannedChunk> chunks;  // by rank, then age; empty when nothing can run
};
PrefillPlan plan_prefill(const PlanSnapshot& snapshot);

struct DecodePlan {
  int32_t retract = kNoSequence;
  std::vector<int32_t> sequences;  // all in kDecode, by age
};
DecodePlan plan_decode(const PlanSnapshot& snapshot);

// How much of the growth they are allowed running requests are expected to use. Starts hopeful, learns from
// retractions, forgets slowly.
class GrowthEstimate {
 public:
  double fraction() const { return fraction_; }
  void on_retraction();
  void on_decode_step();

 private:
  static constexpr double kFloor = 0.3;
  static constexpr double kPerRetraction = 0.2;
  static constexpr double kDecayPerStep = 0.998;
  double fraction_ = kFloor;
};

}  // namespace fathom
