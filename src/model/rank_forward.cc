// The stages of one rank, and the walk through an overlap table.
#include "model/rank_forward.h"

#include <algorithm>

#include "kernels/elementwise.h"
#include "kernels/quantize.h"

namespace fathom {
namespace {

constexpr uint32_t kStopFlag = 1;  // in dispatch headers: a rank was told to stop

AttentionForm attention_form(const ForwardOptions& options) {
  return options.phase == Phase::kDecode || options.deterministic ? AttentionForm::kAbsorbed
                                                                  : AttentionForm::kPerHead;
}

ActFormats act_formats(const RankSetup& setup) {
  const ModelWeights& w = setup.model.weights();
  return {.attention = w.attention_act, .ffn = w.ffn_act, .dispatch = setup.dispatch_format};
}

std::vector<MicroBatch> make_micro_batches(const RankSetup& setup) {
  const ForwardMaxima maxima{.tokens = setup.options.max_tokens_per_rank,
                             .absorbed = attention_form(setup.options) == AttentionForm::kAbsorbed};
  std::vector<MicroBatch> micro_batches;
  const int count = setup.options.overlap_min_tokens.has_value() ? 2 : 1;
  for (int i = 0; i < count; ++i)
    micro_batches.emplace_back(setup.model.config(), act_formats(setup), maxima);
  return micro_batches;
}

Stage timed_stage(OverlapStage stage) {
  constexpr Stage kStages[kNumOverlapStages] = {Stage::kAttn0,  Stage::kAttn1, Stage::kDispatch,
                                                Stage::kShared, Stage::kMlp,   Stage::kCombine};
  return kStages[static_cast<int>(stage)];
}

int64_t scratch_bytes(const RankSetup& setup) {
  const ModelConfig& config = setup.model.config();
  return std::max(
      {mla_scratch_bytes(MlaShape(config), setup.model.weights().core_dtype, attention_form(setup.options),
                         setup.max_context),
       moe_scratch_bytes(config),
       swiglu_scratch_bytes(setup.model.weights().ffn_act, config.hidden_size, config.moe_intermediate_size),
       static_cast<int64_t>(std::max({config.hidden_size, config.q_lora_rank, config.kv_lora_rank}) *
                            sizeof(float))});
}

// More ranks than cores park at once: a spinning rank would keep the one it waits for from running.
ThreadTeamOptions team_options(const RankSetup& setup, int rank) {
  ThreadTeamOptions team{.num_threads = setup.threads};
  if (!setup.options.rank_cpus.empty()) team.cpus = setup.options.rank_cpus[rank].cpus;
  if (setup.options.num_ranks > 1) team.spin_iterations = 0;
  return team;
}

}  // namespace

ExchangeShape exchange_shape(const RankSetup& setup) {
  const ModelConfig& config = setup.model.config();
  const bool normal = setup.options.phase == Phase::kPrefill && !setup.options.deterministic;
  const ActFormat format = setup.dispatch_format;
  const int64_t element_bytes = format == ActFormat::kF32 ? 4 : format == ActFormat::kBf16 ? 2 : 1;
  return {.mode = normal ? ExchangeMode::kNormal : ExchangeMode::kLowLatency,
          .expert_order = setup.options.deterministic,
          .num_ranks = setup.placement_shape.num_ranks,
          .slots_per_rank = setup.placement_shape.slots_per_rank(),
          .top_k = std::max(1, static_cast<int>(config.num_experts_per_tok)),
          .hidden = config.hidden_size,
          .max_tokens_per_rank = setup.options.max_tokens_per_rank,
          .payload_row_bytes = config.hidden_size * element_bytes,
          .scale_row_bytes = act_row_scales(format, config.hidden_size) * static_cast<int64_t>(sizeof(float)),
          .result = setup.model.weights().core_dtype};
}

RankForward::RankForward(const RankSetup& setup, Endpoint& endpoint)
    : setup_(setup),
      rank_(endpoint.rank()),
      form_(attention_form(setup.options)),
      mla_shape_(setup.model.config()),
      gate_(gate_config(setup.model.config())),
      inv_freq_(rope_inv_freq(setup.model.config())),
      attention_factor_(rope_attention_factor(setup.model.config())),
      stream_(team_options(setup, rank_), scratch_bytes(setup)),
      expanded_(
          mla_shape_, setup.model.config().num_hidden_layers, setup.model.weights().core_dtype,
          setup.max_context,
          form_ == AttentionForm::kPerHead ? setup.options.expanded_bytes / setup.options.num_ranks : 0),
      micro_batches_(make_micro_batches(setup)),
      exchange_(endpoint, exchange_shape(setup), static_cast<int>(micro_batches_.size())),
      experts_(setup.model.config(), setup.model.weights().ffn_act, setup.dispatch_format,
               exchange_shape(setup).max_expert_rows()),
      final_h_(setup.model.weights().head_act,
               std::min(setup.options.max_tokens_per_rank, setup.options.max_logit_rows),
               setup.model.config().hidden_size, setup.model.config().scale_fmt_ue8m0) {
  int num_moe_layers = 0;
  for (const LayerWeights& layer : setup.model.weights().layers) {
    moe_index_.push_back(layer.is_moe ? num_moe_layers++ : -1);
  }
  stats_.expert_tokens.resize(num_moe_layers * gate_.num_experts);
}

Status RankForward::step(const RankBatch& batch, const PlacementSnapshot& placement, bool overlap,
                         MatrixView<float> logits) {
  exchange_.take_stats();  // of a step that was cancelled
  std::fill(stats_.expert_tokens.begin(), stats_.expert_tokens.end(), 0);
  std::fill(std::begin(stats_.stage_time), std::end(stats_.stage_time), Duration{});
  stats_.exposed_communication = {};
  stopped_ = false;
  placement_ = &placement;
  const OverlapTable& table = cut(batch, overlap);
  overlap ? expanded_.forget() : expanded_.begin_step(parts_[0].batch);
  for (MicroBatch& m : parts_) embed(m);
  RETURN_IF_ERROR(run_layers(table));
  if (stopped_) return Status(StatusCode::kCancelled, "stopped");
  expanded_.end_step();
  head(logits);
  stats_.exchange = exchange_.take_stats();
  return {};
}

const OverlapTable& RankForward::cut(const RankBatch& batch, bool overlap) {
  const bool prefill = setup_.options.phase == Phase::kPrefill;
  const OverlapTable& table = !overlap ? plain_table() : prefill ? prefill_table() : decode_table();
  parts_ = std::span(micro_batches_).first(table.num_micro_batches);
  if (!overlap) {
    take_whole(batch, parts_[0]);
  } else {
    MicroBatch& leading = parts_[table.leading_micro_batch];
    MicroBatch& other = parts_[1 - table.leading_micro_batch];
    prefill ? cut_prefill(batch, leading, other) : cut_decode(batch, leading, other);
  }
  for (MicroBatch& m : parts_) m.start();
  return table;
}

void RankForward::embed(MicroBatch& m) {
  const TimePoint begin = now();
  const ModelWeights& w = setup_.model.weights();
  const int64_t hidden = m.a.x.cols();
  const auto* const table = static_cast<const std::byte*>(w.embed_tokens);
  stream_.for_rows(m.num_rows(), [&](int64_t first, int64_t last, std::byte*) {
    for (int64_t row = first; row < last; ++row) {
      to_f32(w.embed_dtype, table + dtype_bytes(w.embed_dtype, m.batch.tokens()[row] * hidden), hidden,
             m.a.x.row(row));
      fill_cos_sin(inv_freq_, attention_factor_, m.batch.position(row), m.a.cos_sin.row(row));
    }
  });
  charge(Stage::kEmbed, begin);
  if (observer_ != nullptr) observer_->after_layer(-1, m.a, m.batch);
}

// Runs the table as ep/overlap.h describes it. Transfers are sent where the table starts them and awaited
// where something needs them, so their wire parts are no work of ours.
Status RankForward::run_layers(const OverlapTable& table) {
  const int num_layers = static_cast<int>(moe_index_.size());
  for (int period = -1; period <= num_layers; ++period) {
    for (const OverlapOp& op : table.ops) {
      const int layer = period + op.layer_shift;
      if (layer < 0 || layer >= num_layers || op.part == OverlapPart::kWire) continue;
      const TimePoint begin = now();
      RETURN_IF_ERROR(run_stage(op.stage, parts_[op.micro_batch], layer));
      const bool dense = op.stage == OverlapStage::kMlp && !weights(layer).is_moe;
      charge(dense ? Stage::kDense : timed_stage(op.stage), begin);
    }
  }
  for (MicroBatch& m : parts_) RETURN_IF_ERROR(finish_combine(m));
  return {};
}

Status RankForward::run_stage(OverlapStage stage, MicroBatch& m, int layer) {
  switch (stage) {
    case OverlapStage::kAttn0:
      return attn_0(m, layer);
    case OverlapStage::kAttn1:
      attn_1(m, layer);
      return {};
    case OverlapStage::kDispatch:
      return dispatch(m, layer);
    case OverlapStage::kShared:
      shared(m, layer);
      return {};
    case OverlapStage::kMlp:
      return mlp(m, layer);
    case OverlapStage::kCombine:
      return combine(m, layer);
  }
  CHECK_MSG(false, "no such stage");
}

Status RankForward::attn_0(MicroBatch& m, int layer) {
  RETURN_IF_ERROR(finish_combine(m));
  // A rank alone stops at any layer; several agree in the exchange of an MoE layer (mlp).
  if (setup_.options.num_ranks == 1 && setup_.stop.load(std::memory_order_relaxed)) stopped_ = true;
  if (stopped_ || m.num_rows() == 0) return {};
  m.batch.enter_layer(setup_.storage, layer);
  mla_project(mla(m, layer), weights(layer).self_attn, weights(layer).input_layernorm);
  return {};
}

void RankForward::attn_1(MicroBatch& m, int layer) {
  if (stopped_ || m.num_rows() == 0) return;
  const LayerWeights& w = weights(layer);
  const int64_t t = m.num_rows();
  const TimePoint begin = now();
  mla_core(mla(m, layer), w.self_attn);
  charge(Stage::kCore, begin);
  mla_output(mla(m, layer), w.self_attn);
  add_norm_level(stream_, m.a.u.rows(t), m.a.x.rows(t), {w.post_attention_layernorm, mla_shape_.norm_eps},
                 m.a.ffn_in.rows(t), m.a.ffn_in_quantized.rows(t));
  if (w.is_moe) moe_gate(moe(m), w.moe);
}

Status RankForward::dispatch(MicroBatch& m, int layer) {
  // Once stopped, nothing new is started; what is in flight comes to its end on all ranks.
  if (stopped_ || !weights(layer).is_moe) return {};
  slot_chooser_.choose(moe(m), placement(layer));
  count_experts(m, layer);
  m.ticket = exchange_.next();
  m.dispatched = true;
  return moe_dispatch(moe(m), m.ticket, setup_.stop.load(std::memory_order_relaxed) ? kStopFlag : 0);
}

void RankForward::shared(MicroBatch& m, int layer) {
  if (!stopped_ && weights(layer).is_moe) ffn_dense(moe(m), weights(layer).moe.shared_experts);
}

Status RankForward::mlp(MicroBatch& m, int layer) {
  const LayerWeights& w = weights(layer);
  if (!w.is_moe) {
    if (!stopped_) dense_mlp(m, w.mlp);
    if (observer_ != nullptr) observer_->after_layer(layer, m.a, m.batch);
    return {};
  }
  if (!m.dispatched) return {};
  Flight& flight = *m.ticket.flight;
  const TimePoint begin = now();
  RETURN_IF_ERROR(flight.receive_dispatch());
  stats_.exposed_communication += now() - begin;
  if (flight.flags() & kStopFlag) stopped_ = true;
  if (stopped_) return {};
  moe_experts(moe(m), placement(layer), w.moe, flight);
  return {};
}

void RankForward::dense_mlp(MicroBatch& m, const SwigluWeights& w) {
  const int64_t t = m.num_rows();
  ffn_dense(moe(m), w);
  stream_.for_rows(t, [&](int64_t begin, int64_t end, std::byte*) {
    add_rows(m.a.ffn_out.rows(t).row_range(begin, end), m.a.x.rows(t).row_range(begin, end));
  });
}

Status RankForward::combine(MicroBatch& m, int layer) {
  if (!m.dispatched) return {};
  m.dispatched = false;
  m.combining = true;
  m.combine_layer = layer;
  return m.ticket.flight->send_combine();
}

Status RankForward::finish_combine(MicroBatch& m) {
  if (!m.combining) return {};
  m.combining = false;
  Flight& flight = *m.ticket.flight;
  const TimePoint begin = now();
  RETURN_IF_ERROR(flight.receive_combine());
  stats_.exposed_communication += now() - begin;
  if (!stopped_) moe_combine(moe(m), weights(m.combine_layer).moe, flight);
  flight.finish();
  if (observer_ != nullptr) observer_->after_layer(m.combine_layer, m.a, m.batch);
  return {};
}

void RankForward::head(MatrixView<float> logits) {
  if (logits.rows == 0) return;
  const TimePoint begin = now();
  const ModelWeights& w = setup_.model.weights();
  const Activations final_h = final_h_.rows(logits.rows);
  for (MicroBatch& m : parts_) {
    for (size_t i = 0; i < m.logit_index.size(); ++i) {
      norm_level(stream_, {m.a.x.row(m.batch.logit_rows()[i]), 1, m.a.x.cols()},
                 {w.norm, mla_shape_.norm_eps},
                 act_row_range(final_h, m.logit_index[i], m.logit_index[i] + 1));
    }
  }
  linear_level(stream_, {{final_h, &w.lm_head, logits}});
  charge(Stage::kHead, begin);
}

MlaContext RankForward::mla(MicroBatch& m, int layer) {
  return {mla_shape_, stream_, m.a, m.batch, form_, layer, expanded_};
}

MoeContext RankForward::moe(MicroBatch& m) {
  return {gate_, setup_.placement_shape, rank_, stream_, m.a, m.num_rows(), experts_};
}

void RankForward::count_experts(const MicroBatch& m, int layer) {
  int64_t* const counts = &stats_.expert_tokens[moe_index_[layer] * gate_.num_experts];
  for (int64_t i = 0; i < m.num_rows() * gate_.top_k; ++i) ++counts[m.a.experts[i]];
}

TimePoint RankForward::now() const {
  return setup_.options.clock != nullptr ? setup_.options.clock->now() : TimePoint{};
}

}  // namespace fathom
