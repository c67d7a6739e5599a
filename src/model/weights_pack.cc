// Packing over kernels/linear of what it does not know: kv_b by heads.
#include "model/weights_pack.h"

#include <vector>

#include "kernels/quantize.h"

namespace fathom {

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
