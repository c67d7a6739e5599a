// Any text as config.json is either refused in one line or gives a config whose derived numbers can be
// computed.
#include <cmath>
#include <cstdlib>

#include "model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = fathom::parse_model_config("fuzz", text, text);
  if (!config.ok()) {
    if (config.status().message().find('\n') != std::string::npos) std::abort();
    return 0;
  }
  const fathom::ParameterCounts counts = fathom::count_parameters(*config);
  if (counts.total <= 0 || counts.active <= 0 || counts.active > counts.total) std::abort();
  for (const double freq : fathom::rope_inv_freq(*config)) {
    if (!std::isfinite(freq) || freq < 0) std::abort();
  }
  if (!(fathom::attention_softmax_scale(*config) > 0)) std::abort();
  if (fathom::kv_bytes_per_token(*config, fathom::DType::kF32) <= 0) std::abort();
  return 0;
}
