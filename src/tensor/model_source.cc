// Model folders by open, fstat and mmap; model bytes in memory by a sorted list.
#include "tensor/model_source.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace fathom {
namespace {

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

class MappedFile final : public ModelFile {
 public:
  explicit MappedFile(std::span<const std::byte> mapping) : ModelFile(mapping) {}
  ~MappedFile() override {
    if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  void drop_pages(std::span<const std::byte> range) const override {
    // Whole pages inside the range only: a page shared with a neighbour may be in use.
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = (reinterpret_cast<uintptr_t>(range.data()) + page - 1) & ~(page - 1);
    const auto end = (reinterpret_cast<uintptr_t>(range.data()) + range.size()) & ~(page - 1);
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
};

class MemoryFile final : public ModelFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes) : ModelFile(bytes) {}
};

class FolderSource final : public ModelSource {
 public:
  explicit FolderSource(std::string path) : path_(std::move(path)) {}

  const std::string& label() const override { return path_; }

  std::vector<std::string> file_names() const override {
    std::vector<std::string> names;
    DIR* folder = opendir(path_.c_str());
    if (folder == nullptr) return names;
    while (const dirent* entry = readdir(folder)) {
      if (is_plain_name(entry->d_name)) names.emplace_back(entry->d_name);
    }
    closedir(folder);
    std::sort(names.begin(), names.end());
    return names;
  }

  bool contains(std::string_view name) const override {
    struct stat info{};
    return is_plain_name(name) && lstat(full_path(name).c_str(), &info) == 0;
  }

  Result<std::shared_ptr<const ModelFile>> open(std::string_view name) const override {
    if (!is_plain_name(name)) return invalid_argument("{}: not a plain file name", quoted_name(name));
    const std::string path = full_path(name);
    // Non-blocking, so that a FIFO put there cannot hang the start.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
      if (errno == ENOENT && contains(name)) return invalid_argument("{}: a link to nothing", path);
      // Anything but a machine that ran short is a wrong folder: not permitted, a broken link.
      const bool short_of = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EIO;
      const auto code = errno == ENOENT ? StatusCode::kNotFound
                        : short_of      ? StatusCode::kFailedPrecondition
                                        : StatusCode::kInvalidArgument;
      return make_status(code, "{}: {}", path, std::strerror(errno));
    }
    auto file = map(fd, path);
    ::close(fd);
    return file;
  }

 private:
  std::string full_path(std::string_view name) const { return path_ + "/" + std::string(name); }

  static Result<std::shared_ptr<const ModelFile>> map(int fd, const std::string& path) {
    struct stat info{};
    if (fstat(fd, &info) != 0)
      return make_status(StatusCode::kFailedPrecondition, "{}: {}", path, std::strerror(errno));
    if (!S_ISREG(info.st_mode)) return invalid_argument("{}: not a regular file", path);
    const auto size = static_cast<size_t>(info.st_size);
    if (size == 0)
      return std::shared_ptr<const ModelFile>(std::make_shared<MemoryFile>(std::span<const std::byte>()));
    void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED)
      return make_status(StatusCode::kFailedPrecondition, "{}: mmap: {}", path, std::strerror(errno));
    return std::shared_ptr<const ModelFile>(
        std::make_shared<MappedFile>(std::span(static_cast<const std::byte*>(data), size)));
  }

  const std::string path_;
};

class MemorySource final : public ModelSource {
 public:
  MemorySource(std::string label, std::vector<NamedBytes> files)
      : label_(std::move(label)), files_(std::move(files)) {
    std::sort(files_.begin(), files_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  }

  const std::string& label() const override { return label_; }

  std::vector<std::string> file_names() const override {
    std::vector<std::string> names;
    for (const NamedBytes& file : files_) names.push_back(file.name);
    return names;
  }

  bool contains(std::string_view name) const override { return find(name) != nullptr; }

  Result<std::shared_ptr<const ModelFile>> open(std::string_view name) const override {
    if (!is_plain_name(name)) return invalid_argument("{}: not a plain file name", quoted_name(name));
    const NamedBytes* file = find(name);
    if (file == nullptr) return make_status(StatusCode::kNotFound, "{}/{}: no such file", label_, name);
    return std::shared_ptr<const ModelFile>(std::make_shared<MemoryFile>(file->bytes));
  }

 private:
  const NamedBytes* find(std::string_view name) const {
    const auto at =
        std::lower_bound(files_.begin(), files_.end(), name,
                         [](const NamedBytes& file, std::string_view key) { return file.name < key; });
    return at != files_.end() && at->name == name ? &*at : nullptr;
  }

  const std::string label_;
  std::vector<NamedBytes> files_;
};

}  // namespace

Result<std::string> ModelSource::read_text(std::string_view name, size_t max_bytes) const {
  ASSIGN_OR_RETURN(const std::shared_ptr<const ModelFile> file, open(name));
  if (file->bytes().size() > max_bytes) {
    return make_status(StatusCode::kResourceExhausted,
                       "{}/{}: {} bytes, more than the {} that are sane for this file", label(), name,
                       file->bytes().size(), max_bytes);
  }
  return std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
}

Result<std::unique_ptr<ModelSource>> open_model_folder(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0)
    return make_status(StatusCode::kNotFound, "{}: {}", path, std::strerror(errno));
  if (!S_ISDIR(info.st_mode)) return invalid_argument("{}: not a folder", path);
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  return std::unique_ptr<ModelSource>(std::make_unique<FolderSource>(std::move(trimmed)));
}

std::unique_ptr<ModelSource> make_memory_model_source(std::string label, std::vector<NamedBytes> files) {
  return std::make_unique<MemorySource>(std::move(label), std::move(files));
}

std::string quoted_name(std::string_view text) {
  constexpr size_t kShownBytesMax = 160;
  std::string out = "'";
  for (const char c : text.substr(0, kShownBytesMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  out += text.size() > kShownBytesMax ? "…'" : "'";
  return out;
}

}  // namespace fathom
