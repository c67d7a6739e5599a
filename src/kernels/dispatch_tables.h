// Each implementation file adds its ops to the table of its instruction set; dispatch.cc calls them all.
#pragma once

#include "kernels/dispatch.h"

namespace fathom {

void add_ref_linear(KernelTable& table);
void add_ref_quantize(KernelTable& table);
void add_ref_elementwise(KernelTable& table);
void add_ref_attention(KernelTable& table);
void add_ref_gate(KernelTable& table);
void add_avx2_linear(KernelTable& table);
void add_avx2_int_linear(KernelTable& table);
void add_avx2_elementwise(KernelTable& table);
void add_avx2_attention(KernelTable& table);
void add_avx2_gate(KernelTable& table);
void add_avx512_linear(KernelTable& table);
void add_avx512_int_linear(KernelTable& table);
void add_avx512_elementwise(KernelTable& table);
void add_avx512_attention(KernelTable& table);
void add_avx512_gate(KernelTable& table);
void add_vnni_linear(KernelTable& table);
void add_bf16_linear(KernelTable& table);
void add_bf16_elementwise(KernelTable& table);
void add_bf16_attention(KernelTable& table);
void add_bf16_per_head(KernelTable& table);

}  // namespace fathom
