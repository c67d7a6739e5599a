// Matrix products with FMA for AVX2: F32, F16, BF16 and FP8 weights.
#include "kernels/linear_fma.h"
#include "kernels/simd_avx2.h"

namespace fathom {
namespace {

template <class D>
constexpr LinearKernel kKernel = make_fma_kernel<Avx2, D>(Isa::kAvx2);

}  // namespace

void add_avx2_linear(KernelTable& table) {
  table.linear[static_cast<int>(WeightFormat::kF32)] = &kKernel<F32Decoder<Avx2>>;
  table.linear[static_cast<int>(WeightFormat::kF16)] = &kKernel<F16Decoder<Avx2>>;
  table.linear[static_cast<int>(WeightFormat::kBf16)] = &kKernel<Bf16Decoder<Avx2>>;
  table.linear[static_cast<int>(WeightFormat::kFp8)] = &kKernel<Fp8Decoder<Avx2>>;
}

}  // namespace fathom
