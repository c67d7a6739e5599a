// What the tests and benchmarks of kernels share: random matrices, sources of every dtype, the levels to run.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "kernels/dispatch.h"
#include "tensor/arena.h"

namespace fathom {

// Roughly normal, standard deviation 1.
inline float random_normal(Rng& rng) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += rng.next_double();
  return static_cast<float>(sum);
}

inline std::vector<float> random_floats(int64_t count, uint64_t seed, float scale = 1.0f) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = random_normal(rng) * scale;
  return x;
}

// Levels above the reference that this machine runs.
inline std::vector<Isa> isas_above_ref() {
  std::vector<Isa> isas;
  for (int i = 1; i <= static_cast<int>(detect_isa()); ++i) isas.push_back(static_cast<Isa>(i));
  return isas;
}

// A weight matrix in a source dtype, with its memory.
struct OwnedSource {
  WeightSource view;
  std::vector<std::byte> data;
  std::vector<std::byte> scales;

  OwnedSource(DType dtype, int64_t n, int64_t k, uint64_t seed) {
    view.dtype = dtype;
    view.n = n;
    view.k = k;
    data.resize(static_cast<size_t>(n * view.row_bytes()));
    view.data = data.data();
    fill(random_floats(n * k, seed, 1 / std::sqrt(static_cast<float>(k))));
  }

  void fill(const std::vector<float>& values) {
    const WeightSource floats{DType::kF32, values.data(), view.n, view.k, nullptr};
    const int64_t scale_cols = view.scale_cols();
    const auto take_scales = [&](int64_t bytes) {
      scales.resize(static_cast<size_t>(bytes));
      view.scales = scales.data();
      return scales.data();
    };
    switch (view.dtype) {
      case DType::kFp8E4m3:
        quantize_weight_fp8(
            floats, 0, view.n, reinterpret_cast<Fp8E4m3*>(data.data()),
            reinterpret_cast<float*>(take_scales(ceil_div(view.n, kScaleBlock) * scale_cols * 4)));
        break;
      case DType::kInt8:
        quantize_weight_int8(floats, 0, view.n, reinterpret_cast<int8_t*>(data.data()),
                             reinterpret_cast<float*>(take_scales(view.n * scale_cols * 4)));
        break;
      case DType::kInt4:
        quantize_weight_int4(floats, 0, view.n, reinterpret_cast<uint8_t*>(data.data()),
                             reinterpret_cast<F16*>(take_scales(view.n * scale_cols * 2)));
        break;
      default:
        kernel_table(Isa::kRef).from_f32(values.data(), view.n * view.k, view.dtype, data.data());
    }
  }
};

inline DType source_dtype_for(WeightFormat format) {
  constexpr DType kDTypes[] = {DType::kF32,     DType::kF16,  DType::kBf16,
                               DType::kFp8E4m3, DType::kInt8, DType::kInt4};
  return kDTypes[static_cast<int>(format)];
}

// Packed weights with their memory.
struct OwnedWeight {
  AlignedBuffer memory;
  PackedWeight view;

  OwnedWeight(WeightFormat format, const WeightSource& source, Isa isa)
      : memory(static_cast<size_t>(packed_weight_bytes(format, source.n, source.k, isa))),
        view(make_packed_weight(format, source.n, source.k, memory.data(), isa)) {
    pack_rows(view, 0, source.n, source, 0);
  }
};

// Quantised activations with their memory.
struct OwnedActivations {
  AlignedBuffer memory;
  Activations view;

  OwnedActivations(ActFormat format, MatrixView<const float> x)
      : memory(static_cast<size_t>(act_bytes(format, x.rows, x.cols))),
        view(make_activations(format, x.rows, x.cols, memory.data())) {
    kernel_table(Isa::kRef).quantize_rows(x, view, 0, x.rows);
  }
};

inline double norm(const float* x, int64_t n) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
  return std::sqrt(squares);
}

}  // namespace fathom
