// BF16 and FP8 linear layers with vdpbf16ps: two products a lane, sums in F32. FP8 becomes BF16 in registers
// (exactly, by table); so do its activations, once per block of rows.
#include <bit>

#include "kernels/dispatch_tables.h"
#include "kernels/micro_bf16.h"
#include "kernels/simd_bf16.h"

namespace fathom {
namespace {

struct Bf16Kernel {
  using Args = MicroArgs;
  static constexpr WeightFormat kFormat = WeightFormat::kBf16;
  static constexpr int kMaxRows = 14;
  static constexpr int64_t kKBlock = 2048;
  static constexpr int64_t kGroupRows = 19 * kMaxRows;
  static_assert(kGroupRows >= kLinearTileRowsMax);  // a few rows left over would read all the weights again
  struct Scratch {};
  static int64_t max_k(int64_t) { return INT64_MAX; }
  static void prepare(const RowGroup& group, Scratch&, MicroArgs& args) {
    args.a = group.data(2);
    args.a_stride = group.x.row_stride_bytes;
  }

  template <int kRows>
  static void run(const MicroArgs& args) {
    run_bf16<kRows, 2, (kRows < 6 ? 1 : 2)>(args);
  }
};

// The two bytes of BF16 for the 128 magnitudes of e4m3, NaN included.
struct Fp8Tables {
  alignas(64) uint8_t high[128];
  alignas(64) uint8_t low[128];
};
constexpr Fp8Tables make_fp8_tables() {
  Fp8Tables tables{};
  for (int code = 0; code < 128; ++code) {
    const uint32_t bits = std::bit_cast<uint32_t>(fp8_e4m3_to_f32(Fp8E4m3{static_cast<uint8_t>(code)}));
    tables.high[code] = static_cast<uint8_t>(bits >> 24);
    tables.low[code] = static_cast<uint8_t>(bits >> 16);
  }
  return tables;
}
constexpr Fp8Tables kFp8Tables = make_fp8_tables();

struct Fp8Decoder {
  __m512i high0 = _mm512_load_si512(kFp8Tables.high), high1 = _mm512_load_si512(kFp8Tables.high + 64);
  __m512i low0 = _mm512_load_si512(kFp8Tables.low), low1 = _mm512_load_si512(kFp8Tables.low + 64);
  __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));

  // 64 codes: `first` gets the low eight of each 128-bit lane, `second` the others.
  FATHOM_INLINE void decode(__m512i codes, __m512bh& first, __m512bh& second) const {
    __m512i high = _mm512_permutex2var_epi8(high0, codes, high1);
    const __m512i low = _mm512_permutex2var_epi8(low0, codes, low1);
    high = _mm512_ternarylogic_epi64(high, codes, sign, 0xf8);  // high | (codes & sign)
    first = (__m512bh)_mm512_unpacklo_epi8(low, high);
    second = (__m512bh)_mm512_unpackhi_epi8(low, high);
  }
};

struct Fp8Kernel {
  using Args = MicroArgs;
  static constexpr WeightFormat kFormat = WeightFormat::kFp8;
  static constexpr int kMaxRows = 11;
  static constexpr int64_t kKBlock = 1024;
  static constexpr int64_t kGroupRows = 5 * kMaxRows;
  static constexpr int64_t kRowPadding = 32;  // one cache line: rows fall on different cache sets
  static constexpr int64_t kScratch = kGroupRows * (kKBlock + kRowPadding);
  struct Scratch {
    alignas(64) uint16_t a[kScratch];
  };
  static int64_t max_k(int64_t rows) { return (kScratch / rows - kRowPadding) / kScaleBlock * kScaleBlock; }

  static void prepare(const RowGroup& group, Scratch& scratch, MicroArgs& args) {
    const Fp8Decoder decoder;
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const std::byte* const data = group.data(1);
    const int64_t padded = round_up(group.k_count, kScaleBlock), stride = padded + kRowPadding;
    for (int64_t r = 0; r < group.rows; ++r) {
      for (int64_t i = 0; i < padded; i += 64) {
        const __m512i codes = _mm512_loadu_si512(data + r * group.x.row_stride_bytes + i);
        __m512bh first, second;
        decoder.decode(_mm512_permutexvar_epi64(order, codes), first, second);
        _mm512_store_si512(scratch.a + r * stride + i, (__m512i)first);
        _mm512_store_si512(scratch.a + r * stride + i + 32, (__m512i)second);
      }
    }
    args.a = reinterpret_cast<const std::byte*>(scratch.a);
    args.a_stride = stride * 2;
  }

  template <int kRows>
  static void run(const MicroArgs& args) {
    const Fp8Decoder decoder;
    const std::byte* w = args.w;
    const int64_t ahead = bytes_ahead(args);
    for (int64_t block = 0; block * kScaleBlock < args.k_count; ++block) {
      const std::byte* base[5];
      for (int i = 0; i < 5; ++i) base[i] = args.a + block * kScaleBlock * 2 + i * 3 * args.a_stride;
      __m512 acc[kRows][2];
      FATHOM_UNROLL
      for (int r = 0; r < kRows; ++r) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
      const int64_t pairs = (smaller(kScaleBlock, args.k_count - block * kScaleBlock) + 1) / 2;
      for (int64_t pair = 0; pair < pairs; ++pair) {
        fetch<(kRows < 4 ? 1 : 2)>(w + ahead);
        __m512bh pair_w[2];
        decoder.decode(_mm512_load_si512(w), pair_w[0], pair_w[1]);
        multiply_step<kRows, 2>(base, args.a_stride, pair_w, acc);
        for (int i = 0; i < (kRows + 2) / 3; ++i) base[i] += 4;
        w += 64;
      }
      const bool fresh = args.first && block == 0;
      const SumsPlace place = sums_place(args, block);
      FATHOM_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const float* c = args.c + r * kLinearTileN;
        float* const to = place.to + r * place.stride;
        const __m512 scale =
            _mm512_set1_ps(args.x_scales[r * args.x_scale_stride + block] * args.w_scales[block]);
        const __m512 before0 = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(c);
        const __m512 before1 = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(c + 16);
        _mm512_storeu_ps(to, _mm512_fmadd_ps(acc[r][0], scale, before0));
        _mm512_storeu_ps(to + 16, _mm512_fmadd_ps(acc[r][1], scale, before1));
      }
    }
  }
};

constexpr LinearKernel kBf16 =
    make_panel_kernel<WeightFormat::kBf16>(Isa::kAvx512Bf16, run_panels<Bf16Kernel, Avx512Bf16>);
constexpr LinearKernel kFp8 =
    make_panel_kernel<WeightFormat::kFp8>(Isa::kAvx512Bf16, run_panels<Fp8Kernel, Avx512Bf16>);

}  // namespace

void add_bf16_linear(KernelTable& table) {
  table.linear[static_cast<int>(WeightFormat::kBf16)] = &kBf16;
  table.linear[static_cast<int>(WeightFormat::kFp8)] = &kFp8;
}

}  // namespace fathom
