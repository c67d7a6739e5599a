// Ops over all rows of a step, in terms of kernels/: each is one dependency level of a Stream.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>

#include "kernels/linear.h"
#include "model/stream.h"
#include "model/weights.h"
#include "tensor/view.h"

namespace fathom {

// F32 rows as a linear layer reads them, where they are.
Activations f32_activations(MatrixView<const float> x);

// y = x · wᵀ.
struct LinearOp {
  Activations x;
  const PackedWeight* w = nullptr;
  MatrixView<float> y;
};
// Independent products, in one level.
void linear_level(Stream& stream, std::initializer_list<LinearOp> ops);

struct RmsNormWeights {
  const float* gain = nullptr;  // [cols]
  float eps = 0;
};
// out = quantised RMSNorm(x) · gain.
void norm_level(Stream& stream, MatrixView<const float> x, const RmsNormWeights& norm,
                const Activations& out);
// x += delta; normed = RMSNorm(x) · gain; out = quantised normed.
void add_norm_level(Stream& stream, MatrixView<const float> delta, MatrixView<float> x,
                    const RmsNormWeights& norm, MatrixView<float> normed, const Activations& out);
void quantize_level(Stream& stream, MatrixView<const float> x, const Activations& out);

// SwiGLUs to compute in one go: each over its own rows of the operands. Keeps its memory between steps.
class SwigluJobs {
 public:
  struct Job {
    const SwigluWeights* w = nullptr;
    int64_t row_begin = 0;
    int64_t row_end = 0;
    int64_t num_rows() const { return row_end - row_begin; }
  };

  void clear() { jobs_.clear(); }
  // No rows: nothing is added.
  void add(const SwigluWeights& w, int64_t row_begin, int64_t row_end);
  // Largest first, so that no thread is left with a long tile at the end.
  void sort_by_rows();
  bool empty() const { return jobs_.empty(); }
  const std::vector<Job>& jobs() const { return jobs_; }
  // How many from the front are worth a tile each on so many threads, all of gate, up and down: small
  // weights, which cost more to cut than to share unevenly, and none so many rows that a thread would be left
  // with them. A multiple of num_threads.
  size_t num_whole(int num_threads) const;

 private:
  friend class SwigluTiles;
  std::vector<Job> jobs_;
  std::vector<int64_t> tile_begin_;
};

// Where the rows are. `y` is F32 or BF16, contiguous rows of the hidden size.
struct SwigluOperands {
  Activations x;
  // Where rows of x have yet to be brought: brings `to.rows` rows from row `begin` on to `to`; scratch has
  // room for a row of floats. Null: they are there.
  std::function<void(int64_t begin, const Activations& to, std::byte* scratch)> bring_x;
  Activations mid;  // silu(gate(x)) · up(x), quantised
  std::byte* y = nullptr;
  DType y_dtype = DType::kF32;
};
// y = down(silu(gate(x)) · up(x)): whole jobs in one level, the others in two.
void swiglu_levels(Stream& stream, SwigluJobs& jobs, const SwigluOperands& operands);
// What its tiles need of a Stream's scratch; `format`, `hidden` and `inner` are the routed experts'.
int64_t swiglu_scratch_bytes(ActFormat format, int64_t hidden, int64_t inner);

}  // namespace fathom
