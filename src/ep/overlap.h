// Overlap of communication with computation, as data: which stage of which micro-batch runs after which, on
// the compute or the communication stream. The executor runs these tables; evaluate_overlap() gives their
// time line for given stage times, which is what the simulator charges. Nothing here knows a kernel.
//
// A table describes one period, in which every micro-batch advances by one layer. An operation's layer is the
// period's plus layer_shift; period p runs for p = -1 .. num_layers, and operations whose layer does not
// exist are skipped (that is the ramp up and down). Each stream runs its operations in table order; across
// streams the listed waits order them.
//
// Invariants, by name:
// * dependencies_hold: a table's order and waits imply every data dependency of the model
// * every_stage_once: of every layer and micro-batch, the ramps included
// * one_thing_at_a_time: a stream runs its operations one after another, in table order
// * gapless_critical_path: from 0 to the end, each operation held by the one before it
// * as_published: the decode table takes the published formula's time, the plain one its stages' sum
// * bounded_below: no layer is shorter than what its busier stream has to do
// * quick_form_agrees: steady_layer is the time line's steady state
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom {

enum class OverlapStage : uint8_t { kAttn0, kAttn1, kDispatch, kShared, kMlp, kCombine };
inline constexpr int kNumOverlapStages = 6;
std::string_view overlap_stage_name(OverlapStage stage);

enum class OverlapStream : uint8_t { kCompute, kCommunication };

// A transfer has a part that holds the processors (send) and one that does not (wire); prefill's transfers
// run on their own processors, so they are one piece.
enum class OverlapPart : uint8_t { kWhole, kSend, kWire };

struct OverlapWait {
  int8_t op = -1;           // index in the table; -1: none
  int8_t periods_back = 0;  // 0: this period's, 1: the last one's
};
inline constexpr int kOverlapWaitsMax = 2;
inline constexpr int kOverlapOpsMax = 32;

struct OverlapOp {
  OverlapStage stage;
  uint8_t micro_batch;
  OverlapStream stream;
  OverlapPart part = OverlapPart::kWhole;
  int8_t layer_shift = 0;
  std::array<OverlapWait, kOverlapWaitsMax> waits = {};
};

struct OverlapTable {
  std::string_view name;
  std::span<const OverlapOp> ops;
  int num_micro_batches;
  // The micro-batch whose attention comes first in every layer. Where one prompt is cut between
  // micro-batches, its earlier tokens must be in this one: the later ones attend to their KV.
  int leading_micro_batch;
};

// One micro-batch, one stage after another: everything is exposed.
const OverlapTable& plain_table();
// Two micro-batches; communication on its own processors: ATTN(1) SHARED(0) ATTN(0) MLP(1) MLP(0) SHARED(1)
// over COMBINE(0) DISPATCH(1) DISPATCH(0) COMBINE(1).
const OverlapTable& prefill_table();
// Two micro-batches half a layer apart, five stages ATTN-0, ATTN-1, DISPATCH, MLP, COMBINE, the shared expert
// under its own dispatch; communication holds no processors between send and receive.
const OverlapTable& decode_table();

// Every data dependency of the model (a layer's stages in order, the residual of one layer before the next,
// and the leading micro-batch's KV before the other's attention) follows from the table's stream order and
// waits.
Status validate_overlap_table(const OverlapTable& table);

// Microseconds, the slowest rank's of each stage (ranks meet at every dispatch and combine). Transfers are
// from issue to arrival; `send` is the part of them that holds the compute stream (only used by tables that
// split it).
struct OverlapStageTimes {
  double attn0_us = 0;
  double attn1_us = 0;
  double shared_us = 0;
  double dispatch_us = 0;
  double dispatch_send_us = 0;
  double mlp_us = 0;
  double combine_us = 0;
  double combine_send_us = 0;

  double duration_us(OverlapStage stage, OverlapPart part) const;
  double compute_us() const { return attn0_us + attn1_us + shared_us + mlp_us; }
  double communication_us() const { return dispatch_us + combine_us; }
};

struct OverlapSpan {
  int op = 0;  // index in the table
  int layer = 0;
  double start_us = 0;
  double end_us = 0;
  int32_t held_by = -1;  // the span whose end this one's start waited for; -1: it started at 0
};

struct OverlapTimeline {
  std::vector<OverlapSpan> spans;      // in order of issue
  std::vector<int32_t> critical_path;  // spans from 0 to the end without a gap
  double total_us = 0;
  double layer_us = 0;         // steady state: from one period to the next
  double compute_idle_us = 0;  // all of it waits for communication
  double send_us = 0;          // compute stream held by sends
  double busy_us[2] = {0, 0};  // of the compute and of the communication stream
  // Time during which communication keeps the compute stream from computing.
  double exposed_communication_us() const { return compute_idle_us + send_us; }
  // The objective: no stream waits longer than it must. Total time over that of the busier stream, 1 where
  // the other is wholly hidden beneath it.
  double over_busier_stream() const;
  // Max/mean of the two streams' work: at 1 overlap can halve the time, at 2 there is nothing to hide.
  double streams_max_over_mean() const;
};

// times: one per micro-batch. num_layers >= 1.
OverlapTimeline evaluate_overlap(const OverlapTable& table, std::span<const OverlapStageTimes> times,
                                 int num_layers);

// A layer in the steady state.
struct SteadyLayer {
  double layer_us = 0;
  double idle_us = 0;  // of it, the compute stream waits for communication
  const OverlapTable* table = nullptr;
};

// evaluate_overlap's steady state alone, in under a microsecond and without allocating: for callers that ask
// for every step.
SteadyLayer steady_layer(const OverlapTable& table, std::span<const OverlapStageTimes> times);

// The shorter of the overlapped table at half batches and the plain one at the full batch: below some batch
// overlap does not pay, since halves cost more than half, and an executor leaves it off there. The simulator
// charges this.
SteadyLayer shorter_layer(const OverlapTable& table, std::span<const OverlapStageTimes> halves,
                          const OverlapStageTimes& whole);

}  // namespace fathom
