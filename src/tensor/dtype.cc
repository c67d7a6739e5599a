// The table of element types: width and safetensors name.
#include "tensor/dtype.h"

#include <array>

#include "base/check.h"

namespace fathom {
namespace {

struct DTypeRow {
  DType dtype;
  int bits;
  std::string_view name;
};

constexpr std::array<DTypeRow, 16> kRows = {{
    {DType::kF64, 64, "F64"},
    {DType::kF32, 32, "F32"},
    {DType::kBf16, 16, "BF16"},
    {DType::kF16, 16, "F16"},
    {DType::kFp8E4m3, 8, "F8_E4M3"},
    {DType::kFp8E5m2, 8, "F8_E5M2"},
    {DType::kInt64, 64, "I64"},
    {DType::kInt32, 32, "I32"},
    {DType::kInt16, 16, "I16"},
    {DType::kInt8, 8, "I8"},
    {DType::kInt4, 4, "I4"},
    {DType::kUint64, 64, "U64"},
    {DType::kUint32, 32, "U32"},
    {DType::kUint16, 16, "U16"},
    {DType::kUint8, 8, "U8"},
    {DType::kBool, 8, "BOOL"},
}};

const DTypeRow& row_of(DType dtype) {
  const auto idx = static_cast<size_t>(dtype);
  CHECK(idx < kRows.size() && kRows[idx].dtype == dtype);
  return kRows[idx];
}

}  // namespace

int dtype_bits(DType dtype) { return row_of(dtype).bits; }

int64_t dtype_bytes(DType dtype, int64_t count) { return (count * row_of(dtype).bits + 7) / 8; }

std::string_view dtype_name(DType dtype) { return row_of(dtype).name; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DTypeRow& row : kRows) {
    if (row.name == name && row.dtype != DType::kInt4) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace fathom
