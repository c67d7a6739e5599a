// Safetensors checkpoints, mapped and read-only. Opening checks the whole of every header against the file it
// is in, so that afterwards every TensorInfo can be read without another test. Format: u64 little-endian
// header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/model_source.h"

namespace fathom {

// The limits of a header; real ones stay far below (DeepSeek-V3: 91,991 tensors in 163 shards).
inline constexpr size_t kSafetensorsHeaderBytesMax = size_t{100} << 20;
inline constexpr size_t kSafetensorsDimsMax = 8;
inline constexpr size_t kSafetensorsIndexBytesMax = size_t{100} << 20;

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::string file;                   // the shard's plain name
  std::span<const std::byte> bytes;   // exactly dtype_bytes(dtype, num_elements()); not necessarily aligned
  const ModelFile* source = nullptr;  // where bytes live; owned by the SafeTensors

  int64_t num_elements() const;
  std::string shape_text() const;  // "[576, 7168]"
};

// Reads one file's header and checks all of it: sizes, JSON, names unique, dtypes known, byte counts as
// shapes say, the tensors covering the data without gap or overlap. `file` is only for messages and
// TensorInfo::file. The result is in the header's order and points into `bytes`.
Result<std::vector<TensorInfo>> parse_safetensors(std::string_view file, std::span<const std::byte> bytes);

// All the tensors of a model folder: model.safetensors, else the shards that model.safetensors.index.json
// names, else every *.safetensors there is. Movable; immutable once open.
class SafeTensors {
 public:
  static Result<SafeTensors> open(const ModelSource& source);
  // False when the folder holds no safetensors file and no index: a config without its weights.
  static bool present(const ModelSource& source);

  // Sorted by name.
  std::span<const TensorInfo> tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;
  int num_files() const { return static_cast<int>(files_.size()); }
  // The file that says which tensors there are: the single one, the index, or "*.safetensors".
  const std::string& list_name() const { return list_name_; }
  // What the tensors' bytes point into.
  const std::vector<std::shared_ptr<const ModelFile>>& files() const { return files_; }
  // Tells the system that these bytes were used up (see ModelFile::drop_pages).
  static void drop_pages(const TensorInfo& tensor, std::span<const std::byte> part) {
    tensor.source->drop_pages(part);
  }

 private:
  SafeTensors() = default;
  Status add_file(const ModelSource& source, const std::string& name);

  std::vector<std::shared_ptr<const ModelFile>> files_;
  std::vector<TensorInfo> tensors_;
  std::string list_name_;
};

}  // namespace fathom
