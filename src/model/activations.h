// The buffers of one rank's (or micro-batch's) forward pass, named as in the DeepSeek-V2 and V3 reports.
// Allocated once from declared maxima; a step uses the first `tokens` rows of each.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/formats.h"
#include "model/config.h"
#include "tensor/arena.h"
#include "tensor/view.h"

namespace fathom {

// F32 rows, contiguous.
class FloatRows {
 public:
  FloatRows() = default;
  FloatRows(int64_t max_rows, int64_t cols) : cols_(cols), memory_(max_rows * cols * sizeof(float)) {}
  MatrixView<float> rows(int64_t num_rows) { return {memory_.as<float>(), num_rows, cols_}; }
  int64_t cols() const { return cols_; }
  float* row(int64_t i) { return memory_.as<float>() + i * cols_; }

 private:
  int64_t cols_ = 0;
  AlignedBuffer memory_;
};

// Rows in the format a linear layer reads.
class QuantizedRows {
 public:
  QuantizedRows() = default;
  QuantizedRows(ActFormat format, int64_t max_rows, int64_t k, bool power_of_two_scales)
      : memory_(act_bytes(format, max_rows, k)), all_(make_activations(format, max_rows, k, memory_.data())) {
    all_.power_of_two_scales = power_of_two_scales;
  }
  Activations rows(int64_t num_rows) const { return act_row_range(all_, 0, num_rows); }

 private:
  AlignedBuffer memory_;
  Activations all_;
};

// What the linear layers of a model read; the same in every layer.
struct ActFormats {
  ActFormat attention = ActFormat::kF32;  // q_a, kv_a, q_proj, q_b, o
  ActFormat ffn = ActFormat::kF32;        // dense, shared and routed experts
  ActFormat dispatch = ActFormat::kF32;   // what dispatch carries: ffn's, or FP8 by choice
};

struct ForwardMaxima {
  int64_t tokens = 0;    // per step
  bool absorbed = true;  // attention form
};

struct ForwardActivations {
  ForwardActivations(const ModelConfig& config, const ActFormats& formats, const ForwardMaxima& maxima);

  FloatRows cos_sin;  // [tokens, rope]: interleaved (cos, sin) of each token's position
  FloatRows x;        // [tokens, hidden]: the residual stream

  // MLA.
  QuantizedRows h;  // [tokens, hidden]: RMSNorm(x), attention's input
  FloatRows c_q;    // [tokens, q_lora]: compressed query
  QuantizedRows c_q_normed;
  FloatRows q;     // [tokens, heads * (nope + rope)]: per head [q_C | q_R]
  FloatRows c_kv;  // [tokens, latent + rope]: compressed KV and the shared rotated key, before norm and RoPE
  FloatRows q_latent;  // [tokens, heads * latent]: W_UK^T q_C (absorbed form)
  FloatRows o_latent;  // [tokens, heads * latent]: attention over the latent (absorbed form)
  FloatRows o;         // [tokens, heads * v]: what the heads return
  QuantizedRows o_quantized;
  FloatRows u;  // [tokens, hidden]: W_O o, to be added to x

  // FFN.
  FloatRows ffn_in;                // [tokens, hidden]: RMSNorm(x), read by the gate
  QuantizedRows ffn_in_quantized;  // the same, read by experts
  QuantizedRows dispatch_rows;     // the same, where dispatch carries another format than the experts read
  QuantizedRows ffn_mid;           // [tokens, inner width]: silu(gate) · up of the dense or shared expert
  FloatRows ffn_out;               // [tokens, hidden]: dense or shared expert's output
  FloatRows router_logits;         // [tokens, experts]
  std::vector<int32_t> experts, slots;  // [tokens, top_k]
  std::vector<float> gates;             // [tokens, top_k]
};

}  // namespace fathom
