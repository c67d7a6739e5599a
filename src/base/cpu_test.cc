// Names of instruction sets and the override: every name is taken where the machine has the set, all else is
// refused with both sides named.
#include "base/cpu.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fathom {
namespace {

constexpr Isa kAll[] = {Isa::kRef, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kAvx512Bf16};
static_assert(std::size(kAll) == kNumIsas);

TEST(Cpu, every_instruction_set_has_a_name_that_is_read_back) {
  for (const Isa isa : kAll) EXPECT_EQ(parse_isa(isa_name(isa)).value(), isa) << isa_name(isa);
  EXPECT_EQ(isa_name(Isa::kRef), "ref");
  EXPECT_EQ(isa_name(Isa::kAvx512Bf16), "avx512_bf16");
}

TEST(Cpu, an_override_lowers_the_instruction_set_and_never_raises_it) {
  const Isa best = detect_isa();
  EXPECT_EQ(choose_isa("").value(), best);
  for (const Isa isa : kAll) {
    const Result<Isa> chosen = choose_isa(isa_name(isa));
    if (isa <= best) {
      EXPECT_EQ(chosen.value(), isa);
    } else {
      EXPECT_EQ(chosen.status().code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(chosen.status().message(),
                fmt::format("FATHOM_ISA={} asks for more than this processor has ({})", isa_name(isa),
                            isa_name(best)));
    }
  }
}

TEST(Cpu, a_set_above_the_machines_is_refused_whatever_this_machine_has) {
  for (const Isa best : kAll) {
    for (const Isa isa : kAll) {
      const Result<Isa> chosen = choose_isa(isa_name(isa), best);
      EXPECT_EQ(chosen.ok(), isa <= best) << isa_name(isa) << " on " << isa_name(best);
      if (!chosen.ok()) {
        EXPECT_NE(chosen.status().message().find(isa_name(best)), std::string::npos);
      }
    }
  }
}

TEST(Cpu, an_unknown_override_is_named_with_the_known_ones) {
  for (const std::string_view name : {"avx", "AVX2", "avx512_", " ref", "neon"}) {
    const Status status = choose_isa(name).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), fmt::format("FATHOM_ISA: unknown instruction set '{}' (known: ref, avx2, "
                                            "avx512, avx512_vnni, avx512_bf16)",
                                            name));
  }
}

TEST(Cpu, there_is_a_processor_to_run_on) {
  const std::vector<int> cpus = available_cpus();
  ASSERT_FALSE(cpus.empty());
  EXPECT_TRUE(std::is_sorted(cpus.begin(), cpus.end()));
  EXPECT_FALSE(cpu_model_name().empty());
}

}  // namespace
}  // namespace fathom
