// attention_simd.h for AVX-512.
#include "kernels/attention_simd.h"
#include "kernels/simd_avx512.h"

namespace fathom {

void add_avx512_attention(KernelTable& table) {
  table.mla_absorbed = absorbed_simd<Avx512>;
  table.mla_per_head = per_head_simd<Avx512>;
}

}  // namespace fathom
