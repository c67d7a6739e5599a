// A folder of a model that is there whole or not at all: written beside its place under another name, or
// inside an empty one that is there, and moved when complete.
#pragma once

#include <string>

#include "base/status.h"

namespace fathom {

class OutputFolder {
 public:
  // `path` may be absent, or an empty folder. kInvalidArgument when it is anything else, or when PATH.partial
  // or PATH/.partial is there: another conversion writes it, or one that was killed left it behind; which of
  // the two, its lock tells. kFailedPrecondition when the system does not let it be made.
  static Result<OutputFolder> create(const std::string& path);
  OutputFolder(OutputFolder&& other) noexcept;
  OutputFolder& operator=(OutputFolder&&) = delete;
  // Removes what is unfinished.
  ~OutputFolder();

  // Where to write until finish() gives it the name asked for.
  const std::string& work_path() const { return work_path_; }
  Status finish();

 private:
  OutputFolder(std::string path, std::string work_path, int lock_fd)
      : path_(std::move(path)), work_path_(std::move(work_path)), lock_fd_(lock_fd) {}

  std::string path_;
  std::string work_path_;  // empty: finished
  int lock_fd_ = -1;       // holds the work path's lock; -1: moved from, or the file system has no locks
};

}  // namespace fathom
