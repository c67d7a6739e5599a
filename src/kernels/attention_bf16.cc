// Attention over BF16 storage with vdpbf16ps: scores and weighted sums are small products of BF16 pairs.
#include "kernels/attention_softmax_bf16.h"
#include "kernels/dispatch_tables.h"
#include "kernels/micro_bf16.h"
#include "kernels/simd_bf16.h"
#include "kernels/transpose_avx512.h"

namespace fathom {
namespace {

// Rows against [pairs of K][kVectors · 16 columns].
template <int kVectors>
struct ScoreKernel {
  using Args = MicroArgs;
  static constexpr int kMaxRows = kVectors == 1 ? 16 : 14;
  template <int kRows>
  static void run(const MicroArgs& args) {
    run_bf16<kRows, kVectors, 1>(args);
  }
};

template <class K>
FATHOM_INLINE void run_rows(MicroArgs args, int64_t rows) {
  const std::byte* a = args.a;
  float* c = args.c;
  for_row_blocks<K>(rows, [&](int64_t done, int64_t count) {
    args.a = a + done * args.a_stride;
    args.c = c + done * args.c_stride;
    // The next block's rows: they may come from memory, and no hardware prefetcher follows so many streams.
    args.ahead = done + count < rows ? args.a + count * args.a_stride : a;
    kMicroKernels<K>[count - 1](args);
  });
}

// sums[h, d] = sums · fade[h] + Σ_t p[t, h] · latent[t, d] for a block of heads and 32 columns d of one tile.
// Two tokens' rows are interleaved into pairs as they are read.
struct WeighArgs {
  const uint32_t* p;  // pairs of tokens: [(count + 1) / 2][p_stride], one lane per head
  int64_t p_stride;
  const std::byte* latent;  // row 0 of the tile at column d
  int64_t latent_stride;    // bytes
  int64_t count;            // tokens
  __mmask32 columns;
  float* c;
  int64_t c_stride;
  bool first;             // the sums start at zero
  const float* fade;      // null: the sums stay as they are
  const std::byte* next;  // what to bring into the cache meanwhile: 64 bytes per pair of tokens
};

struct WeighKernel {
  using Args = WeighArgs;
  static constexpr int kMaxRows = 12;

  template <int kRows>
  static void run(const WeighArgs& args) {
    const __m512i order0 = pair_order(0), order1 = pair_order(16);
    __m512 acc[kRows][2];
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      FATHOM_UNROLL
      for (int v = 0; v < 2; ++v) {
        acc[r][v] = args.first ? _mm512_setzero_ps() : _mm512_loadu_ps(args.c + r * args.c_stride + v * 16);
        if (args.fade != nullptr) acc[r][v] = _mm512_mul_ps(acc[r][v], _mm512_set1_ps(args.fade[r]));
      }
    }
    const std::byte* row = args.latent;
    const uint32_t* p = args.p;
    for (int64_t t = 0; t < args.count; t += 2) {
      // An odd last token is paired with itself: its partner's probability is 0.
      const std::byte* second = t + 1 < args.count ? row + args.latent_stride : row;
      const __m512i even = _mm512_maskz_loadu_epi16(args.columns, row);
      const __m512i odd = _mm512_maskz_loadu_epi16(args.columns, second);
      const auto w0 = (__m512bh)_mm512_permutex2var_epi16(even, order0, odd);
      const auto w1 = (__m512bh)_mm512_permutex2var_epi16(even, order1, odd);
      _mm_prefetch(reinterpret_cast<const char*>(args.next) + t * 32, _MM_HINT_T1);
      FATHOM_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const auto pair = (__m512bh)_mm512_set1_epi32(static_cast<int>(p[r]));
        acc[r][0] = _mm512_dpbf16_ps(acc[r][0], w0, pair);
        acc[r][1] = _mm512_dpbf16_ps(acc[r][1], w1, pair);
      }
      row += 2 * args.latent_stride;
      p += args.p_stride;
    }
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      _mm512_storeu_ps(args.c + r * args.c_stride, acc[r][0]);
      _mm512_storeu_ps(args.c + r * args.c_stride + 16, acc[r][1]);
    }
  }
};

// One query token's heads in absorbed form.
struct Absorbed {
  const LatentBlocks& kv;
  const AbsorbedQuery& query;
  int64_t dim, pairs, heads, latent, row_bytes;
  uint32_t* q;          // [pairs][32 heads] panels; a last panel of 16 heads or less is [pairs][16]
  float* scores;        // [64][heads]
  uint32_t* p;          // [32][heads] pairs of tokens
  float* sums;          // [num_heads][latent]
  std::byte* odd_rows;  // the tile's rows padded to whole pairs, when dim is odd
  Bf16* rows_bf16;      // 16 heads' queries as rows
  SoftmaxState state;

  Absorbed(const LatentBlocks& kv, const AbsorbedQuery& query, std::byte* memory) : kv(kv), query(query) {
    dim = kv.latent_dim + kv.rope_dim;
    pairs = (dim + 1) / 2;
    heads = round_up(query.num_heads, 32);
    latent = round_up(kv.latent_dim, 32);
    row_bytes = kv.row_stride * 2;
    ScratchMemory scratch{memory};
    q = scratch.take<uint32_t>(pairs * heads);
    scores = scratch.take<float>(kAttentionTile * heads);
    p = scratch.take<uint32_t>(kAttentionTile / 2 * heads);
    sums = scratch.take<float>(query.num_heads * latent);
    odd_rows = scratch.take<std::byte>(kAttentionTile * pairs * 4);
    rows_bf16 = scratch.take<Bf16>(16 * round_up(pairs, 16) * 2);
    state = scratch.take_state(heads);
    for (int64_t h = 0; h < heads; ++h) state.highest[h] = kHiddenScore;
    pack_query();
  }

  static FATHOM_INLINE int64_t panel_width(int64_t heads_left) { return heads_left > 16 ? 32 : 16; }

  // A head's [latent | rope] as BF16, then 16 heads at a time turned from rows into lanes.
  void pack_query() {
    const int64_t row_pairs = round_up(pairs, 16);
    uint32_t* panel = q;
    for (int64_t first = 0; first < query.num_heads; first += 32) {
      const int64_t width = panel_width(query.num_heads - first);
      for (int64_t half = 0; half < width; half += 16) {
        for (int64_t h = 0; h < 16; ++h)
          round_head(first + half + h, rows_bf16 + h * row_pairs * 2, row_pairs * 2);
        for (int64_t i = 0; i < pairs; i += 16) {
          __m512i x[16];
          FATHOM_UNROLL
          for (int h = 0; h < 16; ++h) x[h] = _mm512_load_si512(rows_bf16 + (h * row_pairs + i) * 2);
          transpose(x);
          for (int64_t j = 0; j < smaller(16, pairs - i); ++j) {
            _mm512_store_si512(panel + (i + j) * width + half, x[j]);
          }
        }
      }
      panel += pairs * width;
    }
  }

  void round_head(int64_t h, Bf16* row, int64_t elements) const {
    const int64_t used = h < query.num_heads ? dim : 0;
    __builtin_memset(static_cast<void*>(row + used), 0, static_cast<size_t>(elements - used) * 2);
    if (used == 0) return;
    round_elements(query.latent + h * query.latent_stride, kv.latent_dim, row);
    round_elements(query.rope + h * query.rope_stride, kv.rope_dim, row + kv.latent_dim);
  }

  static FATHOM_INLINE void round_elements(const float* x, int64_t n, Bf16* out) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) Avx512Bf16::store_bf16(out + i, Avx512::load(x + i));
    if (i == n) return;
    Bf16 rest[16];
    Avx512Bf16::store_bf16(rest, Avx512::load_part(x + i, n - i));
    __builtin_memcpy(static_cast<void*>(out + i), rest, static_cast<size_t>(n - i) * 2);
  }

  void score_tile(const std::byte* rows, int64_t count) {
    MicroArgs args{};
    args.a = rows;
    args.a_stride = row_bytes;
    if (dim % 2 == 1) {
      for (int64_t t = 0; t < count; ++t) {
        __builtin_memcpy(odd_rows + t * pairs * 4, rows + t * row_bytes, static_cast<size_t>(dim) * 2);
        __builtin_memset(odd_rows + t * pairs * 4 + dim * 2, 0, 2);
      }
      args.a = odd_rows;
      args.a_stride = pairs * 4;
    }
    args.w = reinterpret_cast<const std::byte*>(q);
    args.k_count = pairs * 2;
    args.c_stride = heads;
    args.first = true;
    for (int64_t first = 0; first < query.num_heads; first += 32) {
      args.c = scores + first;
      if (panel_width(query.num_heads - first) == 32) {
        run_rows<ScoreKernel<2>>(args, count);
        args.w += pairs * 128;
      } else {
        run_rows<ScoreKernel<1>>(args, count);
      }
    }
  }

  // Scores to pairs of probabilities. Whether any head's maximum rose.
  bool softmax_tile(int64_t count) {
    bool rose = false;
    for (int64_t h = 0; h < query.num_heads; h += 16) {
      const ScoreTile tile{scores + h, heads, count, 0, query.scale * kLog2E, p + h, heads};
      softmax_pairs<false>(tile, state.highest + h, state.sum + h, state.fade + h);
      rose |= _mm512_cmp_ps_mask(_mm512_loadu_ps(state.fade + h), _mm512_set1_ps(1.0f), _CMP_NEQ_UQ) != 0;
    }
    return rose;
  }

  void weigh_tile(const std::byte* rows, int64_t count, bool first, bool rose, const std::byte* next) {
    const std::byte* next_end = next + kAttentionTile * row_bytes;
    WeighArgs args{};
    args.p_stride = heads;
    args.latent_stride = row_bytes;
    args.count = count;
    args.c_stride = latent;
    args.first = first;
    args.next = next;
    for (int64_t d = 0; d < kv.latent_dim; d += 32) {
      const int64_t columns = smaller(32, kv.latent_dim - d);
      args.columns = static_cast<__mmask32>(~0u >> (32 - columns));
      args.latent = rows + d * 2;
      for_row_blocks<WeighKernel>(query.num_heads, [&](int64_t done, int64_t rows_now) {
        args.p = p + done;
        args.c = sums + done * latent + d;
        args.fade = rose && !first ? state.fade + done : nullptr;
        kMicroKernels<WeighKernel>[rows_now - 1](args);
        // All of the next tile's rows once, then lines that are there already.
        args.next = args.next + kAttentionTile * 32 < next_end ? args.next + kAttentionTile * 32 : rows;
      });
    }
  }

  // What to bring into the cache beside the tile at `begin`: the next one, or, where that is short or
  // missing, what the next query begins with.
  const std::byte* next_rows(int64_t begin) const {
    const int64_t next = begin + kAttentionTile;
    if (query.visible - next >= kAttentionTile / 2) return latent_row(kv, next);
    return query.next != nullptr ? static_cast<const std::byte*>(query.next) : latent_row(kv, begin);
  }

  void run() {
    for (int64_t begin = 0; begin < query.visible; begin += kAttentionTile) {
      const int64_t count = smaller(kAttentionTile, query.visible - begin);
      const std::byte* rows = latent_row(kv, begin);
      score_tile(rows, count);
      const bool rose = softmax_tile(count);
      weigh_tile(rows, count, begin == 0, rose, next_rows(begin));
    }
    for (int64_t h = 0; h < query.num_heads; ++h) write_head(sums + h * latent, 1.0f / state.sum[h], h);
  }

  void write_head(const float* sum, float normalise, int64_t h) {
    const __m512 factor = _mm512_set1_ps(normalise);
    float* out = query.out + h * query.out_stride;
    for (int64_t d = 0; d < kv.latent_dim; d += 16) {
      const int64_t n = smaller(16, kv.latent_dim - d);
      Avx512::store_part(out + d, n, _mm512_mul_ps(_mm512_load_ps(sum + d), factor));
    }
  }
};

void absorbed_bf16(const LatentBlocks& kv, const AbsorbedQuery& query, std::byte* memory) {
  if (kv.dtype == DType::kF32) return own_kernel_table(Isa::kAvx512).mla_absorbed(kv, query, memory);
  Absorbed(kv, query, memory).run();
}

}  // namespace

void add_bf16_attention(KernelTable& table) { table.mla_absorbed = absorbed_bf16; }

}  // namespace fathom
