// std::filesystem, with its errors sorted into the caller's and the system's.
#include "model/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

namespace fathom {
namespace fs = std::filesystem;
namespace {

// A path that cannot be is the caller's mistake; what the system forbids or has no room for is not.
Status failed(const std::string& path, const std::error_code& error) {
  const bool wrong_path = error == std::errc::too_many_symbolic_link_levels ||
                          error == std::errc::not_a_directory || error == std::errc::filename_too_long ||
                          error == std::errc::invalid_argument || error == std::errc::file_exists;
  return make_status(wrong_path ? StatusCode::kInvalidArgument : StatusCode::kFailedPrecondition, "{}: {}",
                     path, error.message());
}

constexpr const char* kPartial = ".partial";
constexpr const char* kLast = "config.json";  // without it a folder is no model

// A descriptor with the folder's lock, which ends with its process however that ends; -1 with errno where it
// cannot be had.
int lock_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

Status taken(const fs::path& work_path) {
  const int fd = lock_folder(work_path);
  if (fd < 0 && errno == EWOULDBLOCK)
    return invalid_argument("{}: another conversion is writing it", work_path.string());
  if (fd >= 0) ::close(fd);
  return invalid_argument("{}: is there, left by a conversion that was cut off; remove it",
                          work_path.string());
}

// The folder's own place, without links and "." in the way; as given where nothing is yet.
Result<fs::path> place_of(const std::string& path) {
  fs::path place(path);
  while (!place.has_filename() && place.has_relative_path())
    place = place.parent_path();  // slashes at the end
  std::error_code error;
  const fs::file_status there = fs::status(place, error);
  if (there.type() == fs::file_type::none) return failed(path, error);
  if (fs::exists(there)) {
    if (!fs::is_directory(there)) return invalid_argument("{}: is there and is not a folder", path);
    if (fs::exists(place / kPartial, error)) return taken(place / kPartial);
    if (!fs::is_empty(place, error) || error) {
      return error ? failed(path, error) : invalid_argument("{}: is there and not empty", path);
    }
    place = fs::canonical(place, error);
    if (error) return failed(path, error);
  } else if (fs::is_symlink(fs::symlink_status(place, error))) {
    return invalid_argument("{}: is a link to nothing", path);
  }
  return place;
}

}  // namespace

Result<OutputFolder> OutputFolder::create(const std::string& path) {
  if (path.empty()) return invalid_argument("the folder to write has no name");
  ASSIGN_OR_RETURN(const fs::path place, place_of(path));
  std::error_code error;
  const bool there = fs::exists(place, error);
  // A folder that is there may be a file system of its own, may have rights of its own, or be the one that
  // its user stands in: it stays, and is written inside.
  const fs::path work_path = there ? place / kPartial : fs::path(place.string() + kPartial);
  if (!there && place.has_parent_path()) fs::create_directories(place.parent_path(), error);
  if (error) return failed(place.parent_path().string(), error);
  const bool made = fs::create_directory(work_path, error);
  if (error) return failed(work_path.string(), error);
  if (!made) return taken(work_path);
  return OutputFolder(place.string(), work_path.string(), lock_folder(work_path));
}

OutputFolder::OutputFolder(OutputFolder&& other) noexcept
    : path_(std::move(other.path_)),
      work_path_(std::exchange(other.work_path_, {})),
      lock_fd_(std::exchange(other.lock_fd_, -1)) {}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (!work_path_.empty()) fs::remove_all(work_path_, ignored);
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

Status OutputFolder::finish() {
  std::error_code error;
  if (fs::path(work_path_).filename() != kPartial) {
    fs::rename(work_path_, path_, error);
  } else {
    std::vector<fs::path> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(work_path_, error))
      names.push_back(entry.path().filename());
    std::stable_partition(names.begin(), names.end(), [](const fs::path& name) { return name != kLast; });
    for (const fs::path& name : names) {
      if (!error) fs::rename(fs::path(work_path_) / name, fs::path(path_) / name, error);
    }
    if (!error) fs::remove(work_path_, error);
  }
  if (error) return failed(path_, error);
  work_path_.clear();
  return ok_status();
}

}  // namespace fathom
