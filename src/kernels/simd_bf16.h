// AVX-512 with the processor's own conversion to BF16.
#pragma once

#include "kernels/simd_avx512.h"

namespace fathom {
namespace {

struct Avx512Bf16 : Avx512 {
  // The instruction takes subnormal numbers for zeros, so a vector with one goes the long way.
  static FATHOM_INLINE void store_bf16(void* p, F x) {
    constexpr int kSubnormal = 0x20;
    if (_mm512_fpclass_ps_mask(x, kSubnormal) != 0) return Avx512::store_bf16(p, x);
    _mm256_storeu_si256(static_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(x));
  }
};

}  // namespace
}  // namespace fathom
