// Each implementation file adds its ops to the table of its instruction set; dispatch.cc calls them all.
#pragma once

#include "kernels/dispatch.h"

namespace fathom {

void add_ref_linear(KernelTable& table);
void add_ref_quantize(KernelTable& table);
void add_ref_elementwise(KernelTable& table);
void add_ref_attention(KernelTable& table);
void add_bf16_linear(KernelTable& table);

}  // namespace fathom
