// One rank's forward pass: embedding, layers, head, over its own tokens and its share of the experts. The
// order of a layer's stages is data (a table), so that other orders (overlap of two micro-batches) need no
// other code.
#pragma once

#include <memory>

#include "model/forward.h"
#include "model/mla.h"
#include "model/moe.h"
#include "model/weights.h"

namespace fathom {

// The stages of a layer in the plain order.
inline constexpr Stage kDenseLayerStages[] = {Stage::kAttn0, Stage::kAttn1, Stage::kMlp};
inline constexpr Stage kMoeLayerStages[] = {Stage::kAttn0,  Stage::kAttn1, Stage::kDispatch,
                                            Stage::kShared, Stage::kMlp,   Stage::kCombine};

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
};

// A rank's results of one step, added up by the group.
struct RankStats {
  std::vector<int64_t> expert_tokens;  // [MoE layers, experts]
  std::vector<int64_t> received_rows;  // [MoE layers]
  ExchangeStats exchange;
  Duration stage_time[kNumStages] = {};
};

// Used by one thread at a time.
class RankForward {
 public:
  RankForward(const RankSetup& setup, Endpoint& endpoint);

  // Runs this rank's part of a step. `logits`: its rows, in chunk order. kCancelled when any rank saw `stop`:
  // all ranks leave after the same layer.
  Status step(const RankBatch& batch, const PlacementSnapshot& placement, MatrixView<float> logits);
  const RankStats& stats() const { return stats_; }
  void set_observer(ForwardObserver* observer) { observer_ = observer; }

 private:
  void embed();
  Status run_layer(int layer);
  Status run_stage(Stage stage, int layer);
  void head(MatrixView<float> logits);

  void attn_0(int layer);
  void attn_1(int layer);
  Status dispatch(int layer);
  void shared(int layer);
  Status mlp(int layer);
  Status combine(int layer);

  const LayerWeights& weights(int layer) const { return setup_.model.weights().layers[layer]; }
  MlaContext mla();
  MoeContext moe();
  bool has_tokens() const { return batch_.num_rows() > 0; }
  void count_experts(int moe_layer);
  TimePoint now() const;

  const RankSetup setup_;
  const int rank_;
  const AttentionForm form_;
  const MlaShape mla_shape_;
  const GateConfig gate_;
  const std::vector<double> inv_freq_;
  const double attention_factor_;
  std::vector<int> moe_index_;  // [layers] place among the MoE layers; -1: dense

  Stream stream_;
  ForwardActivations a_;
  TokenBatch batch_;
  ExpertExchange exchange_;
  ExpertBuffers experts_;
  SlotChooser slot_chooser_;

  // Of the step in progress.
  const PlacementSnapshot* placement_ = nullptr;
  ExpertExchange::Ticket ticket_;
  bool stopped_ = false;
  ForwardObserver* observer_ = nullptr;
  RankStats stats_;
};

// How rows travel between the ranks of such a group.
ExchangeShape exchange_shape(const RankSetup& setup);

}  // namespace fathom
