// Writing safetensors files: the header from a list of tensors, then their bytes in that order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"

namespace fathom {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  int64_t size_bytes() const;
};

// Length prefix and header of a file that holds these tensors one after the other. Padded with spaces to a
// multiple of 64 bytes, so that data starts aligned.
std::string safetensors_header(std::span<const TensorSpec> tensors);

// A file that appears under its name only when complete: it is written beside as NAME.tmp, synced and
// renamed.
class FileWriter {
 public:
  // Refuses to replace a file that is there.
  static Result<FileWriter> create(const std::string& path);
  ~FileWriter();
  FileWriter(FileWriter&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  FileWriter& operator=(FileWriter&&) = delete;

  Status append(std::span<const std::byte> bytes);
  Status append(std::string_view text) {
    return append({reinterpret_cast<const std::byte*>(text.data()), text.size()});
  }
  // After this the file is there and on disk; without it nothing is left.
  Status finish();

 private:
  FileWriter(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status failed(std::string_view what) const;

  std::string path_;
  int fd_ = -1;
};

}  // namespace fathom
