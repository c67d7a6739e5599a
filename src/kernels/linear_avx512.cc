// Matrix products with FMA for AVX-512: F32, F16, BF16 and FP8 weights.
#include "kernels/linear_fma.h"
#include "kernels/simd_avx512.h"

namespace fathom {
namespace {

template <class D>
constexpr LinearKernel kKernel = make_fma_kernel<Avx512, D>(Isa::kAvx512);

}  // namespace

void add_avx512_linear(KernelTable& table) {
  table.linear[static_cast<int>(WeightFormat::kF32)] = &kKernel<F32Decoder<Avx512>>;
  table.linear[static_cast<int>(WeightFormat::kF16)] = &kKernel<F16Decoder<Avx512>>;
  table.linear[static_cast<int>(WeightFormat::kBf16)] = &kKernel<Bf16Decoder<Avx512>>;
  table.linear[static_cast<int>(WeightFormat::kFp8)] = &kKernel<Fp8Decoder<Avx512>>;
}

}  // namespace fathom
