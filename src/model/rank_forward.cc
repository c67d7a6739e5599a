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
  return {
      .attention = w.attention_act, .ffn = w.ffn_act, .head = w.head_act, .dispatch = setup.dispatch_format};
}

ForwardMaxima forward_maxima(const RankSetup& setup) {
  const int64_t tokens = setup.options.max_tokens_per_rank;
  return {.tokens = tokens,
          .logits = std::min(tokens, setup.options.max_logit_rows),
          .absorbed = attention_form(setup.options) == AttentionForm::kAbsorbed};
}

int64_t scratch_bytes(const RankSetup& setup) {
  const ModelConfig& config = setup.model.config();
  return std::max(
      {mla_scratch_bytes(MlaShape(config), setup.model.weights().core_dtype, attention_form(setup.options),
                         setup.max_context),
       moe_scratch_bytes(config), swiglu_scratch_bytes(),
       static_cast<int64_t>(std::max({config.hidden_size, config.q_lora_rank, config.kv_lora_rank}) *
                            sizeof(float))});
}

// More ranks than cores park at once: a spinning rank would keep the one it waits for from running.
ThreadTeamOptions team_options(const RankSetup& setup) {
  ThreadTeamOptions team{.num_threads = setup.threads};
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
          .expert_stride_bytes = act_row_bytes(format, config.hidden_size),
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
      stream_(team_options(setup), scratch_bytes(setup)),
      a_(setup.model.config(), act_formats(setup), forward_maxima(setup)),
      batch_(setup.options.max_tokens_per_rank),
      exchange_(endpoint, exchange_shape(setup)),
      experts_(setup.model.config(), setup.model.weights().ffn_act, setup.dispatch_format,
               exchange_shape(setup).max_expert_rows()) {
  int num_moe_layers = 0;
  for (const LayerWeights& layer : setup.model.weights().layers) {
    moe_index_.push_back(layer.is_moe ? num_moe_layers++ : -1);
  }
  stats_.expert_tokens.resize(num_moe_layers * gate_.num_experts);
  stats_.received_rows.resize(num_moe_layers);
}

Status RankForward::step(const RankBatch& batch, const PlacementSnapshot& placement,
                         MatrixView<float> logits) {
  std::fill(stats_.expert_tokens.begin(), stats_.expert_tokens.end(), 0);
  std::fill(std::begin(stats_.stage_time), std::end(stats_.stage_time), Duration{});
  exchange_.take_stats();  // of a step that was cancelled
  stopped_ = false;
  placement_ = &placement;
  batch_.assign(batch);
  embed();
  if (observer_ != nullptr) observer_->after_layer(-1, a_, batch_);
  for (int layer = 0; layer < static_cast<int>(moe_index_.size()); ++layer) {
    RETURN_IF_ERROR(run_layer(layer));
    if (observer_ != nullptr) observer_->after_layer(layer, a_, batch_);
    if (stopped_) return make_status(StatusCode::kCancelled, "stopped after layer {}", layer);
  }
  head(logits);
  stats_.exchange = exchange_.take_stats();
  return {};
}

void RankForward::embed() {
  const TimePoint begin = now();
  const ModelWeights& w = setup_.model.weights();
  const int64_t hidden = setup_.model.config().hidden_size;
  const auto* const table = static_cast<const std::byte*>(w.embed_tokens);
  for (int64_t row = 0; row < batch_.num_rows(); ++row) {
    to_f32(w.embed_dtype, table + dtype_bytes(w.embed_dtype, batch_.tokens()[row] * hidden), hidden,
           a_.x.row(row));
    fill_cos_sin(inv_freq_, attention_factor_, batch_.position(row), a_.cos_sin.row(row));
  }
  stats_.stage_time[static_cast<int>(Stage::kEmbed)] += now() - begin;
}

Status RankForward::run_layer(int layer) {
  const bool is_moe = moe_index_[layer] >= 0;
  // A rank alone stops at any layer; several agree in the exchange of an MoE layer.
  if (setup_.options.num_ranks == 1 && setup_.stop.load(std::memory_order_relaxed)) stopped_ = true;
  const std::span<const Stage> stages = is_moe ? std::span<const Stage>(kMoeLayerStages) : kDenseLayerStages;
  for (Stage stage : stages) {
    const TimePoint begin = now();
    RETURN_IF_ERROR(run_stage(stage, layer));
    stats_.stage_time[static_cast<int>(stage)] += now() - begin;
  }
  return {};
}

Status RankForward::run_stage(Stage stage, int layer) {
  switch (stage) {
    case Stage::kAttn0:
      attn_0(layer);
      return {};
    case Stage::kAttn1:
      attn_1(layer);
      return {};
    case Stage::kDispatch:
      return dispatch(layer);
    case Stage::kShared:
      shared(layer);
      return {};
    case Stage::kMlp:
      return mlp(layer);
    case Stage::kCombine:
      return combine(layer);
    case Stage::kEmbed:
    case Stage::kHead:
      break;
  }
  CHECK_MSG(false, "not a stage of a layer");
}

void RankForward::attn_0(int layer) {
  if (!has_tokens()) return;
  batch_.enter_layer(setup_.storage, layer);
  mla_project(mla(), weights(layer).self_attn, weights(layer).input_layernorm);
}

void RankForward::attn_1(int layer) {
  if (!has_tokens()) return;
  const LayerWeights& w = weights(layer);
  const int64_t t = batch_.num_rows();
  mla_attend(mla(), w.self_attn);
  add_norm_level(stream_, a_.u.rows(t), a_.x.rows(t), w.post_attention_layernorm, mla_shape_.norm_eps,
                 a_.ffn_in.rows(t), a_.ffn_in_quantized.rows(t));
  if (w.is_moe) moe_gate(moe(), w.moe);
}

Status RankForward::dispatch(int layer) {
  slot_chooser_.choose(moe(), *(*placement_)[moe_index_[layer]]);
  count_experts(moe_index_[layer]);
  ticket_ = exchange_.next();
  return moe_dispatch(moe(), ticket_, setup_.stop.load(std::memory_order_relaxed) ? kStopFlag : 0);
}

void RankForward::shared(int layer) { ffn_dense(moe(), weights(layer).moe.shared_experts); }

Status RankForward::mlp(int layer) {
  const LayerWeights& w = weights(layer);
  if (!w.is_moe) {
    const int64_t t = batch_.num_rows();
    ffn_dense(moe(), w.mlp);
    stream_.for_rows(t, [&](int64_t begin, int64_t end, std::byte*) {
      add_rows(a_.ffn_out.rows(t).row_range(begin, end), a_.x.rows(t).row_range(begin, end));
    });
    return {};
  }
  Flight& flight = *ticket_.flight;
  RETURN_IF_ERROR(flight.receive_dispatch());
  if (flight.flags() & kStopFlag) stopped_ = true;
  stats_.received_rows[moe_index_[layer]] = flight.num_expert_rows();
  moe_experts(moe(), *(*placement_)[moe_index_[layer]], w.moe, flight);
  return {};
}

Status RankForward::combine(int layer) {
  Flight& flight = *ticket_.flight;
  RETURN_IF_ERROR(flight.send_combine());
  RETURN_IF_ERROR(flight.receive_combine());
  moe_combine(moe(), weights(layer).moe, flight);
  flight.finish();
  return {};
}

void RankForward::head(MatrixView<float> logits) {
  const TimePoint begin = now();
  const auto num_rows = static_cast<int64_t>(batch_.logit_rows().size());
  if (num_rows > 0) {
    const ModelWeights& w = setup_.model.weights();
    const Activations final_h = a_.final_h.rows(num_rows);
    for (int64_t i = 0; i < num_rows; ++i) {
      norm_level(stream_, {a_.x.row(batch_.logit_rows()[i]), 1, a_.x.cols()}, w.norm, mla_shape_.norm_eps,
                 act_row_range(final_h, i, i + 1));
    }
    linear_level(stream_, {{final_h, &w.lm_head, logits}});
  }
  stats_.stage_time[static_cast<int>(Stage::kHead)] += now() - begin;
}

MlaContext RankForward::mla() { return {mla_shape_, stream_, a_, batch_, form_}; }

MoeContext RankForward::moe() {
  return {gate_, setup_.placement_shape, rank_, stream_, a_, batch_.num_rows(), experts_};
}

void RankForward::count_experts(int moe_layer) {
  int64_t* const counts = &stats_.expert_tokens[moe_layer * gate_.num_experts];
  for (int64_t i = 0; i < batch_.num_rows() * gate_.top_k; ++i) ++counts[a_.experts[i]];
}

TimePoint RankForward::now() const {
  return setup_.options.clock != nullptr ? setup_.options.clock->now() : TimePoint{};
}

}  // namespace fathom
