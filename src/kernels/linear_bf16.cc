// BF16 and FP8 linear layers with vdpbf16ps: two products a lane, sums in F32. FP8 becomes BF16 in registers
// (exactly, by table); so do its activations, once per block of rows.
#include <immintrin.h>

#include "kernels/dispatch_tables.h"
#include "kernels/panel_driver.h"

namespace fathom {
namespace {

constexpr int64_t kPrefetchBytes = 2048;

FATHOM_INLINE __m512bh broadcast_pair(const std::byte* a) {
  int32_t pair;
  __builtin_memcpy(&pair, a, 4);
  return (__m512bh)_mm512_set1_epi32(pair);
}

FATHOM_INLINE void prefetch(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p) + kPrefetchBytes, _MM_HINT_T0);
}

template <int kRows>
FATHOM_INLINE void load_c(const MicroArgs& args, __m512 (&acc)[kRows][2]) {
  FATHOM_UNROLL
  for (int r = 0; r < kRows; ++r) {
    acc[r][0] = args.first ? _mm512_setzero_ps() : _mm512_loadu_ps(args.c + r * args.c_stride);
    acc[r][1] = args.first ? _mm512_setzero_ps() : _mm512_loadu_ps(args.c + r * args.c_stride + 16);
  }
}

template <int kRows>
FATHOM_INLINE void store_c(const MicroArgs& args, const __m512 (&acc)[kRows][2]) {
  FATHOM_UNROLL
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(args.c + r * args.c_stride, acc[r][0]);
    _mm512_storeu_ps(args.c + r * args.c_stride + 16, acc[r][1]);
  }
}

// Row r of a block through few registers: base + {0, 1, 2} · stride.
template <int kRows>
FATHOM_INLINE void multiply_step(const std::byte* const* base, int64_t stride, __m512bh w0, __m512bh w1,
                                 __m512 (&acc)[kRows][2]) {
  FATHOM_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const __m512bh a = broadcast_pair(base[r / 3] + r % 3 * stride);
    acc[r][0] = _mm512_dpbf16_ps(acc[r][0], w0, a);
    acc[r][1] = _mm512_dpbf16_ps(acc[r][1], w1, a);
  }
}

struct Bf16Kernel {
  static constexpr WeightFormat kFormat = WeightFormat::kBf16;
  static constexpr int kMaxRows = 14;
  static constexpr int64_t kKBlock = 1024;
  static constexpr int64_t kGroupRows = 18 * kMaxRows;
  struct Scratch {};
  static int64_t max_k(int64_t) { return INT64_MAX; }
  static void prepare(const Activations& x, int64_t row, int64_t, int64_t k, int64_t, Scratch&,
                      MicroArgs& args) {
    args.a = x.row(row) + k * 2;
    args.a_stride = x.row_stride_bytes;
  }

  template <int kRows>
  static void run(const MicroArgs& args) {
    __m512 acc[kRows][2];
    load_c<kRows>(args, acc);
    const std::byte* base[5];
    for (int i = 0; i < 5; ++i) base[i] = args.a + i * 3 * args.a_stride;
    const std::byte* w = args.w;
    for (int64_t pairs = (args.k_count + 1) / 2; pairs > 0; --pairs) {
      prefetch(w);
      prefetch(w + 64);
      const auto w0 = (__m512bh)_mm512_load_si512(w);
      const auto w1 = (__m512bh)_mm512_load_si512(w + 64);
      multiply_step<kRows>(base, args.a_stride, w0, w1, acc);
      for (int i = 0; i < (kRows + 2) / 3; ++i) base[i] += 4;
      w += 128;
    }
    store_c<kRows>(args, acc);
  }
  static constexpr MicroKernel micro[] = {run<1>, run<2>, run<3>,  run<4>,  run<5>,  run<6>,  run<7>,
                                          run<8>, run<9>, run<10>, run<11>, run<12>, run<13>, run<14>};
};

constexpr LinearKernel kBf16 =
    make_panel_kernel<WeightFormat::kBf16>(Isa::kAvx512Bf16, run_panels<Bf16Kernel>);

}  // namespace

void add_bf16_linear(KernelTable& table) { table.linear[static_cast<int>(WeightFormat::kBf16)] = &kBf16; }

}  // namespace fathom
