// Which implementation of each op runs. Every instruction set has a table of the ops written for it; the
// table in use takes each op from the highest level that has it, and is made once. Only this folder's tests
// and benchmarks need it; others call the ops.
#pragma once

#include "base/cpu.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/gate.h"
#include "kernels/linear.h"
#include "kernels/quantize.h"

namespace fathom {

// Entries are null where an instruction set has no version of its own.
struct KernelTable {
  Isa isa = Isa::kRef;
  const LinearKernel* linear[kNumWeightFormats] = {};
  decltype(&fathom::mla_absorbed) mla_absorbed = nullptr;
  decltype(&fathom::mla_per_head) mla_per_head = nullptr;
  void (*quantize_rows)(MatrixView<const float>, const Activations&, int64_t, int64_t) = nullptr;
  // Weights, see quantize.cc. Groups of 32 to INT4; n elements to e4m3(x / scale); the largest magnitude, by
  // bits.
  void (*quantize_int4_groups)(const float* x, int64_t num_groups, uint8_t* codes, F16* scales) = nullptr;
  void (*divide_to_fp8)(const float* x, int64_t n, float scale, Fp8E4m3* codes) = nullptr;
  float (*max_magnitude)(const float* x, int64_t n) = nullptr;
  decltype(&fathom::rms_norm) rms_norm = nullptr;
  decltype(&fathom::silu_mul) silu_mul = nullptr;
  decltype(&fathom::rope_interleaved) rope_interleaved = nullptr;
  decltype(&fathom::add_rows) add_rows = nullptr;
  decltype(&fathom::weighted_sum) weighted_sum = nullptr;
  // The gate's scores [num_experts] and the experts chosen by them [top_k], see gate_choose.
  void (*gate_experts)(const GateConfig& config, const float* logits, const float* bias, float* scores,
                       int32_t* experts) = nullptr;
  decltype(&fathom::to_f32) to_f32 = nullptr;
  decltype(&fathom::from_f32) from_f32 = nullptr;
};

// What is written for exactly this instruction set.
const KernelTable& own_kernel_table(Isa isa);
// Complete: each op from the highest level up to `isa`.
const KernelTable& kernel_table(Isa isa);
inline const KernelTable& active_kernels() { return kernel_table(active_isa()); }

}  // namespace fathom
