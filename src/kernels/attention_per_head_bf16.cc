// Per-head attention over BF16 keys and values with vdpbf16ps, turned so that query tokens are lanes: scores
// come out as [keys][32 queries], and their probabilities are at once the panel that the values, as
// [columns][keys], are multiplied with. Queries are packed once, keys are read as rows, and only values are
// turned, once per tile of keys.
#include "kernels/attention_softmax_bf16.h"
#include "kernels/dispatch_tables.h"
#include "kernels/micro_bf16.h"
#include "kernels/transpose_avx512.h"

namespace fathom {
namespace {

constexpr int64_t kPanelQueries = 32;
static_assert(kPerHeadGroupRows % kPanelQueries == 0);

// scores[key, query] = Σ keys[key, ·] · queries[·, query].
struct ScoreKernel {
  using Args = MicroArgs;
  static constexpr int kMaxRows = 14;
  template <int kRows>
  static void run(const MicroArgs& args) {
    run_bf16<kRows, 2, 0>(args);
  }
};

// sums[column, query] = sums · fade + Σ values[column, key] · p[key, query].
struct WeighArgs : MicroArgs {
  const float* fade;  // [32]
};
struct WeighKernel {
  using Args = WeighArgs;
  static constexpr int kMaxRows = 14;
  template <int kRows>
  static void run(const WeighArgs& args) {
    const __m512 fade[2] = {_mm512_load_ps(args.fade), _mm512_load_ps(args.fade + 16)};
    __m512 acc[kRows][2];
    FATHOM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      FATHOM_UNROLL
      for (int v = 0; v < 2; ++v) {
        const float* c = args.c + r * kPanelQueries + v * 16;
        acc[r][v] = args.first ? _mm512_setzero_ps() : _mm512_mul_ps(_mm512_load_ps(c), fade[v]);
      }
    }
    add_products<kRows, 2, 0>(args, acc);
    store_sums<kRows, 2>(args, acc);
  }
};

template <class K>
FATHOM_INLINE void multiply(typename K::Args args, int64_t rows) {
  const std::byte* a = args.a;
  float* c = args.c;
  for_row_blocks<K>(rows, [&](int64_t done, int64_t count) {
    args.a = a + done * args.a_stride;
    args.c = c + done * args.c_stride;
    kMicroKernels<K>[count - 1](args);
  });
}

// n elements, with nothing written beyond them.
FATHOM_INLINE void copy_row(const Bf16* from, int64_t n, Bf16* to) {
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) _mm512_storeu_si512(to + i, _mm512_loadu_si512(from + i));
  if (i < n) __builtin_memcpy(static_cast<void*>(to + i), from + i, static_cast<size_t>(n - i) * 2);
}

// Up to kPerHeadGroupRows query rows over all the keys they see.
struct PerHead {
  const LatentBlocks& kv;
  const PerHeadKeys& keys;
  const PerHeadQuery& query;
  int64_t width, dim;     // of a key; padded to pairs
  int64_t value_columns;  // padded to 32
  std::byte* queries;     // [panels of 32 queries][dim / 2][32]
  Bf16* key_rows;         // [64][dim]: nope | rope
  Bf16* value_rows;       // [value_columns][64 keys]
  float* scores;          // [64 keys][32 queries]
  uint32_t* p;            // [32 pairs of keys][32 queries]
  float* sums;            // [panels][value_columns][32 queries]
  float* fade;            // [32]
  SoftmaxState state;     // of queries

  PerHead(const LatentBlocks& kv, const PerHeadKeys& keys, const PerHeadQuery& query, std::byte* memory)
      : kv(kv), keys(keys), query(query) {
    width = keys.nope_dim + kv.rope_dim;
    dim = round_up(width, 2);
    value_columns = round_up(keys.v_dim, 32);
    const int64_t rows = round_up(query.rows, kPanelQueries);
    ScratchMemory scratch{memory};
    queries = scratch.take<std::byte>(rows * dim * 2);
    key_rows = scratch.take<Bf16>(kAttentionTile * dim);
    value_rows = scratch.take<Bf16>(value_columns * kAttentionTile);
    scores = scratch.take<float>(kAttentionTile * kPanelQueries);
    p = scratch.take<uint32_t>(kAttentionTile / 2 * kPanelQueries);
    sums = scratch.take<float>(rows * value_columns);
    fade = scratch.take<float>(kPanelQueries);
    state = scratch.take_state(rows);
    for (int64_t r = 0; r < rows; ++r) state.highest[r] = kHiddenScore;
    // The padding behind an odd width must be a number.
    for (int64_t t = 0; t < kAttentionTile && dim > width; ++t) key_rows[t * dim + width] = Bf16{};
    for (int64_t row = 0; row < rows; row += 16) pack_queries(row);
  }

  // 16 queries: rows of pairs, turned into lanes. Rows that do not exist are zero.
  void pack_queries(int64_t row) {
    std::byte* panel = queries + row / kPanelQueries * dim * kPanelQueries * 2 + row % kPanelQueries * 4;
    for (int64_t i = 0; i < dim; i += 32) {
      const int64_t low = smaller(16, width - i), high = smaller(16, width - i - low);
      __m512i x[16];
      FATHOM_UNROLL
      for (int r = 0; r < 16; ++r) {
        const bool exists = row + r < query.rows;
        const float* q = query.q + (exists ? row + r : 0) * query.q_stride + i;
        const __m512 first = Avx512::load_part(q, exists ? low : 0);
        const __m512 second = Avx512::load_part(q + low, exists ? high : 0);
        x[r] = (__m512i)_mm512_cvtne2ps_pbh(second, first);
      }
      transpose(x);
      const int64_t pairs = smaller(16, (dim - i) / 2);
      for (int64_t pair = 0; pair < pairs; ++pair) _mm512_store_si512(panel + (i / 2 + pair) * 128, x[pair]);
    }
  }

  void load_keys(int64_t begin, int64_t count) {
    const auto* nope = static_cast<const Bf16*>(keys.nope) + begin * keys.nope_stride;
    const auto* rope = reinterpret_cast<const Bf16*>(latent_row(kv, begin)) + kv.latent_dim;
    for (int64_t t = 0; t < count; ++t) {
      copy_row(nope + t * keys.nope_stride, keys.nope_dim, key_rows + t * dim);
      copy_row(rope + t * kv.row_stride, kv.rope_dim, key_rows + t * dim + keys.nope_dim);
    }
  }

  // Keys past `count` become zero.
  void load_values(int64_t begin, int64_t count) {
    const auto* rows = static_cast<const Bf16*>(keys.v) + begin * keys.v_stride;
    for (int64_t column = 0; column < keys.v_dim; column += 16) {
      const auto columns = static_cast<__mmask32>(~0u >> (32 - smaller(16, keys.v_dim - column)));
      for (int64_t first = 0; first < count; first += 32) {
        const auto row = [&](int64_t t) {
          if (t >= count) return _mm512_setzero_si512();
          return _mm512_maskz_loadu_epi16(columns, rows + t * keys.v_stride + column);
        };
        __m512i x[16];
        FATHOM_UNROLL
        for (int pair = 0; pair < 16; ++pair) {
          const int64_t t = first + 2 * pair;
          x[pair] = _mm512_permutex2var_epi16(row(t), pair_order(0), row(t + 1));
        }
        transpose(x);
        Bf16* out = value_rows + column * kAttentionTile + first;
        FATHOM_UNROLL
        for (int c = 0; c < 16; ++c) _mm512_store_si512(out + c * kAttentionTile, x[c]);
      }
    }
  }

  // A panel of queries against the loaded tile of `count` keys from `begin` on.
  void attend(int64_t panel, int64_t begin, int64_t count) {
    const int64_t own = query.start + panel * kPanelQueries - begin;  // the first query's, among the keys
    const int64_t seen = smaller(count, own + kPanelQueries);         // by the last query
    MicroArgs product{};
    product.a = reinterpret_cast<const std::byte*>(key_rows);
    product.a_stride = dim * 2;
    product.w = queries + panel * dim * kPanelQueries * 2;
    product.k_count = dim;
    product.c = scores;
    product.c_stride = kPanelQueries;
    product.first = true;
    multiply<ScoreKernel>(product, seen);

    const float factor = query.scale * kLog2E;
    for (int64_t lane = 0; lane < kPanelQueries; lane += 16) {
      const ScoreTile tile{scores + lane, kPanelQueries, seen, own + lane, factor, p + lane, kPanelQueries};
      const int64_t row = panel * kPanelQueries + lane;
      if (seen > own + lane + 1) {
        softmax_pairs<true>(tile, state.highest + row, state.sum + row, fade + lane);
      } else {
        softmax_pairs<false>(tile, state.highest + row, state.sum + row, fade + lane);
      }
    }

    WeighArgs weigh{};
    weigh.a = reinterpret_cast<const std::byte*>(value_rows);
    weigh.a_stride = kAttentionTile * 2;
    weigh.w = reinterpret_cast<const std::byte*>(p);
    weigh.k_count = seen;
    weigh.c = sums + panel * value_columns * kPanelQueries;
    weigh.c_stride = kPanelQueries;
    weigh.first = begin == 0;
    weigh.fade = fade;
    multiply<WeighKernel>(weigh, keys.v_dim);
  }

  // 16 queries' sums, turned into rows and normalised.
  void write_rows(int64_t row) {
    const __m512 normalise = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_load_ps(state.sum + row));
    const float* from = sums + row / kPanelQueries * value_columns * kPanelQueries + row % kPanelQueries;
    const int64_t rows = smaller(16, query.rows - row);
    for (int64_t column = 0; column < keys.v_dim; column += 16) {
      const int64_t columns = smaller(16, keys.v_dim - column);
      __m512i x[16];
      FATHOM_UNROLL
      for (int c = 0; c < 16; ++c) {
        const __m512 sum = _mm512_load_ps(from + (column + (c < columns ? c : 0)) * kPanelQueries);
        x[c] = _mm512_castps_si512(_mm512_mul_ps(sum, normalise));
      }
      transpose(x);
      for (int64_t r = 0; r < rows; ++r) {
        float* out = query.out + (row + r) * query.out_stride + column;
        Avx512::store_part(out, columns, _mm512_castsi512_ps(x[r]));
      }
    }
  }

  void run() {
    const int64_t context = query.start + query.rows;
    for (int64_t begin = 0; begin < context; begin += kAttentionTile) {
      const int64_t count = smaller(kAttentionTile, context - begin);
      load_keys(begin, count);
      load_values(begin, count);
      // Panels before the first that sees this tile are done.
      const int64_t first = begin > query.start ? (begin - query.start) / kPanelQueries : 0;
      for (int64_t panel = first; panel * kPanelQueries < query.rows; ++panel) attend(panel, begin, count);
    }
    for (int64_t row = 0; row < query.rows; row += 16) write_rows(row);
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
