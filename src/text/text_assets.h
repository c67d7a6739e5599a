// The files of a Hugging Face folder that text/ needs, as bytes: read from disk here, or taken from a model
// that is built into the binary.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"

namespace fathom {

struct TextAssets {
  std::string source;                 // the folder, or a label; put before every error message
  std::string tokenizer_json;         // this or the next is required
  std::string tiktoken_model;         // what Moonlight and Kimi-K2 have in its place
  std::string tokenizer_config_json;  // empty: no special ids, no BOS habit, no chat template
  std::string chat_template_jinja;    // empty: the one in tokenizer_config.json
};

// A larger file is refused unread.
inline constexpr size_t kAssetBytesMax = size_t{256} << 20;

// Reads tokenizer.json or else tiktoken.model, and tokenizer_config.json and chat_template.jinja where they
// exist.
Result<TextAssets> read_text_assets(const std::string& folder);
// The same through `read_optional`, which gives a file's bytes, or nothing when there is no such file.
using TextFileReader = std::function<Result<std::string>(const std::string& name)>;
Result<TextAssets> read_text_assets(const std::string& source, const TextFileReader& read_optional);

}  // namespace fathom
