// The stages of an MoE layer over kernels/gate, balance/replica_choice and ep/exchange.
#include "model/moe.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/elementwise.h"
#include "kernels/prefetch.h"
#include "kernels/quantize.h"

namespace fathom {
namespace {

// Rows of results: so few cost less than waking others for them.
constexpr int64_t kReturnsInline = 8;
// Dispatched rows that are asked for before they are copied: an expert's are far apart.
constexpr int64_t kRowsAhead = 4;

PayloadRows payload_rows(const Activations& x) {
  return {.data = x.row(0),
          .stride_bytes = x.row_stride_bytes,
          .scales = reinterpret_cast<const std::byte*>(x.scales),
          .scale_stride_bytes = x.scale_stride * static_cast<int64_t>(sizeof(float))};
}

// One dispatched FP8 row as F32.
void decode_fp8_row(const std::byte* codes, const std::byte* scales, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    float scale;
    std::memcpy(&scale, scales + i / kScaleBlock * sizeof(float), sizeof(float));
    out[i] = fp8_e4m3_to_f32(Fp8E4m3{static_cast<uint8_t>(codes[i])}) * scale;
  }
}

// Copies one dispatched row, which has the experts' own format, to where they read it.
void copy_payload(const Flight& flight, int64_t from, const Activations& to, int64_t row) {
  const int64_t bytes = to.k * act_element_bytes(to.format);
  std::memcpy(to.row(row), flight.payload(from), bytes);
  if (to.k % kScaleBlock != 0) std::memset(to.row(row) + bytes, 0, to.row_stride_bytes - bytes);
  if (to.scales != nullptr)
    std::memcpy(to.row_scales(row), flight.payload_scales(from), to.scale_stride * sizeof(float));
}

// Brings dispatched rows from `begin` on to `to`, in the experts' format. scratch: a row of floats.
void bring_payload(const MoeContext& c, const Flight& flight, int64_t begin, const Activations& to,
                   std::byte* scratch) {
  if (!c.experts.converts()) {
    const int64_t bytes = to.k * act_element_bytes(to.format);
    for (int64_t row = 0; row < to.rows; ++row) {
      if (row + kRowsAhead < to.rows) prefetch_row(flight.payload(begin + row + kRowsAhead), bytes);
      copy_payload(flight, begin + row, to, row);
    }
    return;
  }
  auto* const row_f32 = reinterpret_cast<float*>(scratch);
  for (int64_t row = 0; row < to.rows; ++row) {
    decode_fp8_row(flight.payload(begin + row), flight.payload_scales(begin + row), to.k, row_f32);
    quantize_rows({row_f32, 1, to.k}, act_row_range(to, row, row + 1));
  }
}

}  // namespace

GateConfig gate_config(const ModelConfig& config) {
  return {.num_experts = static_cast<int>(config.n_routed_experts),
          .top_k = static_cast<int>(config.num_experts_per_tok),
          .num_groups = config.topk_method == TopkMethod::kGreedy ? 1 : static_cast<int>(config.n_group),
          .top_groups = config.topk_method == TopkMethod::kGreedy ? 1 : static_cast<int>(config.topk_group),
          .score = config.scoring_func == ScoringFunc::kSigmoid ? GateScore::kSigmoid : GateScore::kSoftmax,
          .group_score = config.topk_method == TopkMethod::kNoauxTc ? GroupScore::kTop2Sum : GroupScore::kMax,
          .normalize = config.norm_topk_prob,
          .scale = config.scales_routed_weights() ? static_cast<float>(config.routed_scaling_factor) : 1.0f};
}

ExpertBuffers::ExpertBuffers(const ModelConfig& config, ActFormat ffn, ActFormat dispatch,
                             int64_t max_expert_rows)
    : ffn_format(ffn), dispatch_format(dispatch) {
  x = QuantizedRows(ffn, max_expert_rows, config.hidden_size, config.scale_fmt_ue8m0);
  mid = QuantizedRows(ffn, max_expert_rows, config.moe_intermediate_size, config.scale_fmt_ue8m0);
}

void moe_gate(const MoeContext& c, const MoeWeights& w) {
  const int top_k = c.gate.top_k;
  linear_level(c.stream,
               {{f32_activations(c.a.ffn_in.rows(c.num_rows)), &w.gate, c.a.router_logits.rows(c.num_rows)}});
  c.stream.for_rows(c.num_rows, [&](int64_t begin, int64_t end, std::byte*) {
    for (int64_t row = begin; row < end; ++row) {
      gate_choose(c.gate, c.a.router_logits.row(row), w.e_score_correction_bias, &c.a.experts[row * top_k],
                  &c.a.gates[row * top_k]);
    }
  });
}

void SlotChooser::choose(const MoeContext& c, const LayerPlacement& placement) {
  const int64_t num_choices = c.num_rows * c.gate.top_k;
  if (placement.max_replicas() == 1) {
    for (int64_t i = 0; i < num_choices; ++i) c.a.slots[i] = placement.slots_of(c.a.experts[i]).front();
    return;
  }
  tokens_per_expert_.assign(c.gate.num_experts, 0);
  for (int64_t i = 0; i < num_choices; ++i) ++tokens_per_expert_[c.a.experts[i]];
  // A rank knows its own tokens only, so it spreads those evenly; the rank as salt sends the remainders of
  // different ranks to different replicas.
  const PlacementView view{.log2phy = placement.expert_slots(),
                           .logcnt = placement.num_replicas(),
                           .max_replicas = placement.max_replicas(),
                           .slots_per_rank = c.placement_shape.slots_per_rank(),
                           .num_ranks = c.placement_shape.num_ranks};
  split_evenly(tokens_per_expert_, view, static_cast<uint32_t>(c.rank), split_);
  share_.assign(c.gate.num_experts, 0);  // the share of each expert that is being used up
  for (int64_t i = 0; i < num_choices; ++i) {
    const int32_t expert = c.a.experts[i];
    SlotShare* const shares = &split_.shares[static_cast<size_t>(expert) * split_.max_replicas];
    while (shares[share_[expert]].tokens == 0) ++share_[expert];
    --shares[share_[expert]].tokens;
    c.a.slots[i] = shares[share_[expert]].slot;
  }
}

Status moe_dispatch(const MoeContext& c, const ExpertExchange::Ticket& ticket, uint32_t flags) {
  const Routing routing{.num_tokens = c.num_rows,
                        .slots = c.a.slots.data(),
                        .experts = c.a.experts.data(),
                        .weights = c.a.gates.data()};
  Activations payload = c.a.ffn_in_quantized.rows(c.num_rows);
  if (c.experts.converts()) {
    payload = c.a.dispatch_rows.rows(c.num_rows);
    quantize_level(c.stream, c.a.ffn_in.rows(c.num_rows), payload);
  }
  return ticket.flight->send_dispatch(ticket.sequence, routing, payload_rows(payload), flags);
}

void moe_experts(const MoeContext& c, const LayerPlacement& placement, const MoeWeights& w, Flight& flight) {
  const int64_t num_rows = flight.num_expert_rows();
  const int slots_per_rank = c.placement_shape.slots_per_rank();
  c.experts.jobs.clear();
  for (int slot = 0; slot < slots_per_rank; ++slot) {
    const int32_t expert = placement.expert_of(c.rank * slots_per_rank + slot);
    c.experts.jobs.add(w.experts[expert], flight.slot_begin(slot), flight.slot_begin(slot + 1));
  }
  c.experts.jobs.sort_by_rows();
  swiglu_levels(c.stream, c.experts.jobs,
                {.x = c.experts.x.rows(num_rows),
                 .bring_x = [&](int64_t begin, const Activations& to,
                                std::byte* scratch) { bring_payload(c, flight, begin, to, scratch); },
                 .mid = c.experts.mid.rows(num_rows),
                 .y = flight.expert_output(),
                 .y_dtype = flight.expert_output_dtype()});
  c.stream.for_rows(
      flight.num_return_rows(),
      [&](int64_t begin, int64_t end, std::byte* scratch) {
        flight.reduce(begin, end, reinterpret_cast<float*>(scratch));
      },
      kReturnsInline);
}

void ffn_dense(const MoeContext& c, const SwigluWeights& w) {
  if (!w.present() || c.num_rows == 0) return;
  c.experts.jobs.clear();
  c.experts.jobs.add(w, 0, c.num_rows);
  Activations mid = c.a.ffn_mid.rows(c.num_rows);
  mid.k = w.down.k;
  swiglu_levels(c.stream, c.experts.jobs,
                {.x = c.a.ffn_in_quantized.rows(c.num_rows),
                 .mid = mid,
                 .y = reinterpret_cast<std::byte*>(c.a.ffn_out.row(0)),
                 .y_dtype = DType::kF32});
}

void moe_combine(const MoeContext& c, const MoeWeights& w, Flight& flight) {
  const int64_t hidden = c.a.x.cols();
  c.stream.for_rows(c.num_rows, [&](int64_t begin, int64_t end, std::byte* scratch) {
    auto* const sum = reinterpret_cast<float*>(scratch);
    for (int64_t row = begin; row < end; ++row) {
      flight.combine_token(row, sum);
      if (w.shared_experts.present()) add_rows({c.a.ffn_out.row(row), 1, hidden}, {sum, 1, hidden});
      add_rows({sum, 1, hidden}, {c.a.x.row(row), 1, hidden});
    }
  });
}

int64_t moe_scratch_bytes(const ModelConfig& config) { return config.hidden_size * sizeof(float); }

}  // namespace fathom
