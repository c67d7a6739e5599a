// Per-head attention over BF16 keys and values with vdpbf16ps. A tile of 64 keys is rearranged once for all
// the query rows of a group: keys as [pairs of dim][32 keys], values as [pairs of keys][32 columns].
#include "kernels/attention_softmax.h"
#include "kernels/dispatch_tables.h"
#include "kernels/micro_bf16.h"
#include "kernels/simd_avx512.h"
#include "kernels/transpose_avx512.h"

namespace fathom {
namespace {

struct ProductKernel {
  using Args = MicroArgs;
  static constexpr int kMaxRows = 14;
  template <int kRows>
  static void run(const MicroArgs& args) {
    run_bf16<kRows, 2, 1>(args);
  }
};

// c[rows, 32 · panels] (+)= a · panels.
FATHOM_INLINE void multiply(MicroArgs args, int64_t rows, int64_t panels) {
  const int64_t panel_bytes = (args.k_count + 1) / 2 * 128;
  const std::byte* a = args.a;
  float* c = args.c;
  for (int64_t panel = 0; panel < panels; ++panel) {
    for_row_blocks<ProductKernel>(rows, [&](int64_t done, int64_t count) {
      args.a = a + done * args.a_stride;
      args.c = c + done * args.c_stride + panel * 32;
      kMicroKernels<ProductKernel>[count - 1](args);
    });
    args.w += panel_bytes;
  }
}

struct PerHead {
  const LatentBlocks& kv;
  const PerHeadKeys& keys;
  const PerHeadQuery& query;
  int64_t dim, value_columns;  // padded to 32
  Bf16* q;                     // [rows][dim]
  Bf16* key_rows;              // [64][dim]: nope | rope
  std::byte* key_panels;       // 2 · [dim / 2][32 keys]
  std::byte* value_panels;     // value_columns / 32 · [32 pairs of keys][32]
  float* scores;               // [64 rows][64]
  Bf16* p;                     // [64 rows][64]
  float* sums;                 // [rows][value_columns]
  SoftmaxState state;

  PerHead(const LatentBlocks& kv, const PerHeadKeys& keys, const PerHeadQuery& query, std::byte* memory)
      : kv(kv), keys(keys), query(query) {
    dim = round_up(keys.nope_dim + kv.rope_dim, 32);
    value_columns = round_up(keys.v_dim, 32);
    ScratchMemory scratch{memory};
    q = scratch.take<Bf16>(query.rows * dim);
    key_rows = scratch.take<Bf16>(kAttentionTile * dim);
    key_panels = scratch.take<std::byte>(kAttentionTile * dim * 2);
    value_panels = scratch.take<std::byte>(kAttentionTile * value_columns * 2);
    scores = scratch.take<float>(kPerHeadBlockRows * kAttentionTile);
    p = scratch.take<Bf16>(kPerHeadBlockRows * kAttentionTile);
    sums = scratch.take<float>(query.rows * value_columns);
    state = scratch.take_state(query.rows);
    __builtin_memset(sums, 0, static_cast<size_t>(query.rows * value_columns) * 4);
    __builtin_memset(static_cast<void*>(key_rows), 0, static_cast<size_t>(kAttentionTile * dim) * 2);
    round_query();
  }

  void round_query() {
    const int64_t width = keys.nope_dim + kv.rope_dim;
    for (int64_t r = 0; r < query.rows; ++r) {
      for (int64_t i = 0; i < dim; i += 16) {
        const int64_t n = smaller(16, width - i);
        const __m512 x = n > 0 ? Avx512::load_part(query.q + r * query.q_stride + i, n) : _mm512_setzero_ps();
        Avx512::store_bf16(q + r * dim + i, x);
      }
    }
  }

  FATHOM_INLINE const Bf16* value_row(int64_t token) const {
    return static_cast<const Bf16*>(keys.v) + token * keys.v_stride;
  }

  void load_keys(int64_t begin, int64_t count) {
    for (int64_t t = 0; t < count; ++t) {
      Bf16* row = key_rows + t * dim;
      __builtin_memcpy(static_cast<void*>(row),
                       static_cast<const Bf16*>(keys.nope) + (begin + t) * keys.nope_stride,
                       static_cast<size_t>(keys.nope_dim) * 2);
      __builtin_memcpy(static_cast<void*>(row + keys.nope_dim), latent_row(kv, begin + t) + kv.latent_dim * 2,
                       static_cast<size_t>(kv.rope_dim) * 2);
    }
    for (int64_t group = 0; group * 16 < count; ++group) {
      std::byte* panel = key_panels + group / 2 * dim * 64 + group % 2 * 64;
      for (int64_t i = 0; i < dim; i += 32) {
        __m512i x[16];
        FATHOM_UNROLL
        for (int t = 0; t < 16; ++t) x[t] = _mm512_load_si512(key_rows + (group * 16 + t) * dim + i);
        transpose(x);
        FATHOM_UNROLL
        for (int pair = 0; pair < 16; ++pair) _mm512_store_si512(panel + (i / 2 + pair) * 128, x[pair]);
      }
    }
  }

  void load_values(int64_t begin, int64_t count) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7,
                                         38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const int64_t pairs = (count + 1) / 2;
    for (int64_t column = 0; column < keys.v_dim; column += 32) {
      const auto mask = static_cast<__mmask32>(~0u >> (32 - smaller(32, keys.v_dim - column)));
      std::byte* panel = value_panels + column / 32 * pairs * 128;
      for (int64_t t = 0; t < count; t += 2) {
        const __m512i even = _mm512_maskz_loadu_epi16(mask, value_row(begin + t) + column);
        const __m512i odd = t + 1 < count ? _mm512_maskz_loadu_epi16(mask, value_row(begin + t + 1) + column)
                                          : _mm512_setzero_si512();
        _mm512_store_si512(panel + t * 64, _mm512_permutex2var_epi16(even, low, odd));
        _mm512_store_si512(panel + t * 64 + 64, _mm512_permutex2var_epi16(even, high, odd));
      }
    }
  }

  // Query rows [block, block + rows) against the loaded tile.
  void attend(int64_t block, int64_t rows, int64_t begin, int64_t count) {
    MicroArgs args{};
    args.a = reinterpret_cast<const std::byte*>(q + block * dim);
    args.a_stride = dim * 2;
    args.w = key_panels;
    args.k_count = dim;
    args.c = scores;
    args.c_stride = kAttentionTile;
    args.first = true;
    multiply(args, rows, (count + 31) / 32);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t visible = smaller(count, query.start + block + r + 1 - begin);
      Bf16* line = p + r * kAttentionTile;
      softmax_keys<Avx512Bf16, true>(
          scores + r * kAttentionTile, visible, query.scale, block + r, state, [&](int v, __m512 x) {
            const __m512i bits = _mm512_srli_epi32(_mm512_castps_si512(x), 16);
            _mm256_store_si256(reinterpret_cast<__m256i*>(line + v * 16), _mm512_cvtepi32_epi16(bits));
          });
      scale_row<Avx512>(sums + (block + r) * value_columns, value_columns, state.fade[block + r]);
    }
    args.a = reinterpret_cast<const std::byte*>(p);
    args.a_stride = kAttentionTile * 2;
    args.w = value_panels;
    args.k_count = count;
    args.c = sums + block * value_columns;
    args.c_stride = value_columns;
    args.first = false;
    multiply(args, rows, value_columns / 32);
  }

  void run() {
    const int64_t context = query.start + query.rows;
    for (int64_t begin = 0; begin < context; begin += kAttentionTile) {
      const int64_t count = smaller(kAttentionTile, context - begin);
      load_keys(begin, count);
      load_values(begin, count);
      // Rows before the first that sees this tile are done.
      const int64_t first = begin > query.start ? begin - query.start : 0;
      for (int64_t block = first; block < query.rows; block += kPerHeadBlockRows) {
        attend(block, smaller(kPerHeadBlockRows, query.rows - block), begin, count);
      }
    }
    for (int64_t r = 0; r < query.rows; ++r) {
      scale_row<Avx512>(sums + r * value_columns, value_columns, 1.0f / state.sum[r]);
      __builtin_memcpy(query.out + r * query.out_stride, sums + r * value_columns,
                       static_cast<size_t>(keys.v_dim) * 4);
    }
  }
};

void per_head_bf16(const LatentBlocks& kv, const PerHeadKeys& keys, const PerHeadQuery& query,
                   std::byte* memory) {
  if (kv.dtype == DType::kF32) return own_kernel_table(Isa::kAvx512).mla_per_head(kv, keys, query, memory);
  for (int64_t done = 0; done < query.rows; done += kPerHeadGroupRows) {
    PerHeadQuery part = query;
    part.rows = smaller(kPerHeadGroupRows, query.rows - done);
    part.start = query.start + done;
    part.q = query.q + done * query.q_stride;
    part.out = query.out + done * query.out_stride;
    PerHead(kv, keys, part, memory).run();
  }
}

}  // namespace

void add_bf16_per_head(KernelTable& table) { table.mla_per_head = per_head_bf16; }

}  // namespace fathom
