// Saving a quantised model, so that no start pays for quantising twice. The folder written is an ordinary
// model folder with quantization_config.quant_method "fathom"; docs/weight-formats.md specifies its tensors.
// Loading it gives the same packed weights, bit for bit, as quantising the original at load; in the layout of
// panels they are used where the file is mapped.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/thread_team.h"
#include "kernels/formats.h"
#include "tensor/model_source.h"

namespace fathom {

enum class ConvertLayout : uint8_t {
  kPanels,  // as the kernels read them
  kRows,    // codes and scales row by row: plain for other readers, packed again at every load
};

struct ConvertOptions {
  WeightFormat weights = WeightFormat::kInt8;  // BF16, FP8, INT8 or INT4
  ConvertLayout layout = ConvertLayout::kPanels;
  int64_t shard_bytes_max = int64_t{4} << 30;  // a larger tensor gets a shard of its own
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;  // of the output
};

struct ConvertReport {
  int num_shards = 0;
  int64_t weight_bytes = 0;               // of the shards' data
  std::vector<std::string> copied_files;  // tokenizer, templates, generation_config.json …
  std::vector<std::string> warnings;
};

// Writes `out_folder`, which must be absent or empty and appears when it is complete (output_folder.h).
// Errors are one line naming file, tensor and reason.
Result<ConvertReport> convert_model(const ModelSource& source, const std::string& out_folder,
                                    const ConvertOptions& options, ThreadTeam& team);

}  // namespace fathom
