// What this machine can do, measured now: the denominators of "share of peak". For benchmarks and reports
// only.
#pragma once

#include "base/cpu.h"
#include "base/thread_team.h"

namespace fathom {

struct MachinePeaks {
  double read_bytes_per_s = 0;  // sequential reads of memory on huge pages, all threads
  double fma_flops = 0;         // F32 multiply-adds, two operations each
  double bf16_flops = 0;        // vdpbf16ps; 0 where there is none
  double int8_ops = 0;          // vpdpbusd, or the AVX2 chain vpmaddubsw + vpmaddwd + vpaddd
  // The fastest multiply-add exact enough for 16-bit weights.
  double half_flops() const { return bf16_flops > fma_flops ? bf16_flops : fma_flops; }
};

// Takes about 0.3 s. `seconds` gives the time (a Clock's now as seconds), so that the caller owns the clock.
MachinePeaks measure_peaks(Isa isa, ThreadTeam& team, double (*seconds)());

}  // namespace fathom
