// Element types of tensors, and exact scalar conversions between the float formats. Kernels have vector
// forms; these are the definition they are tested against.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fathom {

enum class DType : uint8_t {
  kF64,
  kF32,
  kBf16,
  kF16,
  kFp8E4m3,  // OCP e4m3fn: max 448, no infinity, NaN 0x7f and 0xff
  kFp8E5m2,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kInt4,  // two elements a byte; exists only inside packed weights, never as a safetensors dtype
  kUint64,
  kUint32,
  kUint16,
  kUint8,
  kBool,
};

int dtype_bits(DType dtype);
// Bytes of `count` elements stored one after the other, rounded up to whole bytes.
int64_t dtype_bytes(DType dtype, int64_t count = 1);
// The name safetensors writes: "F32", "BF16", "F8_E4M3", …
std::string_view dtype_name(DType dtype);
// Nothing for a name that safetensors does not define or that Fathom has no type for.
std::optional<DType> parse_dtype(std::string_view name);

// Storage formats as distinct trivial types, so that a BF16 pointer is never taken for an F16 one.
struct Bf16 {
  uint16_t bits;
  friend bool operator==(Bf16, Bf16) = default;
};
struct F16 {
  uint16_t bits;
  friend bool operator==(F16, F16) = default;
};
struct Fp8E4m3 {
  uint8_t bits;
  friend bool operator==(Fp8E4m3, Fp8E4m3) = default;
};

template <typename T>
inline constexpr DType kDTypeOf = [] { static_assert(sizeof(T) == 0, "no DType for this type"); }();
template <>
inline constexpr DType kDTypeOf<double> = DType::kF64;
template <>
inline constexpr DType kDTypeOf<float> = DType::kF32;
template <>
inline constexpr DType kDTypeOf<Bf16> = DType::kBf16;
template <>
inline constexpr DType kDTypeOf<F16> = DType::kF16;
template <>
inline constexpr DType kDTypeOf<Fp8E4m3> = DType::kFp8E4m3;
template <>
inline constexpr DType kDTypeOf<int8_t> = DType::kInt8;
template <>
inline constexpr DType kDTypeOf<uint8_t> = DType::kUint8;
template <>
inline constexpr DType kDTypeOf<int32_t> = DType::kInt32;
template <>
inline constexpr DType kDTypeOf<int64_t> = DType::kInt64;

inline constexpr float kFp8E4m3Max = 448.0f;

// Exact: every BF16 value is an F32 value; NaN payloads move over unchanged.
constexpr float bf16_to_f32(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// Round to nearest even; overflow gives infinity; NaN stays NaN (made quiet).
constexpr Bf16 f32_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return Bf16{static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return Bf16{static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// Exact, subnormals too; signalling NaNs become quiet, as the processor's own conversion does.
constexpr float f16_to_f32(F16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) {
    const uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | quiet);
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Round to nearest even; 65520 and more gives infinity; NaN stays NaN (made quiet).
constexpr F16 f32_to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return F16{static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  }
  if (magnitude >= 0x477ff000u) return F16{static_cast<uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {
    // Subnormal result: adding 0.5 leaves the value in units of 2^-24 in the low mantissa bits, rounded.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return F16{static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return F16{static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13))};
}

// Exact; 0x7f and 0xff are NaN.
constexpr float fp8_e4m3_to_f32(Fp8E4m3 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x80u) << 24;
  const uint32_t exponent = (x.bits >> 3) & 0xfu;
  const uint32_t mantissa = x.bits & 0x7u;
  if ((x.bits & 0x7fu) == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
}

// Round to nearest even, saturating: beyond ±448, infinities included, gives ±448. NaN gives 0x7f.
constexpr Fp8E4m3 f32_to_fp8_e4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return Fp8E4m3{0x7f};
  if (magnitude >= 0x43e00000u) return Fp8E4m3{static_cast<uint8_t>(sign | 0x7eu)};
  if (magnitude < 0x3c800000u) {
    // Below 2^-6: adding 2^14 leaves the value in units of 2^-9 in the low mantissa bits, rounded.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return Fp8E4m3{static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u))};
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return Fp8E4m3{static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)))};
}

}  // namespace fathom
