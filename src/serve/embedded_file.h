// Files linked into the binary (cmake/embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace fathom {

struct EmbeddedFile {
  std::string_view name;
  std::string_view bytes;
};

// The built-in model: an ordinary Hugging Face folder, models/demo.
std::span<const EmbeddedFile> demo_model_files();

}  // namespace fathom
