// gate_simd.h for AVX2.
#include "kernels/gate_simd.h"
#include "kernels/simd_avx2.h"

namespace fathom {

void add_avx2_gate(KernelTable& table) { table.gate_experts = gate_experts_simd<Avx2>; }

}  // namespace fathom
