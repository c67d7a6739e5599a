// One rank's forward pass: embedding, layers, head, over its own tokens and its share of the experts. The
// order of the layers' stages is data: the tables of ep/overlap.h, plain or overlapping two micro-batches.
#pragma once

#include <memory>

#include "ep/overlap.h"
#include "model/expanded_prompt.h"
#include "model/forward.h"
#include "model/micro_batch.h"
#include "model/mla.h"
#include "model/moe.h"
#include "model/weights.h"

namespace fathom {

// Sees what a step computes, layer by layer; for tests against an oracle.
class ForwardObserver {
 public:
  virtual ~ForwardObserver() = default;
  // After the embedding (layer -1) and after each layer: x and, for MoE layers, experts and gates are that
  // layer's.
  virtual void after_layer(int layer, ForwardActivations& a, const TokenBatch& batch) = 0;
};

// What all ranks of a group share.
struct RankSetup {
  const Model& model;
  KvStorage& storage;
  const ForwardOptions& options;
  PlacementShape placement_shape;
  ActFormat dispatch_format;
  int threads;          // of this rank
  int64_t max_context;  // tokens of one sequence
  const std::atomic<bool>& stop;
  std::atomic<TimePoint>& last_progress;  // written by every rank
};

// A rank's results of one step, added up by the group.
struct RankStats {
  std::vector<int64_t> expert_tokens;  // [MoE layers, experts]
  ExchangeStats exchange;
  Duration stage_time[kNumStages] = {};
  Duration exposed_communication = {};
};

// Used by one thread at a time.
class RankForward {
 public:
  RankForward(const RankSetup& setup, Endpoint& endpoint);

  // Runs this rank's part of a step, as two micro-batches if `overlap` (the same on all ranks). `logits`: its
  // rows, in chunk order. kCancelled when any rank saw `stop`: all ranks leave at the same point.
  Status step(const RankBatch& batch, const PlacementSnapshot& placement, bool overlap,
              MatrixView<float> logits);
  const RankStats& stats() const { return stats_; }
  void set_observer(ForwardObserver* observer) { observer_ = observer; }

 private:
  const OverlapTable& cut(const RankBatch& batch, bool overlap);
  Status run_layers(const OverlapTable& table);
  Status run_stage(OverlapStage stage, MicroBatch& m, int layer);

  void embed(MicroBatch& m);
  Status attn_0(MicroBatch& m, int layer);
  void attn_1(MicroBatch& m, int layer);
  Status dispatch(MicroBatch& m, int layer);
  void shared(MicroBatch& m, int layer);
  Status mlp(MicroBatch& m, int layer);
  void dense_mlp(MicroBatch& m, const SwigluWeights& w);
  Status combine(MicroBatch& m, int layer);
  Status finish_combine(MicroBatch& m);
  void head(MatrixView<float> logits);

  const LayerWeights& weights(int layer) const { return setup_.model.weights().layers[layer]; }
  const LayerPlacement& placement(int layer) const { return *(*placement_)[moe_index_[layer]]; }
  MlaContext mla(MicroBatch& m, int layer);
  MoeContext moe(MicroBatch& m);
  void count_experts(const MicroBatch& m, int layer);
  TimePoint now() const;
  // Adds the time since `begin` to a stage that ends now.
  void charge(Stage stage, TimePoint begin) {
    const TimePoint end = now();
    stats_.stage_time[static_cast<int>(stage)] += end - begin;
    setup_.last_progress.store(end, std::memory_order_relaxed);
  }

  const RankSetup setup_;
  const int rank_;
  const AttentionForm form_;
  const MlaShape mla_shape_;
  const GateConfig gate_;
  const std::vector<double> inv_freq_;
  const double attention_factor_;
  std::vector<int> moe_index_;  // [layers] place among the MoE layers; -1: dense

  Stream stream_;
  ExpandedPrompt expanded_;
  std::vector<MicroBatch> micro_batches_;  // one, or two if steps may overlap
  ExpertExchange exchange_;
  ExpertBuffers experts_;
  SlotChooser slot_chooser_;
  QuantizedRows final_h_;  // [logits, hidden]: RMSNorm of the rows that want logits

  // Of the step in progress.
  std::span<MicroBatch> parts_;
  const PlacementSnapshot* placement_ = nullptr;
  bool stopped_ = false;
  ForwardObserver* observer_ = nullptr;
  RankStats stats_;
};

// How rows travel between the ranks of such a group.
ExchangeShape exchange_shape(const RankSetup& setup);

}  // namespace fathom
