// The check that a table cannot compute wrong: for three layers, whatever must come before an operation is
// reachable from it through stream order and waits.
#include <map>
#include <tuple>

#include "ep/overlap.h"

namespace fathom {
namespace {

constexpr int kLayers = 3;

// One run of an operation; transfers in two parts are done with their wire part.
using Done = std::tuple<OverlapStage, int, int>;  // stage, micro-batch, layer

struct Instance {
  int op;
  int layer;
  std::vector<int> before;  // instances it directly follows
};

struct Unrolled {
  std::vector<Instance> instances;
  std::map<Done, int> last_part;   // the instance that completes a stage
  std::map<Done, int> first_part;  // the instance that starts it
};

Unrolled unroll(const OverlapTable& table) {
  Unrolled out;
  const int num_ops = static_cast<int>(table.ops.size());
  std::vector<int> now(num_ops, -1), before(num_ops, -1);
  int stream_last[2] = {-1, -1};
  for (int period = -1; period <= kLayers; ++period) {
    std::fill(now.begin(), now.end(), -1);
    for (int i = 0; i < num_ops; ++i) {
      const OverlapOp& op = table.ops[i];
      const int layer = period + op.layer_shift;
      if (layer < 0 || layer >= kLayers) continue;
      Instance instance{i, layer, {}};
      int& stream = stream_last[static_cast<int>(op.stream)];
      if (stream >= 0) instance.before.push_back(stream);
      for (const OverlapWait& wait : op.waits) {
        const int other = wait.op < 0 ? -1 : wait.periods_back == 0 ? now[wait.op] : before[wait.op];
        if (other >= 0) instance.before.push_back(other);
      }
      stream = now[i] = static_cast<int>(out.instances.size());
      const Done done{op.stage, op.micro_batch, layer};
      if (op.part != OverlapPart::kWire) out.first_part[done] = now[i];
      if (op.part != OverlapPart::kSend) out.last_part[done] = now[i];
      out.instances.push_back(std::move(instance));
    }
    std::swap(now, before);
  }
  return out;
}

bool follows(const Unrolled& unrolled, int later, int earlier) {
  if (later == earlier) return true;
  for (int before : unrolled.instances[later].before) {
    if (before >= earlier && follows(unrolled, before, earlier)) return true;
  }
  return false;
}

}  // namespace

Status validate_overlap_table(const OverlapTable& table) {
  for (size_t i = 0; i < table.ops.size(); ++i) {
    const OverlapOp& op = table.ops[i];
    if (op.micro_batch >= table.num_micro_batches || op.layer_shift < -1 || op.layer_shift > 1) {
      return invalid_argument("table {} op {}: micro-batch or layer out of range", table.name, i);
    }
    for (const OverlapWait& wait : op.waits) {
      const bool earlier = wait.op < static_cast<int>(i) || wait.periods_back == 1;
      if (wait.op >= static_cast<int>(table.ops.size()) || wait.periods_back < 0 || wait.periods_back > 1 ||
          (wait.op >= 0 && !earlier)) {
        return invalid_argument("table {} op {}: waits for something that is not before it", table.name, i);
      }
    }
  }
  const Unrolled unrolled = unroll(table);
  const auto require = [&](Done later, Done earlier) {
    const auto a = unrolled.first_part.find(later), b = unrolled.last_part.find(earlier);
    const auto name = [](const Done& d) {
      return fmt::format("{}({}) of layer {}", overlap_stage_name(std::get<0>(d)), std::get<1>(d),
                         std::get<2>(d));
    };
    if (a == unrolled.first_part.end())
      return invalid_argument("table {}: {} is missing", table.name, name(later));
    if (b == unrolled.last_part.end())
      return invalid_argument("table {}: {} is missing", table.name, name(earlier));
    if (follows(unrolled, a->second, b->second)) return ok_status();
    return invalid_argument("table {}: {} may start before {} is done", table.name, name(later),
                            name(earlier));
  };
  using enum OverlapStage;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int m = 0; m < table.num_micro_batches; ++m) {
      for (OverlapStage transfer : {kDispatch, kCombine}) {
        const Done done{transfer, m, layer};
        const auto sent = unrolled.first_part.find(done), arrived = unrolled.last_part.find(done);
        if (sent == unrolled.first_part.end() || arrived == unrolled.last_part.end() ||
            !follows(unrolled, arrived->second, sent->second)) {
          return invalid_argument("table {}: {}({}) of layer {} may arrive before it is sent", table.name,
                                  overlap_stage_name(transfer), m, layer);
        }
      }
      RETURN_IF_ERROR(require({kAttn1, m, layer}, {kAttn0, m, layer}));
      RETURN_IF_ERROR(require({kDispatch, m, layer}, {kAttn1, m, layer}));
      RETURN_IF_ERROR(require({kShared, m, layer}, {kAttn1, m, layer}));
      RETURN_IF_ERROR(require({kMlp, m, layer}, {kDispatch, m, layer}));
      RETURN_IF_ERROR(require({kCombine, m, layer}, {kMlp, m, layer}));
      if (layer + 1 < kLayers) {
        RETURN_IF_ERROR(require({kAttn0, m, layer + 1}, {kCombine, m, layer}));
        RETURN_IF_ERROR(require({kAttn0, m, layer + 1}, {kShared, m, layer}));
      }
      if (m != table.leading_micro_batch) {
        RETURN_IF_ERROR(require({kAttn1, m, layer}, {kAttn0, table.leading_micro_batch, layer}));
      }
    }
  }
  return ok_status();
}

}  // namespace fathom
