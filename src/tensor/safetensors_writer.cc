// Headers with nlohmann (names may need escapes), files with plain POSIX calls.
#include "tensor/safetensors_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace fathom {

int64_t TensorSpec::size_bytes() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return dtype_bytes(dtype, count);
}

std::string safetensors_header(std::span<const TensorSpec> tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = {{"format", "pt"}};  // other readers look for it
  int64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    const int64_t end = offset + tensor.size_bytes();
    header[tensor.name] = {
        {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string json = header.dump();
  json.append((64 - (json.size() + 8) % 64) % 64, ' ');
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(static_cast<uint64_t>(json.size()) >> (8 * i));
  return out + json;
}

Result<FileWriter> FileWriter::create(const std::string& path) {
  struct stat info{};
  if (lstat(path.c_str(), &info) == 0)
    return make_status(StatusCode::kFailedPrecondition, "{}: is there already", path);
  const int fd = ::open((path + ".tmp").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  FileWriter writer(path, fd);
  if (fd < 0) return writer.failed("cannot be written");
  return writer;
}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink((path_ + ".tmp").c_str());
}

Status FileWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    constexpr size_t kWriteBytesMax = size_t{1} << 30;  // write() takes at most 2 GiB
    const ssize_t written = ::write(fd_, bytes.data(), std::min(bytes.size(), kWriteBytesMax));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("write failed");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return ok_status();
}

Status FileWriter::finish() {
  if (::fsync(fd_) != 0) return failed("sync failed");
  if (std::rename((path_ + ".tmp").c_str(), path_.c_str()) != 0) return failed("rename failed");
  ::close(std::exchange(fd_, -1));
  return ok_status();
}

Status FileWriter::failed(std::string_view what) const {
  return make_status(StatusCode::kFailedPrecondition, "{}: {}: {}", path_, what, std::strerror(errno));
}

}  // namespace fathom
