// Every code of every small float format, against arithmetic done in double and against nearest-value search.
#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace fathom {
namespace {

// Value of a float format with the given field widths, by the textbook formula.
double textbook_value(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const double sign = ((bits >> (exponent_bits + mantissa_bits)) & 1u) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(1.0 + std::ldexp(mantissa, -mantissa_bits), exponent - bias);
}

TEST(DType, names_round_trip_and_int4_is_not_a_file_dtype) {
  for (const char* name : {"F64", "F32", "BF16", "F16", "F8_E4M3", "F8_E5M2", "I64", "I32", "I16", "I8",
                           "U64", "U32", "U16", "U8", "BOOL"}) {
    ASSERT_TRUE(parse_dtype(name).has_value()) << name;
    EXPECT_EQ(dtype_name(*parse_dtype(name)), name);
  }
  EXPECT_FALSE(parse_dtype("I4").has_value());
  EXPECT_FALSE(parse_dtype("f32").has_value());
  EXPECT_FALSE(parse_dtype("").has_value());
  EXPECT_EQ(dtype_bytes(DType::kInt4, 5), 3);
  EXPECT_EQ(dtype_bytes(DType::kBf16, 5), 10);
  EXPECT_EQ(dtype_bytes(DType::kF64), 8);
}

TEST(Fp8E4m3, all_codes_have_the_textbook_value_and_come_back) {
  for (int code = 0; code < 256; ++code) {
    const Fp8E4m3 x{static_cast<uint8_t>(code)};
    const float value = fp8_e4m3_to_f32(x);
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(f32_to_fp8_e4m3(value).bits, 0x7f);
      continue;
    }
    EXPECT_EQ(value, textbook_value(static_cast<uint32_t>(code), 4, 3)) << code;
    EXPECT_EQ(f32_to_fp8_e4m3(value).bits, code);
  }
}

TEST(Fp8E4m3, rounds_to_the_nearest_code_with_ties_to_even) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = fp8_e4m3_to_f32(Fp8E4m3{static_cast<uint8_t>(code)});
    const float high = fp8_e4m3_to_f32(Fp8E4m3{static_cast<uint8_t>(code + 1)});
    const float middle = (low + high) / 2;  // exact: both have few mantissa bits
    const int even = (code & 1) == 0 ? code : code + 1;
    EXPECT_EQ(f32_to_fp8_e4m3(middle).bits, even) << code;
    EXPECT_EQ(f32_to_fp8_e4m3(std::nextafter(middle, 0.0f)).bits, code) << code;
    EXPECT_EQ(f32_to_fp8_e4m3(std::nextafter(middle, 1e9f)).bits, code + 1) << code;
    EXPECT_EQ(f32_to_fp8_e4m3(-middle).bits, even | 0x80) << code;
  }
}

TEST(Fp8E4m3, saturates) {
  const float inf = std::numeric_limits<float>::infinity();
  for (float big : {448.0f, 449.0f, 464.0f, 480.0f, 1e30f, inf}) {
    EXPECT_EQ(f32_to_fp8_e4m3(big).bits, 0x7e) << big;
    EXPECT_EQ(f32_to_fp8_e4m3(-big).bits, 0xfe) << big;
  }
  EXPECT_EQ(f32_to_fp8_e4m3(-0.0f).bits, 0x80);
  EXPECT_EQ(f32_to_fp8_e4m3(std::numeric_limits<float>::denorm_min()).bits, 0);
}

// Lines of one golden file of tests/fixtures/unit: two words each.
std::vector<std::pair<std::string, std::string>> golden_lines(const std::string& name) {
  std::ifstream file(std::string(FATHOM_SOURCE_DIR) + "/tests/fixtures/unit/" + name);
  EXPECT_TRUE(file.is_open()) << name;
  std::vector<std::pair<std::string, std::string>> lines;
  for (std::string first, second; file >> first >> second;) lines.emplace_back(first, second);
  return lines;
}

uint32_t from_hex(const std::string& text) { return static_cast<uint32_t>(std::stoul(text, nullptr, 16)); }

TEST(Fp8E4m3, decodes_every_code_as_the_oracle_does) {
  const auto lines = golden_lines("fp8_decode.txt");
  ASSERT_EQ(lines.size(), 256u);
  for (const auto& [code, bits] : lines) {
    const float value = fp8_e4m3_to_f32(Fp8E4m3{static_cast<uint8_t>(from_hex(code))});
    if (bits == "nan") {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(value), from_hex(bits)) << code;
    }
  }
}

TEST(Fp8E4m3, encodes_as_the_oracle_does) {
  const auto lines = golden_lines("fp8_encode.txt");
  ASSERT_EQ(lines.size(), 512u);
  for (const auto& [bits, code] : lines)
    EXPECT_EQ(f32_to_fp8_e4m3(std::bit_cast<float>(from_hex(bits))).bits, from_hex(code)) << bits;
}

TEST(F16, all_codes_have_the_textbook_value_and_come_back) {
  for (int code = 0; code < 65536; ++code) {
    const F16 x{static_cast<uint16_t>(code)};
    const float value = f16_to_f32(x);
    if ((code & 0x7c00) == 0x7c00) {
      if ((code & 0x3ff) == 0) {
        EXPECT_TRUE(std::isinf(value));
        EXPECT_EQ(f32_to_f16(value).bits, code);
      } else {
        EXPECT_TRUE(std::isnan(value));
        EXPECT_EQ(f32_to_f16(value).bits, code | 0x200) << "NaN kept, made quiet";
      }
      continue;
    }
    ASSERT_EQ(value, textbook_value(static_cast<uint32_t>(code), 5, 10)) << code;
    ASSERT_EQ(f32_to_f16(value).bits, code);
  }
}

TEST(F16, rounds_to_the_nearest_code_with_ties_to_even) {
  for (int code = 0; code < 0x7bff; ++code) {
    const float low = f16_to_f32(F16{static_cast<uint16_t>(code)});
    const float middle = (low + f16_to_f32(F16{static_cast<uint16_t>(code + 1)})) / 2;
    const int even = (code & 1) == 0 ? code : code + 1;
    ASSERT_EQ(f32_to_f16(middle).bits, even) << code;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)).bits, code) << code;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 1e9f)).bits, code + 1) << code;
  }
  EXPECT_EQ(f32_to_f16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(f32_to_f16(-1e30f).bits, 0xfc00);
}

TEST(Bf16, all_codes_come_back_and_nan_is_kept) {
  for (int code = 0; code < 65536; ++code) {
    const Bf16 x{static_cast<uint16_t>(code)};
    const float value = bf16_to_f32(x);
    const bool is_nan = (code & 0x7f80) == 0x7f80 && (code & 0x7f) != 0;
    ASSERT_EQ(std::isnan(value), is_nan);
    ASSERT_EQ(f32_to_bf16(value).bits, is_nan ? code | 0x40 : code);
    if (!is_nan && !std::isinf(value)) {
      ASSERT_EQ(value, textbook_value(static_cast<uint32_t>(code), 8, 7));
    }
  }
}

TEST(Bf16, rounds_to_the_nearest_code_with_ties_to_even) {
  for (int code = 0; code < 0x7f7f; ++code) {
    const float low = bf16_to_f32(Bf16{static_cast<uint16_t>(code)});
    const float middle = std::bit_cast<float>(std::bit_cast<uint32_t>(low) + 0x8000u);
    const int even = (code & 1) == 0 ? code : code + 1;
    ASSERT_EQ(f32_to_bf16(middle).bits, even) << code;
    ASSERT_EQ(f32_to_bf16(std::nextafter(middle, 0.0f)).bits, code) << code;
    ASSERT_EQ(f32_to_bf16(std::nextafter(middle, std::numeric_limits<float>::infinity())).bits, code + 1)
        << code;
  }
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
}

}  // namespace
}  // namespace fathom
