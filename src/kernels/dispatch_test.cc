// What is written for which instruction set: a kernel that is no longer registered would be missed by no
// other test, since a lower level answers in its place. Needs no processor that runs any of it.
#include "kernels/dispatch.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

std::string linear_formats(Isa isa) {
  std::string names;
  for (int f = 0; f < kNumWeightFormats; ++f) {
    if (own_kernel_table(isa).linear[f] == nullptr) continue;
    names += (names.empty() ? "" : " ") + std::string(weight_format_name(static_cast<WeightFormat>(f)));
  }
  return names;
}

TEST(Dispatch, every_instruction_set_has_the_products_written_for_it) {
  const std::string all = "f32 f16 bf16 fp8 int8 int4";
  EXPECT_EQ(linear_formats(Isa::kRef), all);
  EXPECT_EQ(linear_formats(Isa::kAvx2), all);
  EXPECT_EQ(linear_formats(Isa::kAvx512), all);
  EXPECT_EQ(linear_formats(Isa::kAvx512Vnni), "int8 int4");
  EXPECT_EQ(linear_formats(Isa::kAvx512Bf16), "bf16 fp8");
}

TEST(Dispatch, every_instruction_set_has_the_attention_written_for_it) {
  for (const Isa isa : {Isa::kRef, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    EXPECT_NE(own_kernel_table(isa).mla_absorbed, nullptr) << isa_name(isa);
    EXPECT_NE(own_kernel_table(isa).mla_per_head, nullptr) << isa_name(isa);
  }
}

TEST(Dispatch, ref_avx2_and_avx512_have_every_other_op) {
  for (const Isa isa : {Isa::kRef, Isa::kAvx2, Isa::kAvx512}) {
    const KernelTable& table = own_kernel_table(isa);
    EXPECT_TRUE(table.quantize_rows && table.quantize_int4_groups && table.divide_to_fp8 &&
                table.max_magnitude)
        << isa_name(isa);
    EXPECT_TRUE(table.rms_norm && table.silu_mul && table.rope_interleaved && table.add_rows &&
                table.weighted_sum && table.gate_experts && table.to_f32 && table.from_f32)
        << isa_name(isa);
  }
}

// The table in use takes each op from the highest level that has it.
TEST(Dispatch, a_level_inherits_what_it_lacks_and_keeps_what_it_has) {
  constexpr int kBf16 = static_cast<int>(WeightFormat::kBf16), kInt8 = static_cast<int>(WeightFormat::kInt8);
  const KernelTable& top = kernel_table(Isa::kAvx512Bf16);
  EXPECT_EQ(top.linear[kBf16], own_kernel_table(Isa::kAvx512Bf16).linear[kBf16]);
  EXPECT_EQ(top.linear[kInt8], own_kernel_table(Isa::kAvx512Vnni).linear[kInt8]);
  EXPECT_EQ(top.rms_norm, own_kernel_table(Isa::kAvx512).rms_norm);
  EXPECT_EQ(kernel_table(Isa::kAvx2).rms_norm, own_kernel_table(Isa::kAvx2).rms_norm);
}

}  // namespace
}  // namespace fathom
