// The mixture-of-experts layer (V3 report §2.1.2): gate, dispatch, routed experts, shared expert, combine.
// Which experts a token takes is the gate's; which replica of an expert, balance/'s; how rows travel, ep/'s.
#pragma once

#include "balance/replica_choice.h"
#include "ep/exchange.h"
#include "ep/placement.h"
#include "kernels/gate.h"
#include "model/activations.h"
#include "model/ops.h"

namespace fathom {

GateConfig gate_config(const ModelConfig& config);

// What the routed experts of a rank work with; sized by what all ranks may send.
struct ExpertBuffers {
  ExpertBuffers(const ModelConfig& config, ActFormat ffn, ActFormat dispatch, int64_t max_expert_rows);

  bool converts() const { return dispatch_format != ffn_format; }

  ActFormat ffn_format;
  ActFormat dispatch_format;
  QuantizedRows x;    // [expert rows, hidden]; experts that one thread takes as a whole use neither
  QuantizedRows mid;  // [expert rows, expert width]
  SwigluJobs jobs;
};

// One rank's (and micro-batch's) MoE layers.
struct MoeContext {
  const GateConfig& gate;
  const PlacementShape& placement_shape;
  int rank;
  Stream& stream;
  ForwardActivations& a;
  int64_t num_rows;
  ExpertBuffers& experts;
};

// a.experts, a.gates: each token's choices and their weights, from a.ffn_in.
void moe_gate(const MoeContext& c, const MoeWeights& w);

// Which slot takes each (token, choice): the only one, or the replicas in turn.
class SlotChooser {
 public:
  void choose(const MoeContext& c, const LayerPlacement& placement);

 private:
  std::vector<int32_t> tokens_per_expert_, share_;
  ReplicaSplit split_;
};

// Sends each token's row to the slots in a.slots; the rest of an exchange is the flight's own functions.
Status moe_dispatch(const MoeContext& c, const ExpertExchange::Ticket& ticket, uint32_t flags);
// The rank's experts over the tokens that have arrived; their results are ready to be sent back.
void moe_experts(const MoeContext& c, const LayerPlacement& placement, const MoeWeights& w, Flight& flight);
// a.ffn_out = the shared expert, or a dense layer's FFN, over a.ffn_in.
void ffn_dense(const MoeContext& c, const SwigluWeights& w);
// a.x += sum of the routed experts' results, which have come back, + the shared expert's.
void moe_combine(const MoeContext& c, const MoeWeights& w, Flight& flight);

// Scratch of the largest row op here: floats of a row.
int64_t moe_scratch_bytes(const ModelConfig& config);

}  // namespace fathom
