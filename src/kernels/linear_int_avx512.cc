// INT8 and INT4 linear layers with AVX-512 BW, for processors without VNNI: bytes of sixteen outputs at a
// time.
#include "kernels/linear_maddubs.h"
#include "kernels/simd_avx512.h"

namespace fathom {
namespace {

struct Bytes512 : Avx512 {
  using B = __m512i;
  typedef int32_t Int32 __attribute__((vector_size(64), may_alias));
  typedef int16_t Int16 __attribute__((vector_size(64), may_alias));
  // There is no vpsignb of this width: x is negated where w is negative; where w is zero, so is the product.
  struct Signed {
    B magnitude;
    __mmask64 negative;
  };
  static constexpr int kInt8Rows = 8, kInt4Rows = 6;  // times two vectors: what 32 registers hold

  static FATHOM_INLINE B load_bytes(const std::byte* p) { return _mm512_load_si512(p); }
  static FATHOM_INLINE B set1_quad(int32_t quad) { return _mm512_set1_epi32(quad); }
  static FATHOM_INLINE B flip_tops(B x) {
    return _mm512_xor_si512(x, _mm512_set1_epi8(static_cast<char>(0x80)));
  }
  static FATHOM_INLINE Signed split_sign(B w) { return {_mm512_abs_epi8(w), _mm512_movepi8_mask(w)}; }
  static FATHOM_INLINE B with_sign(B x, const Signed& w) {
    return _mm512_mask_sub_epi8(x, w.negative, _mm512_setzero_si512(), x);
  }
  static FATHOM_INLINE B maddubs(B a, B b) { return _mm512_maddubs_epi16(a, b); }
  static FATHOM_INLINE B add_pairs(B x) { return _mm512_madd_epi16(x, _mm512_set1_epi16(1)); }
  static FATHOM_INLINE B nibbles(B x, int half) {
    return _mm512_and_si512(half == 0 ? x : _mm512_srli_epi16(x, 4), _mm512_set1_epi8(15));
  }
  static FATHOM_INLINE F to_float(B x) { return _mm512_cvtepi32_ps(x); }
};

constexpr LinearKernel kInt8 =
    make_panel_kernel<WeightFormat::kInt8>(Isa::kAvx512, run_panels<Int8Kernel<Bytes512>, Avx512>);
constexpr LinearKernel kInt4 =
    make_panel_kernel<WeightFormat::kInt4>(Isa::kAvx512, run_panels<Int4Kernel<Bytes512>, Avx512>);

}  // namespace

void add_avx512_int_linear(KernelTable& table) {
  table.linear[static_cast<int>(WeightFormat::kInt8)] = &kInt8;
  table.linear[static_cast<int>(WeightFormat::kInt4)] = &kInt4;
}

}  // namespace fathom
