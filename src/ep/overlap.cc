// The three tables, and their evaluation as a recurrence over periods.
#include "ep/overlap.h"

#include <algorithm>
#include <cstdlib>

namespace fathom {
namespace {

using enum OverlapStage;
using enum OverlapPart;
constexpr OverlapStream kCompute = OverlapStream::kCompute;
constexpr OverlapStream kComm = OverlapStream::kCommunication;

constexpr OverlapOp kPlainOps[] = {
    /* 0 */ {kAttn0, 0, kCompute, kWhole, 0, {{{5, 1}}}},
    /* 1 */ {kAttn1, 0, kCompute},
    /* 2 */ {kDispatch, 0, kComm, kWhole, 0, {{{1, 0}}}},
    /* 3 */ {kShared, 0, kCompute, kWhole, 0, {{{2, 0}}}},
    /* 4 */ {kMlp, 0, kCompute},
    /* 5 */ {kCombine, 0, kComm, kWhole, 0, {{{4, 0}}}},
};

// Micro-batch 0's combine and shared expert are those of the layer before: they run while micro-batch 1
// attends.
constexpr OverlapOp kPrefillOps[] = {
    /*  0 */ {kCombine, 0, kComm, kWhole, -1, {{{9, 1}}}},
    /*  1 */ {kAttn0, 1, kCompute, kWhole, 0, {{{10, 1}}}},
    /*  2 */ {kAttn1, 1, kCompute},
    /*  3 */ {kShared, 0, kCompute, kWhole, -1},
    /*  4 */ {kDispatch, 1, kComm, kWhole, 0, {{{2, 0}}}},
    /*  5 */ {kAttn0, 0, kCompute, kWhole, 0, {{{0, 0}}}},
    /*  6 */ {kAttn1, 0, kCompute},
    /*  7 */ {kDispatch, 0, kComm, kWhole, 0, {{{6, 0}}}},
    /*  8 */ {kMlp, 1, kCompute, kWhole, 0, {{{4, 0}}}},
    /*  9 */ {kMlp, 0, kCompute, kWhole, 0, {{{7, 0}}}},
    /* 10 */ {kCombine, 1, kComm, kWhole, 0, {{{8, 0}}}},
    /* 11 */ {kShared, 1, kCompute},
};

// A send waits for the transfer before it, as one queue pair does; so D(1) is issued when C(0) has arrived.
constexpr OverlapOp kDecodeOps[] = {
    /*  0 */ {kDispatch, 0, kCompute, kSend, 0, {{{14, 1}}}},
    /*  1 */ {kDispatch, 0, kComm, kWire, 0, {{{0, 0}}}},
    /*  2 */ {kShared, 0, kCompute},
    /*  3 */ {kAttn0, 1, kCompute, kWhole, 0, {{{14, 1}}}},
    /*  4 */ {kMlp, 0, kCompute, kWhole, 0, {{{1, 0}}}},
    /*  5 */ {kCombine, 0, kCompute, kSend},
    /*  6 */ {kCombine, 0, kComm, kWire, 0, {{{5, 0}}}},
    /*  7 */ {kAttn1, 1, kCompute},
    /*  8 */ {kDispatch, 1, kCompute, kSend, 0, {{{6, 0}}}},
    /*  9 */ {kDispatch, 1, kComm, kWire, 0, {{{8, 0}}}},
    /* 10 */ {kShared, 1, kCompute},
    /* 11 */ {kAttn0, 0, kCompute, kWhole, 1, {{{6, 0}}}},
    /* 12 */ {kMlp, 1, kCompute, kWhole, 0, {{{9, 0}}}},
    /* 13 */ {kCombine, 1, kCompute, kSend},
    /* 14 */ {kCombine, 1, kComm, kWire, 0, {{{13, 0}}}},
    /* 15 */ {kAttn1, 0, kCompute, kWhole, 1},
};

}  // namespace

std::string_view overlap_stage_name(OverlapStage stage) {
  constexpr std::string_view kNames[kNumOverlapStages] = {"ATTN-0", "ATTN-1", "DISPATCH",
                                                          "SHARED", "MLP",    "COMBINE"};
  return kNames[static_cast<int>(stage)];
}

const OverlapTable& plain_table() {
  static constexpr OverlapTable kTable{"plain", kPlainOps, 1, 0};
  return kTable;
}
const OverlapTable& prefill_table() {
  static constexpr OverlapTable kTable{"prefill", kPrefillOps, 2, 1};
  return kTable;
}
const OverlapTable& decode_table() {
  static constexpr OverlapTable kTable{"decode", kDecodeOps, 2, 0};
  return kTable;
}

double OverlapStageTimes::duration_us(OverlapStage stage, OverlapPart part) const {
  const auto transfer = [part](double whole_us, double send_us) {
    if (part == kWhole) return whole_us;
    return part == kSend ? send_us : std::max(0.0, whole_us - send_us);
  };
  switch (stage) {
    case kAttn0:
      return attn0_us;
    case kAttn1:
      return attn1_us;
    case kShared:
      return shared_us;
    case kMlp:
      return mlp_us;
    case kDispatch:
      return transfer(dispatch_us, dispatch_send_us);
    case kCombine:
      return transfer(combine_us, combine_send_us);
  }
  std::abort();
}

OverlapTimeline evaluate_overlap(const OverlapTable& table, std::span<const OverlapStageTimes> times,
                                 int num_layers) {
  CHECK(static_cast<int>(times.size()) == table.num_micro_batches && num_layers >= 1);
  const int num_ops = static_cast<int>(table.ops.size());
  OverlapTimeline out;
  std::vector<int32_t> this_period(num_ops), last_period(num_ops, -1);
  int32_t stream_last[2] = {-1, -1};
  std::vector<double> period_start;
  for (int period = -1; period <= num_layers; ++period) {
    std::fill(this_period.begin(), this_period.end(), -1);
    for (int i = 0; i < num_ops; ++i) {
      const OverlapOp& op = table.ops[i];
      const int layer = period + op.layer_shift;
      if (layer < 0 || layer >= num_layers) continue;
      OverlapSpan span{.op = i, .layer = layer};
      const auto after = [&](int32_t other) {
        if (other >= 0 && out.spans[other].end_us >= span.start_us) {
          span.start_us = out.spans[other].end_us;
          span.held_by = other;
        }
      };
      int32_t& stream = stream_last[static_cast<int>(op.stream)];
      after(stream);
      const double free_us = span.start_us;
      for (const OverlapWait& wait : op.waits) {
        if (wait.op >= 0) after(wait.periods_back == 0 ? this_period[wait.op] : last_period[wait.op]);
      }
      const double duration_us = times[op.micro_batch].duration_us(op.stage, op.part);
      span.end_us = span.start_us + duration_us;
      out.busy_us[static_cast<int>(op.stream)] += duration_us;
      if (op.stream == kCompute) {
        out.compute_idle_us += span.start_us - free_us;
        if (op.part == kSend) out.send_us += duration_us;
      }
      stream = this_period[i] = static_cast<int32_t>(out.spans.size());
      out.spans.push_back(span);
      if (i == 0) period_start.push_back(span.start_us);
    }
    std::swap(this_period, last_period);
  }
  int32_t last = 0;
  for (int32_t s = 0; s < static_cast<int32_t>(out.spans.size()); ++s) {
    if (out.spans[s].end_us > out.spans[last].end_us) last = s;
  }
  out.total_us = out.spans[last].end_us;
  // What follows the last computation is communication nobody computes under.
  if (stream_last[0] >= 0) out.compute_idle_us += out.total_us - out.spans[stream_last[0]].end_us;
  for (int32_t s = last; s >= 0; s = out.spans[s].held_by) out.critical_path.push_back(s);
  std::reverse(out.critical_path.begin(), out.critical_path.end());
  const size_t n = period_start.size();
  out.layer_us = n >= 2 ? period_start[n - 1] - period_start[n - 2] : out.total_us;
  return out;
}

double OverlapTimeline::over_busier_stream() const {
  const double busier_us = std::max(busy_us[0], busy_us[1]);
  return busier_us > 0 ? total_us / busier_us : 1;
}

double OverlapTimeline::streams_max_over_mean() const {
  const double sum_us = busy_us[0] + busy_us[1];
  return sum_us > 0 ? 2 * std::max(busy_us[0], busy_us[1]) / sum_us : 1;
}

SteadyLayer steady_layer(const OverlapTable& table, std::span<const OverlapStageTimes> times) {
  const int num_ops = static_cast<int>(table.ops.size());
  CHECK(static_cast<int>(times.size()) == table.num_micro_batches && num_ops <= kOverlapOpsMax);
  // A period depends on the one before only: once all ends have moved by the same time, they do so for ever.
  // That takes a few periods; where it alternates, the mean of the last ones is the steady state.
  constexpr int kSettle = 8, kMeasure = 4;
  constexpr double kSame_us = 1e-7;
  double duration_us[kOverlapOpsMax], end_us[2][kOverlapOpsMax] = {}, stream_us[2] = {0, 0}, settled_us = 0;
  double busy_us = 0;  // of the compute stream
  SteadyLayer out;
  for (int i = 0; i < num_ops; ++i) {
    duration_us[i] = times[table.ops[i].micro_batch].duration_us(table.ops[i].stage, table.ops[i].part);
    if (table.ops[i].stream == kCompute) busy_us += duration_us[i];
  }
  for (int period = 0; period < kSettle + kMeasure; ++period) {
    double* now = end_us[period & 1];
    const double* last = end_us[~period & 1];
    for (int i = 0; i < num_ops; ++i) {
      const OverlapOp& op = table.ops[i];
      double& stream = stream_us[static_cast<int>(op.stream)];
      for (const OverlapWait& wait : op.waits) {
        if (wait.op >= 0) stream = std::max(stream, (wait.periods_back == 0 ? now : last)[wait.op]);
      }
      now[i] = stream += duration_us[i];
    }
    if (period == kSettle - 1) settled_us = now[num_ops - 1];
    out.layer_us = now[0] - last[0];
    const auto moved = [&](int i) { return std::abs(now[i] - last[i] - out.layer_us) < kSame_us; };
    bool same = period > 0;
    for (int i = 0; same && i < num_ops; ++i) same = moved(i);
    if (same) break;
    out.layer_us = (now[num_ops - 1] - settled_us) / kMeasure;
  }
  out.idle_us = std::max(0.0, out.layer_us - busy_us);
  out.table = &table;
  return out;
}

SteadyLayer shorter_layer(const OverlapTable& table, std::span<const OverlapStageTimes> halves,
                          const OverlapStageTimes& whole) {
  const SteadyLayer overlapped = steady_layer(table, halves);
  const SteadyLayer plain = steady_layer(plain_table(), {&whole, 1});
  return overlapped.layer_us < plain.layer_us ? overlapped : plain;
}

}  // namespace fathom
