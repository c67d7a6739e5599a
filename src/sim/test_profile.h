// For tests: the profiles of this repository, read from the source tree, and a hash of what a run wrote.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

#include "sim/profile.h"

namespace fathom::sim {

inline Result<std::string> read_file_for_test(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return make_status(StatusCode::kNotFound, "{}: cannot be read", path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

inline std::string source_path(const std::string& path) {
  return std::string(FATHOM_SOURCE_DIR) + "/" + path;
}

inline HardwareProfile test_profile(const std::string& name) {
  return load_profile(source_path("profiles/" + name + ".toml"), read_file_for_test).value();
}

inline uint64_t hash_bytes(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace fathom::sim
