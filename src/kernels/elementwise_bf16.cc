// What ends in BF16, with the processor's own conversion.
#include "kernels/quantize_simd.h"
#include "kernels/simd_bf16.h"

namespace fathom {

void add_bf16_elementwise(KernelTable& table) {
  table.quantize_rows = quantize_rows_simd<Avx512Bf16>;
  table.from_f32 = from_f32_simd<Avx512Bf16>;
}

}  // namespace fathom
