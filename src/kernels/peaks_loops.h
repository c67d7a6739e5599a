// The loops that peaks.cc times. Each does `iterations` rounds of work on registers or memory and returns
// something that depends on all of it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fathom {

struct PeakLoop {
  float (*run)(int64_t iterations) = nullptr;
  double ops_per_iteration = 0;
};

PeakLoop fma_loop_avx2();
PeakLoop fma_loop_avx512();
PeakLoop int8_loop_avx2();  // vpmaddubsw, vpmaddwd, vpaddd
PeakLoop int8_loop_vnni();  // vpdpbusd
PeakLoop bf16_loop_bf16();  // vdpbf16ps
// Reads `bytes` (a multiple of 4096) once.
float read_memory_avx2(const std::byte* data, int64_t bytes);

}  // namespace fathom
