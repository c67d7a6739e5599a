// Operations over the thread team: products, norms, and SwiGLU over many experts' row ranges at once.
#include "model/ops.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "kernels/elementwise.h"
#include "kernels/quantize.h"

namespace fathom {
namespace {

constexpr int kLinearsPerLevelMax = 4;
// SwiGLU tiles: 128 outputs, the block over which FP8 and INT8 rows are scaled, so a tile quantises what it
// made.
constexpr int64_t kSwigluTileN = kScaleBlock;
constexpr int64_t kSwigluTileRows = 128;
constexpr int64_t kSwigluTileFloats = kSwigluTileRows * kSwigluTileN;
// A tile of the down projection takes more columns until it reads so many weights: small experts would spend
// their time between tiles. Not more, so that few jobs still spread over the threads.
constexpr int64_t kDownTileWeights = 128 * 1024;
// Rows that are only copied: so few cost less than waking others for them.
constexpr int64_t kCopiesInline = 16;
// Bytes of gate, up and down that one thread takes as a whole: tens of microseconds of memory's time.
constexpr int64_t kWholeJobBytesMax = int64_t{2} << 20;

MatrixView<const float> one_row(const float* data, int64_t n) { return {data, 1, n}; }
MatrixView<float> one_row(float* data, int64_t n) { return {data, 1, n}; }

// Columns [begin, end) of the rows, as activations of their own; begin is a multiple of 128.
Activations act_columns(const Activations& x, int64_t begin, int64_t end) {
  Activations part = x;
  part.k = end - begin;
  part.data = static_cast<std::byte*>(x.data) + begin * act_element_bytes(x.format);
  if (x.scales != nullptr) part.scales = x.scales + begin / kScaleBlock;
  return part;
}

// Rows of a tile when so many are cut as evenly as can be: a tile of a few would read all the weights for
// them.
int64_t swiglu_tile_rows(int64_t rows) { return ceil_div(rows, ceil_div(rows, kSwigluTileRows)); }

// A view of `tile` under which y[r, n] of the whole product's columns lands in the tile's own memory.
MatrixView<float> tile_view(float* tile, int64_t rows, int64_t n_begin, int64_t n, int64_t stride) {
  return {tile - n_begin, rows, n, stride};
}

}  // namespace

// Cuts jobs into (rows, columns) tiles, numbered through those from `first` on.
class SwigluTiles {
 public:
  // Tiles of outputs [0, n), of kSwigluTileN columns or as many times that as read about `tile_weights`.
  SwigluTiles(SwigluJobs& jobs, size_t first, int64_t n, int64_t k, int64_t tile_weights)
      : SwigluTiles(jobs, n, k, tile_weights) {
    jobs.tile_begin_.assign(1, 0);
    for (size_t i = first; i < jobs.jobs_.size(); ++i)
      jobs.tile_begin_.push_back(jobs.tile_begin_.back() + num_tiles(jobs.jobs_[i]));
    first_ = first;
  }
  // For the tiles of single jobs only.
  SwigluTiles(const SwigluJobs& jobs, int64_t n, int64_t k, int64_t tile_weights)
      : jobs_(jobs),
        n_(n),
        cols_max_(std::max<int64_t>(1, tile_weights / (k * kSwigluTileN)) * kSwigluTileN) {}

  int64_t num_tiles() const { return jobs_.tile_begin_.back(); }
  int64_t num_tiles(const SwigluJobs::Job& job) const {
    return row_tiles(job) * ceil_div(n_, tile_cols(job));
  }

  struct Tile {
    const SwigluWeights* w;
    int64_t row_begin, row_end, n_begin, n_end;
  };
  Tile tile(int64_t i) const {
    const auto& begins = jobs_.tile_begin_;
    const auto place = std::upper_bound(begins.begin(), begins.end(), i) - begins.begin() - 1;
    return tile(jobs_.jobs_[first_ + static_cast<size_t>(place)], i - begins[place]);
  }
  Tile tile(const SwigluJobs::Job& job, int64_t local) const {
    // Row tiles of the same columns follow one another: they share the weights they read.
    const int64_t tile_rows = swiglu_tile_rows(job.num_rows());
    const int64_t row_begin = job.row_begin + local % row_tiles(job) * tile_rows;
    const int64_t n_begin = local / row_tiles(job) * tile_cols(job);
    return {job.w, row_begin, std::min(row_begin + tile_rows, job.row_end), n_begin,
            std::min(n_begin + tile_cols(job), n_)};
  }

 private:
  static int64_t row_tiles(const SwigluJobs::Job& job) { return ceil_div(job.num_rows(), kSwigluTileRows); }
  // The results of a gate or up tile fit kSwigluTileFloats; of many rows, a down tile is cut alike.
  int64_t tile_cols(const SwigluJobs::Job& job) const {
    const int64_t rows = swiglu_tile_rows(job.num_rows());
    return std::min(cols_max_, kSwigluTileFloats / rows / kSwigluTileN * kSwigluTileN);
  }

  const SwigluJobs& jobs_;
  size_t first_ = 0;
  const int64_t n_;
  const int64_t cols_max_;
};

namespace {

void gate_up_tile(const SwigluTiles::Tile& t, const SwigluOperands& operands, float* scratch) {
  const int64_t rows = t.row_end - t.row_begin;
  const int64_t n = t.n_end - t.n_begin;
  const int64_t inner = t.w->gate.n;
  const Activations x = act_row_range(operands.x, t.row_begin, t.row_end);
  float* const gate = scratch;
  float* const up = scratch + kSwigluTileFloats;
  const int64_t stride = round_up(n, kSwigluTileN);
  const LinearTile tile{0, rows, t.n_begin, t.n_end};
  linear(x, t.w->gate, tile, tile_view(gate, rows, t.n_begin, inner, stride));
  linear(x, t.w->up, tile, tile_view(up, rows, t.n_begin, inner, stride));
  const Activations mid =
      act_columns(act_row_range(operands.mid, t.row_begin, t.row_end), t.n_begin, t.n_end);
  const MatrixView<float> product{gate, rows, n, stride};
  silu_mul(product, {up, rows, n, stride}, product);
  quantize_rows(product, mid);
}

void down_tile(const SwigluTiles::Tile& t, const SwigluOperands& operands) {
  const int64_t rows = t.row_end - t.row_begin;
  const int64_t hidden = t.w->down.n;
  const Activations mid = act_row_range(operands.mid, t.row_begin, t.row_end);
  std::byte* const y = operands.y + dtype_bytes(operands.y_dtype, t.row_begin * hidden);
  linear(mid, t.w->down, {0, rows, t.n_begin, t.n_end}, {operands.y_dtype, y, rows, hidden, hidden});
}

}  // namespace

Activations f32_activations(MatrixView<const float> x) {
  return {.format = ActFormat::kF32,
          .rows = x.rows,
          .k = x.cols,
          .data = const_cast<float*>(x.data),
          .row_stride_bytes = x.stride * static_cast<int64_t>(sizeof(float))};
}

void linear_level(Stream& stream, std::initializer_list<LinearOp> ops) {
  CHECK(ops.size() <= kLinearsPerLevelMax);
  std::array<LinearTiling, kLinearsPerLevelMax> tilings;
  int64_t num_tiles = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    const LinearOp& op = ops.begin()[i];
    tilings[i] = plan_linear(op.x.rows, op.w->n, op.w->k, stream.num_threads());
    num_tiles += tilings[i].num_tiles();
  }
  stream.for_tiles(num_tiles, [&](int64_t tile, std::byte*) {
    size_t i = 0;
    for (; tile >= tilings[i].num_tiles(); ++i) tile -= tilings[i].num_tiles();
    const LinearOp& op = ops.begin()[i];
    linear(op.x, *op.w, tilings[i].tile(tile), op.y);
  });
}

void norm_level(Stream& stream, MatrixView<const float> x, const RmsNormWeights& norm,
                const Activations& out) {
  stream.for_rows(x.rows, [&](int64_t begin, int64_t end, std::byte* scratch) {
    auto* const normed = reinterpret_cast<float*>(scratch);
    for (int64_t row = begin; row < end; ++row) {
      rms_norm(one_row(x.row(row), x.cols), norm.gain, norm.eps, one_row(normed, x.cols));
      quantize_rows(one_row(const_cast<const float*>(normed), x.cols), act_row_range(out, row, row + 1));
    }
  });
}

void add_norm_level(Stream& stream, MatrixView<const float> delta, MatrixView<float> x,
                    const RmsNormWeights& norm, MatrixView<float> normed, const Activations& out) {
  stream.for_rows(x.rows, [&](int64_t begin, int64_t end, std::byte*) {
    for (int64_t row = begin; row < end; ++row) {
      add_rows(delta.row_range(row, row + 1), x.row_range(row, row + 1));
      rms_norm(x.row_range(row, row + 1), norm.gain, norm.eps, normed.row_range(row, row + 1));
      quantize_rows(normed, out, row, row + 1);
    }
  });
}

void quantize_level(Stream& stream, MatrixView<const float> x, const Activations& out) {
  stream.for_rows(x.rows, [&](int64_t begin, int64_t end, std::byte*) { quantize_rows(x, out, begin, end); });
}

void SwigluJobs::add(const SwigluWeights& w, int64_t row_begin, int64_t row_end) {
  if (row_begin < row_end) jobs_.push_back({&w, row_begin, row_end});
}

void SwigluJobs::sort_by_rows() {
  std::sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) {
    return a.num_rows() != b.num_rows() ? a.num_rows() > b.num_rows() : a.row_begin < b.row_begin;
  });
}

size_t SwigluJobs::num_whole(int num_threads) const {
  if (jobs_.empty()) return 0;
  const SwigluWeights& w = *jobs_.front().w;
  if (w.gate.bytes() + w.up.bytes() + w.down.bytes() > kWholeJobBytesMax) return 0;
  int64_t rows = 0, rows_max = 0;
  for (const Job& job : jobs_) {
    rows += job.num_rows();
    rows_max = std::max(rows_max, job.num_rows());
  }
  if (2 * num_threads * rows_max > rows) return 0;
  return jobs_.size() - jobs_.size() % static_cast<size_t>(num_threads);
}

namespace {

// Scratch of a tile: the products' floats (or a row of floats while rows are brought), then a whole job's own
// x and mid.
int64_t swiglu_floats_bytes(int64_t hidden) {
  return round_up(std::max(2 * kSwigluTileFloats, hidden) * static_cast<int64_t>(sizeof(float)),
                  static_cast<int64_t>(kBufferAlignmentBytes));
}

// All of a job on one thread, a tile of rows at a time, whose inputs and inner values stay in its caches.
void whole_swiglu(const SwigluJobs& jobs, const SwigluJobs::Job& job, const SwigluOperands& operands,
                  std::byte* scratch) {
  const SwigluWeights& w = *job.w;
  auto* const floats = reinterpret_cast<float*>(scratch);
  std::byte* const own_x = scratch + swiglu_floats_bytes(w.gate.k);
  std::byte* const own_mid = own_x + act_bytes(operands.x.format, kSwigluTileRows, w.gate.k);
  const SwigluTiles gate_up(jobs, w.gate.n, w.gate.k, w.gate.n * w.gate.k);
  SwigluOperands own = operands;
  const int64_t tile_rows = swiglu_tile_rows(job.num_rows());
  for (int64_t row = job.row_begin; row < job.row_end; row += tile_rows) {
    const int64_t rows = std::min(tile_rows, job.row_end - row);
    own.x = make_activations(operands.x.format, rows, w.gate.k, own_x);
    own.mid = make_activations(operands.mid.format, rows, w.down.k, own_mid);
    own.mid.power_of_two_scales = own.x.power_of_two_scales = operands.mid.power_of_two_scales;
    own.y = operands.y + row * w.down.n * dtype_bytes(operands.y_dtype);
    operands.bring_x(row, own.x, scratch);
    const SwigluJobs::Job part{&w, 0, rows};
    for (int64_t t = 0; t < gate_up.num_tiles(part); ++t) gate_up_tile(gate_up.tile(part, t), own, floats);
    down_tile({&w, 0, rows, 0, w.down.n}, own);
  }
}

// Brings the rows of the jobs from `first` on: of all rows, or, where whole jobs have left a few, job by job.
void bring_x_level(Stream& stream, const SwigluJobs& jobs, size_t first, const SwigluOperands& operands) {
  if (!operands.bring_x) return;
  const auto bring = [&](int64_t begin, int64_t end, std::byte* scratch) {
    operands.bring_x(begin, act_row_range(operands.x, begin, end), scratch);
  };
  if (first == 0) return stream.for_rows(operands.x.rows, bring, kCopiesInline);
  stream.for_tiles(static_cast<int64_t>(jobs.jobs().size() - first), [&](int64_t i, std::byte* scratch) {
    const SwigluJobs::Job& job = jobs.jobs()[first + static_cast<size_t>(i)];
    bring(job.row_begin, job.row_end, scratch);
  });
}

}  // namespace

void swiglu_levels(Stream& stream, SwigluJobs& jobs, const SwigluOperands& operands) {
  if (jobs.empty()) return;
  const SwigluWeights& shape = *jobs.jobs().front().w;
  const size_t num_whole = operands.bring_x ? jobs.num_whole(stream.num_threads()) : 0;
  // Dealt out, so that every thread's run goes from large jobs to small ones.
  const int64_t threads = stream.num_threads(), per_thread = static_cast<int64_t>(num_whole) / threads;
  stream.for_tiles(static_cast<int64_t>(num_whole), [&](int64_t i, std::byte* scratch) {
    const int64_t job = i % per_thread * threads + i / per_thread;
    whole_swiglu(jobs, jobs.jobs()[static_cast<size_t>(job)], operands, scratch);
  });
  if (num_whole == jobs.jobs().size()) return;
  bring_x_level(stream, jobs, num_whole, operands);
  const SwigluTiles gate_up(jobs, num_whole, shape.gate.n, shape.gate.k, 0);
  stream.for_tiles(gate_up.num_tiles(), [&](int64_t i, std::byte* scratch) {
    gate_up_tile(gate_up.tile(i), operands, reinterpret_cast<float*>(scratch));
  });
  const SwigluTiles down(jobs, num_whole, shape.down.n, shape.down.k, kDownTileWeights);
  stream.for_tiles(down.num_tiles(), [&](int64_t i, std::byte*) { down_tile(down.tile(i), operands); });
}

int64_t swiglu_scratch_bytes(ActFormat format, int64_t hidden, int64_t inner) {
  return swiglu_floats_bytes(hidden) + act_bytes(format, kSwigluTileRows, hidden) +
         act_bytes(format, kSwigluTileRows, inner);
}

}  // namespace fathom
