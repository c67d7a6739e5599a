// Packing over kernels/linear, with the two cases it does not know: FP8 in whole blocks, and kv_b by heads.
#include "model/weights_pack.h"

#include <vector>

#include "kernels/quantize.h"

namespace fathom {
namespace {

// pack_rows gives the same, but the reference layout quantises a block of 128 rows anew for every tile of 32.
void pack_as_fp8(const PackedWeight& w, const WeightSource& source, int64_t begin, int64_t end) {
  const int64_t rows = end - begin;
  std::vector<Fp8E4m3> codes(static_cast<size_t>(rows * source.k));
  std::vector<float> scales(
      static_cast<size_t>(ceil_div(rows, kScaleBlock) * ceil_div(source.k, kScaleBlock)));
  quantize_weight_fp8(source, begin, rows, codes.data(), scales.data());
  pack_rows(w, begin, rows, {DType::kFp8E4m3, codes.data(), rows, source.k, scales.data()}, 0);
}

}  // namespace

void pack_linear_rows(const PackedWeight& w, const WeightSource& source, int64_t begin, int64_t end) {
  if (w.format == WeightFormat::kFp8 && source.dtype != DType::kFp8E4m3) {
    pack_as_fp8(w, source, begin, end);
  } else {
    pack_rows(w, begin, end - begin, source, begin);
  }
}

void pack_kv_b_head(const KvBHead& out, const WeightSource& source, const ModelConfig& config, int64_t head) {
  const int64_t nope = config.qk_nope_head_dim;
  const int64_t head_rows = nope + config.v_head_dim;
  const int64_t latent = config.kv_lora_rank;
  std::vector<float> rows(static_cast<size_t>(head_rows * latent));
  std::vector<float> transposed(static_cast<size_t>(nope * latent));
  for (int64_t i = 0; i < head_rows; ++i) {
    dequantize_weight(source, head * head_rows + i, 0, latent, rows.data() + i * latent);
  }
  for (int64_t i = 0; i < nope; ++i) {
    for (int64_t j = 0; j < latent; ++j) {
      transposed[static_cast<size_t>(j * nope + i)] = rows[static_cast<size_t>(i * latent + j)];
    }
  }
  pack_rows(out.w_uk, 0, nope, {DType::kF32, rows.data(), nope, latent}, 0);
  pack_rows(out.w_uk_t, 0, latent, {DType::kF32, transposed.data(), latent, nope}, 0);
  pack_rows(out.w_uv, 0, config.v_head_dim,
            {DType::kF32, rows.data() + nope * latent, config.v_head_dim, latent}, 0);
}

}  // namespace fathom
