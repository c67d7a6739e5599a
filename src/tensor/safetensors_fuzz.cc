// Any bytes are either refused with a reason or give tensors that lie inside them.
#include <cstdlib>

#include "tensor/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto tensors = fathom::parse_safetensors("fuzz.safetensors", bytes);
  if (!tensors.ok()) {
    if (tensors.status().message().find('\n') != std::string::npos) std::abort();
    return 0;
  }
  for (const fathom::TensorInfo& tensor : *tensors) {
    const auto wanted = static_cast<size_t>(fathom::dtype_bytes(tensor.dtype, tensor.num_elements()));
    if (tensor.bytes.size() != wanted) std::abort();
    if (!tensor.bytes.empty() &&
        (tensor.bytes.data() < bytes.data() || tensor.bytes.data() + wanted > bytes.data() + size)) {
      std::abort();
    }
  }
  return 0;
}
