// The parts of latent attention that run head by head or row by row over the thread team.
#include "model/mla_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/prefetch.h"
#include "kernels/quantize.h"
#include "model/expanded_prompt.h"

namespace fathom {
namespace {

// Of the next head's weights: as far ahead as a product asks for its own.
constexpr int64_t kHeadBytesAhead = 8192;
// Rows of one head that a tile of the absorbed form's small products takes.
constexpr int64_t kHeadTileRows = 64;

// What MLA's core computes with: the storage's own type.
ActFormat core_format(DType kv_dtype) { return kv_dtype == DType::kF32 ? ActFormat::kF32 : ActFormat::kBf16; }

// Hands out pieces of a tile's scratch.
class Scratch {
 public:
  explicit Scratch(std::byte* memory) : next_(memory) {}
  std::byte* take(int64_t bytes) {
    return std::exchange(next_, next_ + align_up(bytes, kBufferAlignmentBytes));
  }

 private:
  std::byte* next_;
};

// `x` in the core's format; F32 rows are used where they are.
Activations core_rows(MatrixView<const float> x, ActFormat format, Scratch& scratch) {
  if (format == ActFormat::kF32) return f32_activations(x);
  const Activations rows =
      make_activations(format, x.rows, x.cols, scratch.take(act_bytes(format, x.rows, x.cols)));
  quantize_rows(x, rows);
  return rows;
}

// Rows of a head's queries that are asked for before they are used.
constexpr int64_t kRowsAhead = 8;

// Columns of head `head` in rows [begin, end) of per-head activations.
MatrixView<float> head_columns(FloatRows& rows, int64_t num_rows, int64_t begin, int64_t end, int64_t head,
                               int64_t head_dim) {
  return rows.rows(num_rows).row_range(begin, end).col_range(head * head_dim, (head + 1) * head_dim);
}

// fn(head, begin, end, scratch) over all heads and row ranges.
template <typename Fn>
void for_head_tiles(const MlaContext& c, Fn&& fn) {
  const int64_t num_row_tiles = ceil_div(c.batch.num_rows(), kHeadTileRows);
  c.stream.for_tiles(c.shape.heads * num_row_tiles, [&](int64_t tile, std::byte* scratch) {
    const int64_t begin = tile % num_row_tiles * kHeadTileRows;
    fn(tile / num_row_tiles, begin, std::min(begin + kHeadTileRows, c.batch.num_rows()), Scratch(scratch));
  });
}

void store_kv_row(const MlaContext& c, const AttentionWeights& w, int64_t row, float* normed) {
  const MlaShape& s = c.shape;
  float* const c_kv = c.a.c_kv.row(row);
  rms_norm({c_kv, 1, s.latent}, w.kv_a_layernorm, s.latent_norm_eps, {normed, 1, s.latent});
  rope_interleaved({c_kv + s.latent, 1, s.rope}, c.a.cos_sin.row(row));
  const DType dtype = c.batch.kv_dtype();
  std::byte* const stored = c.batch.kv_row(row);
  from_f32(normed, s.latent, dtype, stored);
  from_f32(c_kv + s.latent, s.rope, dtype, stored + dtype_bytes(dtype, s.latent));
}

}  // namespace

void fill_cos_sin(std::span<const double> inv_freq, double attention_factor, int64_t position,
                  float* cos_sin) {
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    // The angle is rounded to F32 as in the code these models were trained with; cos and sin of it are exact.
    const double angle = static_cast<float>(position) * static_cast<float>(inv_freq[i]);
    cos_sin[2 * i] = static_cast<float>(std::cos(angle) * attention_factor);
    cos_sin[2 * i + 1] = static_cast<float>(std::sin(angle) * attention_factor);
  }
}

void norm_query_and_store_kv_level(const MlaContext& c, const AttentionWeights& w) {
  c.stream.for_rows(c.batch.num_rows(), [&](int64_t begin, int64_t end, std::byte* scratch) {
    auto* const normed = reinterpret_cast<float*>(scratch);
    for (int64_t row = begin; row < end; ++row) {
      if (w.q_a_proj.n > 0) {
        const int64_t q_lora = w.q_b_proj.k;
        rms_norm({c.a.c_q.row(row), 1, q_lora}, w.q_a_layernorm, c.shape.latent_norm_eps,
                 {normed, 1, q_lora});
        quantize_rows({normed, 1, q_lora}, act_row_range(c.a.c_q_normed.rows(end), row, row + 1));
      }
      store_kv_row(c, w, row, normed);
    }
  });
}

namespace {

// Rows [begin, end) of one head's query, its rotary part turned and the rest brought into the latent's space.
void absorb_head(const MlaContext& c, const AttentionWeights& w, int64_t head, int64_t begin, int64_t end,
                 Scratch scratch) {
  const MlaShape& s = c.shape;
  const int64_t t = c.batch.num_rows();
  const MatrixView<float> q = head_columns(c.a.q, t, begin, end, head, s.qk());
  for (int64_t row = begin; row < end; ++row) {
    rope_interleaved({q.row(row - begin) + s.nope, 1, s.rope}, c.a.cos_sin.row(row));
  }
  const Activations q_nope = core_rows(q.col_range(0, s.nope), core_format(c.batch.kv_dtype()), scratch);
  linear(q_nope, w.w_uk_t[head], head_columns(c.a.q_latent, t, begin, end, head, s.latent));
}

const void* first_block(const MlaContext& c, int64_t row) {
  return c.batch.latent_blocks(c.batch.sequence_of(row)).block[0];
}

// Heads [head, head + num_heads) of one row over its sequence's latent, bringing `next` into the cache.
void attend_heads(const MlaContext& c, int64_t row, int64_t head, int64_t num_heads, const void* next,
                  std::byte* scratch) {
  const MlaShape& s = c.shape;
  const LatentBlocks kv = c.batch.latent_blocks(c.batch.sequence_of(row));
  const AbsorbedQuery query{.latent = c.a.q_latent.row(row) + head * s.latent,
                            .latent_stride = s.latent,
                            .rope = c.a.q.row(row) + head * s.qk() + s.nope,
                            .rope_stride = s.qk(),
                            .num_heads = num_heads,
                            .visible = c.batch.position(row) + 1,
                            .scale = s.softmax_scale,
                            .out = c.a.o_latent.row(row) + head * s.latent,
                            .out_stride = s.latent,
                            .next = next};
  mla_absorbed(kv, query, scratch);
}

void expand_head(const MlaContext& c, const AttentionWeights& w, int64_t head, int64_t begin, int64_t end,
                 Scratch scratch) {
  const MlaShape& s = c.shape;
  const int64_t t = c.batch.num_rows();
  const Activations o_latent = core_rows(head_columns(c.a.o_latent, t, begin, end, head, s.latent),
                                         core_format(c.batch.kv_dtype()), scratch);
  linear(o_latent, w.w_uv[head], head_columns(c.a.o, t, begin, end, head, s.v));
}

// The only row's heads [first, last) through all three parts. Each product asks for the beginning of what
// comes next, which lies elsewhere: memory would idle at every joint.
void attend_at_once(const MlaContext& c, const AttentionWeights& w, int64_t first, int64_t last,
                    std::byte* scratch) {
  const LatentBlocks kv = c.batch.latent_blocks(c.batch.sequence_of(0));
  const int64_t num_keys = std::min(kAttentionTile, c.batch.position(0) + 1);
  const int64_t key_bytes = dtype_bytes(kv.dtype, kv.row_stride);
  const auto ask_for = [](const PackedWeight& weight) {
    prefetch_to_l2(weight.data, std::min(weight.bytes(), kHeadBytesAhead));
  };
  for (int64_t head = first; head < last; ++head) {
    if (head + 1 < last) ask_for(w.w_uk_t[head + 1]);
    const int64_t asked = num_keys * (head - first) / (last - first);
    const int64_t to_ask = num_keys * (head - first + 1) / (last - first) - asked;
    prefetch_to_l2(static_cast<const std::byte*>(kv.block[0]) + asked * key_bytes, to_ask * key_bytes);
    absorb_head(c, w, head, 0, 1, Scratch(scratch));
  }
  attend_heads(c, 0, first, last - first, w.w_uv[first].data, scratch);
  for (int64_t head = first; head < last; ++head) {
    if (head + 1 < last) ask_for(w.w_uv[head + 1]);
    expand_head(c, w, head, 0, 1, Scratch(scratch));
  }
}

}  // namespace

void attend_absorbed_levels(const MlaContext& c, const AttentionWeights& w) {
  const MlaShape& s = c.shape;
  const int64_t t = c.batch.num_rows();
  // All heads of a token together read the latent once; fewer tokens than threads are split by heads. Not
  // further: scores cost the same for one head as for a vector of 16.
  const int64_t splits = std::min(s.heads, ceil_div(c.stream.num_threads(), std::max<int64_t>(t, 1)));
  const int64_t heads_per_tile = ceil_div(s.heads, splits);
  const int64_t num_splits = ceil_div(s.heads, heads_per_tile);
  // One token has no weights to share with others: its heads go through all three parts at once.
  const bool at_once = t == 1;
  if (!at_once) {
    for_head_tiles(c, [&](int64_t head, int64_t begin, int64_t end, Scratch scratch) {
      absorb_head(c, w, head, begin, end, scratch);
    });
  }
  c.stream.for_tiles(t * num_splits, [&](int64_t tile, std::byte* scratch) {
    const int64_t row = tile / num_splits;
    const int64_t first = tile % num_splits * heads_per_tile;
    const int64_t last = std::min(first + heads_per_tile, s.heads);
    if (at_once) return attend_at_once(c, w, first, last, scratch);
    attend_heads(c, row, first, last - first, row + 1 < t ? first_block(c, row + 1) : nullptr, scratch);
  });
  if (!at_once) {
    for_head_tiles(c, [&](int64_t head, int64_t begin, int64_t end, Scratch scratch) {
      expand_head(c, w, head, begin, end, scratch);
    });
  }
}

namespace {

void prefetch_rows(const Activations& x) {
  for (int64_t row = 0; row < x.rows; ++row) prefetch_row(x.row(row), x.k * act_element_bytes(x.format));
}

// Latents of up to a block of tokens from `first` on.
Activations latent_rows(const LatentBlocks& kv, int64_t first, int64_t context) {
  return {.format = core_format(kv.dtype),
          .rows = std::min(kAttentionTile, context - first),
          .k = kv.latent_dim,
          .data = const_cast<void*>(kv.block[first / kAttentionTile]),
          .row_stride_bytes = dtype_bytes(kv.dtype, kv.row_stride)};
}

// One head's keys and values, [context, dim] each in the storage's type: those that an earlier step has kept,
// then W · latent, a block of tokens at a time for both, while its latents are in the cache.
struct ExpandedHead {
  std::byte* k;
  std::byte* v;
};
ExpandedHead expand_from_latent(const LatentBlocks& kv, int64_t context, const PackedWeight& w_uk,
                                const PackedWeight& w_uv, const ExpandedPrompt::HeadPart& kept,
                                Scratch& scratch) {
  const ExpandedHead out{.k = scratch.take(dtype_bytes(kv.dtype, context * w_uk.n)),
                         .v = scratch.take(dtype_bytes(kv.dtype, context * w_uv.n))};
  const int64_t num_kept = std::min(kept.num_kept, context);
  const auto copy_tokens = [&](const std::byte* from, const PackedWeight& w, int64_t first, int64_t last,
                               std::byte* to) {
    const int64_t at = dtype_bytes(kv.dtype, first * w.n), end = dtype_bytes(kv.dtype, last * w.n);
    if (first < last) std::memcpy(to + at, from + at, static_cast<size_t>(end - at));
  };
  copy_tokens(kept.k, w_uk, 0, num_kept, out.k);
  copy_tokens(kept.v, w_uv, 0, num_kept, out.v);
  for (int64_t first = num_kept; first < context; first += kAttentionTile) {
    const Activations latent = latent_rows(kv, first, context);
    if (first + kAttentionTile < context) prefetch_rows(latent_rows(kv, first + kAttentionTile, context));
    const auto expand = [&](const PackedWeight& w, std::byte* to) {
      linear(latent, w, {kv.dtype, to + dtype_bytes(kv.dtype, first * w.n), latent.rows, w.n, w.n});
    };
    expand(w_uk, out.k);
    expand(w_uv, out.v);
  }
  copy_tokens(out.k, w_uk, num_kept, std::min(context, kept.capacity), kept.k);
  copy_tokens(out.v, w_uv, num_kept, std::min(context, kept.capacity), kept.v);
  return out;
}

void attend_one_head(const MlaContext& c, const AttentionWeights& w, const TokenSequence& sequence,
                     int64_t head, Scratch scratch) {
  const MlaShape& s = c.shape;
  const LatentBlocks kv = c.batch.latent_blocks(sequence);
  const ExpandedHead expanded = expand_from_latent(kv, sequence.context(), w.w_uk[head], w.w_uv[head],
                                                   c.expanded.part(sequence, c.layer, head), scratch);
  const PerHeadKeys keys{.nope = expanded.k,
                         .nope_stride = s.nope,
                         .nope_dim = s.nope,
                         .v = expanded.v,
                         .v_stride = s.v,
                         .v_dim = s.v};
  const int64_t begin = sequence.first_row, end = begin + sequence.num_rows;
  const MatrixView<float> q = head_columns(c.a.q, c.batch.num_rows(), begin, end, head, s.qk());
  for (int64_t row = begin; row < end; ++row) {
    if (row + kRowsAhead < end) prefetch_row(q.row(row + kRowsAhead - begin), s.qk() * sizeof(float));
    rope_interleaved({q.row(row - begin) + s.nope, 1, s.rope}, c.a.cos_sin.row(row));
  }
  const MatrixView<float> o = head_columns(c.a.o, c.batch.num_rows(), begin, end, head, s.v);
  const PerHeadQuery query{.q = q.data,
                           .q_stride = q.stride,
                           .rows = sequence.num_rows,
                           .start = sequence.start,
                           .scale = s.softmax_scale,
                           .out = o.data,
                           .out_stride = o.stride};
  mla_per_head(kv, keys, query, scratch.take(mla_per_head_scratch_bytes(s.nope, s.rope, s.v)));
}

}  // namespace

void attend_per_head_level(const MlaContext& c, const AttentionWeights& w) {
  const auto num_sequences = static_cast<int64_t>(c.batch.sequences().size());
  c.stream.for_tiles(num_sequences * c.shape.heads, [&](int64_t tile, std::byte* scratch) {
    attend_one_head(c, w, c.batch.sequences()[tile / c.shape.heads], tile % c.shape.heads, Scratch(scratch));
  });
}

int64_t mla_scratch_bytes(const MlaShape& s, DType kv_dtype, AttentionForm form, int64_t max_context) {
  if (form == AttentionForm::kAbsorbed) {
    const ActFormat format = core_format(kv_dtype);
    return std::max({mla_absorbed_scratch_bytes(s.heads, s.latent, s.rope),
                     act_bytes(format, kHeadTileRows, s.latent), act_bytes(format, kHeadTileRows, s.nope)});
  }
  const auto aligned = [](int64_t bytes) {
    return static_cast<int64_t>(align_up(bytes, kBufferAlignmentBytes));
  };
  return aligned(dtype_bytes(kv_dtype, max_context * s.nope)) +
         aligned(dtype_bytes(kv_dtype, max_context * s.v)) + mla_per_head_scratch_bytes(s.nope, s.rope, s.v);
}

}  // namespace fathom
