// elementwise_simd.h for AVX-512.
#include "kernels/quantize_simd.h"
#include "kernels/simd_avx512.h"

namespace fathom {

void add_avx512_elementwise(KernelTable& table) {
  add_elementwise<Avx512>(table);
  add_quantize<Avx512>(table);
}

}  // namespace fathom
