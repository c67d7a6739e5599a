// What this processor can run, and which of it we use.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom {

// Instruction-set levels a kernel may be written for; each includes those before it.
enum class Isa {
  kRef,         // plain C++, any x86-64
  kAvx2,        // AVX2 + FMA + F16C
  kAvx512,      // AVX-512 F/BW/DQ/VL
  kAvx512Vnni,  // + VNNI (int8 dot products)
  kAvx512Bf16,  // + BF16 dot products and VBMI byte permutations (Zen 4, Sapphire Rapids; not Cooper Lake)
};
inline constexpr int kNumIsas = 5;

std::string_view isa_name(Isa isa);  // "ref", "avx2", "avx512", "avx512_vnni", "avx512_bf16"
Result<Isa> parse_isa(std::string_view name);

// The best level the processor and the operating system support.
Isa detect_isa();
// detect_isa(), lowered by FATHOM_ISA when `override_name` is not empty. An unknown name or one above what
// the machine has is an error naming both.
Result<Isa> choose_isa(std::string_view override_name);
Result<Isa> choose_isa(std::string_view override_name, Isa best);  // on a machine whose best level is `best`
// The level the process uses: choose_isa(getenv("FATHOM_ISA")), evaluated once; a bad value ends the process
// at start with one line and exit code 2.
Isa active_isa();

// Model name from /proc/cpuinfo, e.g. "AMD EPYC". For reports only.
std::string cpu_model_name();
// Processors this process may run on.
std::vector<int> available_cpus();

// In a loop that waits for another thread: leaves the core's units to its sibling for a moment.
inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace fathom
