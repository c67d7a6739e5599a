// Where the files of a model come from: a folder on disk, or bytes linked into the binary. Everything that
// reads a model (config, tokenizer, safetensors) goes through this, so a built-in model needs no second path.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom {

// One file's bytes, readable as long as the object lives. Files of a folder are memory-mapped, so pages come
// from disk when first touched. Immutable: any thread may read.
class ModelFile {
 public:
  virtual ~ModelFile() = default;
  std::span<const std::byte> bytes() const { return bytes_; }
  // A hint that this part of bytes() will not be read again soon: its pages stop counting as the process's
  // memory. Reading it again is still right, and reads it from disk anew.
  virtual void drop_pages(std::span<const std::byte>) const {}

 protected:
  explicit ModelFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

class ModelSource {
 public:
  virtual ~ModelSource() = default;
  // For messages: the folder's path, or the built-in model's name.
  virtual const std::string& label() const = 0;
  // The name of everything there, sorted.
  virtual std::vector<std::string> file_names() const = 0;
  // Whatever has the name: a broken link or a folder too, which open() then names instead of passing it over.
  virtual bool contains(std::string_view name) const = 0;
  // kNotFound when nothing has the name; kInvalidArgument for a name with a path in it and for what is no
  // file; messages name it.
  virtual Result<std::shared_ptr<const ModelFile>> open(std::string_view name) const = 0;

  // The whole file as text; kResourceExhausted when it is longer than max_bytes.
  Result<std::string> read_text(std::string_view name, size_t max_bytes = kTextFileBytesMax) const;

  static constexpr size_t kTextFileBytesMax = size_t{256} << 20;
};

// kNotFound when the path is no folder. Files are looked up when opened; symbolic links are followed.
Result<std::unique_ptr<ModelSource>> open_model_folder(const std::string& path);

struct NamedBytes {
  std::string name;
  std::span<const std::byte> bytes;  // must outlive the source and every file opened from it
};
std::unique_ptr<ModelSource> make_memory_model_source(std::string label, std::vector<NamedBytes> files);

// `text` in single quotes, shortened, with control characters escaped: for names that come from files.
std::string quoted_name(std::string_view text);

}  // namespace fathom
