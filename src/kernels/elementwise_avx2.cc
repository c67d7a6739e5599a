// elementwise_simd.h for AVX2.
#include "kernels/quantize_simd.h"
#include "kernels/simd_avx2.h"

namespace fathom {

void add_avx2_elementwise(KernelTable& table) {
  add_elementwise<Avx2>(table);
  add_quantize<Avx2>(table);
}

}  // namespace fathom
