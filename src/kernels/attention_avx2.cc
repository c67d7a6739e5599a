// attention_simd.h for AVX2.
#include "kernels/attention_simd.h"
#include "kernels/simd_avx2.h"

namespace fathom {

void add_avx2_attention(KernelTable& table) {
  table.mla_absorbed = absorbed_simd<Avx2>;
  table.mla_per_head = per_head_simd<Avx2>;
}

}  // namespace fathom
