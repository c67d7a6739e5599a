// What this machine can do, measured now: the denominators of "share of peak". For benchmarks and reports
// only.
#pragma once

#include "base/cpu.h"
#include "base/thread_team.h"
#include "tensor/arena.h"

namespace fathom {

struct PeakLoop;

struct MachinePeaks {
  double read_bytes_per_s = 0;  // sequential reads of memory on huge pages, all threads
  double fma_flops = 0;         // F32 multiply-adds, two operations each
  double bf16_flops = 0;        // vdpbf16ps; 0 where there is none
  double int8_ops = 0;          // vpdpbusd, or the AVX2 chain vpmaddubsw + vpmaddwd + vpaddd
  // The fastest multiply-add exact enough for 16-bit weights.
  double half_flops() const { return bf16_flops > fma_flops ? bf16_flops : fma_flops; }
};

// Measures with all threads of `team`. `seconds` gives the time (a Clock's now as seconds), so that the
// caller owns the clock.
class PeakMeter {
 public:
  PeakMeter(Isa isa, ThreadTeam& team, double (*seconds)());
  // Once each, about 20 ms in all. Zeros below AVX2.
  MachinePeaks sample();

 private:
  double rate(PeakLoop loop);
  double read_rate();

  const Isa isa_;
  ThreadTeam& team_;
  double (*const seconds_)();
  AlignedBuffer memory_;
};

// The best of several samples: a neighbour only ever makes one slower.
MachinePeaks measure_peaks(Isa isa, ThreadTeam& team, double (*seconds)());

}  // namespace fathom
