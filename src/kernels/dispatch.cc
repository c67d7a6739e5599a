// One table of kernels per instruction set, chosen once per process.
#include "kernels/dispatch.h"

#include <array>

#include "kernels/dispatch_tables.h"

namespace fathom {
namespace {

using Tables = std::array<KernelTable, kNumIsas>;

Tables make_own_tables() {
  Tables tables;
  for (int i = 0; i < kNumIsas; ++i) tables[i].isa = static_cast<Isa>(i);
  KernelTable& ref = tables[static_cast<int>(Isa::kRef)];
  add_ref_linear(ref);
  add_ref_quantize(ref);
  add_ref_elementwise(ref);
  add_ref_attention(ref);
  add_ref_gate(ref);
  KernelTable& avx2 = tables[static_cast<int>(Isa::kAvx2)];
  add_avx2_linear(avx2);
  add_avx2_int_linear(avx2);
  add_avx2_elementwise(avx2);
  add_avx2_attention(avx2);
  add_avx2_gate(avx2);
  KernelTable& avx512 = tables[static_cast<int>(Isa::kAvx512)];
  add_avx512_linear(avx512);
  add_avx512_int_linear(avx512);
  add_avx512_elementwise(avx512);
  add_avx512_attention(avx512);
  add_avx512_gate(avx512);
  add_vnni_linear(tables[static_cast<int>(Isa::kAvx512Vnni)]);
  KernelTable& bf16 = tables[static_cast<int>(Isa::kAvx512Bf16)];
  add_bf16_linear(bf16);
  add_bf16_elementwise(bf16);
  add_bf16_attention(bf16);
  add_bf16_per_head(bf16);
  return tables;
}

template <typename Entry>
void inherit(Entry& entry, const Entry& lower) {
  if (entry == nullptr) entry = lower;
}

Tables make_complete_tables() {
  Tables tables = make_own_tables();
  for (int i = 1; i < kNumIsas; ++i) {
    KernelTable& table = tables[i];
    const KernelTable& lower = tables[i - 1];
    for (int format = 0; format < kNumWeightFormats; ++format)
      inherit(table.linear[format], lower.linear[format]);
    inherit(table.mla_absorbed, lower.mla_absorbed);
    inherit(table.mla_per_head, lower.mla_per_head);
    inherit(table.quantize_rows, lower.quantize_rows);
    inherit(table.quantize_int4_groups, lower.quantize_int4_groups);
    inherit(table.divide_to_fp8, lower.divide_to_fp8);
    inherit(table.max_magnitude, lower.max_magnitude);
    inherit(table.rms_norm, lower.rms_norm);
    inherit(table.silu_mul, lower.silu_mul);
    inherit(table.rope_interleaved, lower.rope_interleaved);
    inherit(table.add_rows, lower.add_rows);
    inherit(table.weighted_sum, lower.weighted_sum);
    inherit(table.gate_experts, lower.gate_experts);
    inherit(table.to_f32, lower.to_f32);
    inherit(table.from_f32, lower.from_f32);
  }
  return tables;
}

}  // namespace

const KernelTable& own_kernel_table(Isa isa) {
  static const Tables tables = make_own_tables();
  return tables[static_cast<int>(isa)];
}

const KernelTable& kernel_table(Isa isa) {
  static const Tables tables = make_complete_tables();
  return tables[static_cast<int>(isa)];
}

}  // namespace fathom
