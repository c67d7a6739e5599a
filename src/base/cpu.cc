// What the processor can do, from CPUID and the operating system, and which instruction set the kernels use.
#include "base/cpu.h"

#include <sched.h>

#include <cstdlib>
#include <fstream>

namespace fathom {
namespace {
constexpr std::string_view kNames[kNumIsas] = {"ref", "avx2", "avx512", "avx512_vnni", "avx512_bf16"};
}

std::string_view isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

Result<Isa> parse_isa(std::string_view name) {
  for (int i = 0; i < kNumIsas; ++i) {
    if (kNames[i] == name) return static_cast<Isa>(i);
  }
  return invalid_argument("unknown instruction set '{}' (known: ref, avx2, avx512, avx512_vnni, avx512_bf16)",
                          name);
}

Isa detect_isa() {
  __builtin_cpu_init();
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))) {
    return Isa::kRef;
  }
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))) {
    return Isa::kAvx2;
  }
  if (!__builtin_cpu_supports("avx512vnni")) return Isa::kAvx512;
  if (!(__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi")))
    return Isa::kAvx512Vnni;
  return Isa::kAvx512Bf16;
}

Result<Isa> choose_isa(std::string_view override_name) { return choose_isa(override_name, detect_isa()); }

Result<Isa> choose_isa(std::string_view override_name, Isa best) {
  if (override_name.empty()) return best;
  const Result<Isa> parsed = parse_isa(override_name);
  if (!parsed.ok()) return parsed.status().with_context("FATHOM_ISA");
  const Isa wanted = *parsed;
  if (wanted > best) {
    return invalid_argument("FATHOM_ISA={} asks for more than this processor has ({})", override_name,
                            isa_name(best));
  }
  return wanted;
}

Isa active_isa() {
  static const Isa isa = [] {
    const char* name = std::getenv("FATHOM_ISA");
    Result<Isa> chosen = choose_isa(name != nullptr ? name : "");
    if (!chosen.ok()) {
      std::fprintf(stderr, "fathom: %s\n", chosen.status().message().c_str());
      std::exit(2);
    }
    return chosen.value();
  }();
  return isa;
}

std::string cpu_model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) {
      const size_t colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  }
  return "unknown processor";
}

std::vector<int> available_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

}  // namespace fathom
