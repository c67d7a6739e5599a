// INT8 and INT4 linear layers with AVX2: bytes of eight outputs at a time.
#include "kernels/linear_maddubs.h"
#include "kernels/simd_avx2.h"

namespace fathom {
namespace {

struct Bytes256 : Avx2 {
  using B = __m256i;
  typedef int32_t Int32 __attribute__((vector_size(32), may_alias));
  typedef int16_t Int16 __attribute__((vector_size(32), may_alias));
  struct Signed {
    B magnitude, value;
  };
  static constexpr int kInt8Rows = 4, kInt4Rows = 4;  // times two vectors: what sixteen registers hold

  static FATHOM_INLINE B load_bytes(const std::byte* p) {
    return _mm256_load_si256(reinterpret_cast<const B*>(p));
  }
  static FATHOM_INLINE B set1_quad(int32_t quad) { return _mm256_set1_epi32(quad); }
  static FATHOM_INLINE B flip_tops(B x) {
    return _mm256_xor_si256(x, _mm256_set1_epi8(static_cast<char>(0x80)));
  }
  static FATHOM_INLINE Signed split_sign(B w) { return {_mm256_abs_epi8(w), w}; }
  static FATHOM_INLINE B with_sign(B x, const Signed& w) { return _mm256_sign_epi8(x, w.value); }
  static FATHOM_INLINE B maddubs(B a, B b) { return _mm256_maddubs_epi16(a, b); }
  static FATHOM_INLINE B add_pairs(B x) { return _mm256_madd_epi16(x, _mm256_set1_epi16(1)); }
  static FATHOM_INLINE B nibbles(B x, int half) {
    return _mm256_and_si256(half == 0 ? x : _mm256_srli_epi16(x, 4), _mm256_set1_epi8(15));
  }
  static FATHOM_INLINE F to_float(B x) { return _mm256_cvtepi32_ps(x); }
};

constexpr LinearKernel kInt8 =
    make_panel_kernel<WeightFormat::kInt8>(Isa::kAvx2, run_panels<Int8Kernel<Bytes256>, Avx2>);
constexpr LinearKernel kInt4 =
    make_panel_kernel<WeightFormat::kInt4>(Isa::kAvx2, run_panels<Int4Kernel<Bytes256>, Avx2>);

}  // namespace

void add_avx2_int_linear(KernelTable& table) {
  table.linear[static_cast<int>(WeightFormat::kInt8)] = &kInt8;
  table.linear[static_cast<int>(WeightFormat::kInt4)] = &kInt4;
}

}  // namespace fathom
