// The reference attention: one query row at a time, one key after the other.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/dispatch_tables.h"

namespace fathom {
namespace {

float load(DType dtype, const void* row, int64_t i) {
  return dtype == DType::kF32 ? static_cast<const float*>(row)[i]
                              : bf16_to_f32(static_cast<const Bf16*>(row)[i]);
}

float rounded(DType dtype, float x) { return dtype == DType::kF32 ? x : bf16_to_f32(f32_to_bf16(x)); }

const void* latent_row(const LatentBlocks& kv, int64_t token) {
  const int64_t offset = token % kAttentionTile * kv.row_stride * dtype_bytes(kv.dtype);
  return static_cast<const std::byte*>(kv.block[token / kAttentionTile]) + offset;
}

double dot(DType dtype, const float* q, const void* row, int64_t offset, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += static_cast<double>(rounded(dtype, q[i])) * load(dtype, row, offset + i);
  return sum;
}

// Online softmax over tiles of 64 keys: score(t) of key t, value(t, i) of its element i.
template <typename Score, typename Value>
void attend(DType dtype, int64_t visible, int64_t dim, float* out, Score score, Value value) {
  float highest = -std::numeric_limits<float>::infinity();
  double denominator = 0;
  std::fill(out, out + dim, 0.0f);
  for (int64_t begin = 0; begin < visible; begin += kAttentionTile) {
    const int64_t count = std::min(kAttentionTile, visible - begin);
    float p[kAttentionTile];
    float new_highest = highest;
    for (int64_t t = 0; t < count; ++t) {
      p[t] = score(begin + t);
      new_highest = std::max(new_highest, p[t]);
    }
    const float fade = std::exp(highest - new_highest);
    highest = new_highest;
    denominator *= fade;
    for (int64_t t = 0; t < count; ++t) {
      p[t] = rounded(dtype, std::exp(p[t] - highest));
      denominator += p[t];
    }
    for (int64_t i = 0; i < dim; ++i) {
      double sum = 0;
      for (int64_t t = 0; t < count; ++t) sum += static_cast<double>(p[t]) * value(begin + t, i);
      out[i] = static_cast<float>(out[i] * static_cast<double>(fade) + sum);
    }
  }
  for (int64_t i = 0; i < dim; ++i) out[i] = static_cast<float>(out[i] / denominator);
}

void mla_absorbed_ref(const LatentBlocks& kv, const AbsorbedQuery& query, std::byte*) {
  for (int64_t h = 0; h < query.num_heads; ++h) {
    const float* latent = query.latent + h * query.latent_stride;
    const float* rope = query.rope + h * query.rope_stride;
    attend(
        kv.dtype, query.visible, kv.latent_dim, query.out + h * query.out_stride,
        [&](int64_t t) {
          const void* row = latent_row(kv, t);
          const double score = dot(kv.dtype, latent, row, 0, kv.latent_dim) +
                               dot(kv.dtype, rope, row, kv.latent_dim, kv.rope_dim);
          return static_cast<float>(score) * query.scale;
        },
        [&](int64_t t, int64_t i) { return load(kv.dtype, latent_row(kv, t), i); });
  }
}

void mla_per_head_ref(const LatentBlocks& kv, const PerHeadKeys& keys, const PerHeadQuery& query,
                      std::byte*) {
  const auto key_row = [&](const void* base, int64_t stride, int64_t t) -> const void* {
    return static_cast<const std::byte*>(base) + t * stride * dtype_bytes(kv.dtype);
  };
  for (int64_t r = 0; r < query.rows; ++r) {
    const float* q = query.q + r * query.q_stride;
    attend(
        kv.dtype, query.start + r + 1, keys.v_dim, query.out + r * query.out_stride,
        [&](int64_t t) {
          const double score =
              dot(kv.dtype, q, key_row(keys.nope, keys.nope_stride, t), 0, keys.nope_dim) +
              dot(kv.dtype, q + keys.nope_dim, latent_row(kv, t), kv.latent_dim, kv.rope_dim);
          return static_cast<float>(score) * query.scale;
        },
        [&](int64_t t, int64_t i) { return load(kv.dtype, key_row(keys.v, keys.v_stride, t), i); });
  }
}

}  // namespace

void add_ref_attention(KernelTable& table) {
  table.mla_absorbed = mla_absorbed_ref;
  table.mla_per_head = mla_per_head_ref;
}

}  // namespace fathom
