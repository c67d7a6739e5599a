// gate_simd.h for AVX-512.
#include "kernels/gate_simd.h"
#include "kernels/simd_avx512.h"

namespace fathom {

void add_avx512_gate(KernelTable& table) { table.gate_experts = gate_experts_simd<Avx512>; }

}  // namespace fathom
