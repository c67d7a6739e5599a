// Reads those files, with a limit on each.
#include "text/text_assets.h"

#include <filesystem>
#include <fstream>

namespace fathom {
namespace {

Result<std::string> read_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto size_bytes = std::filesystem::file_size(path, error);
  if (error) return invalid_argument("{}: {}", path.string(), error.message());
  if (size_bytes > kAssetBytesMax) {
    return invalid_argument("{}: {} bytes; the limit is {}", path.string(), size_bytes, kAssetBytesMax);
  }
  std::string bytes(size_bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(bytes.data(), static_cast<std::streamsize>(size_bytes))) {
    return invalid_argument("{}: cannot be read", path.string());
  }
  return bytes;
}

Result<std::string> read_optional(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::string();
  return read_file(path);
}

}  // namespace

Result<TextAssets> read_text_assets(const std::string& source, const TextFileReader& read_optional) {
  TextAssets assets;
  assets.source = source;
  ASSIGN_OR_RETURN(assets.tokenizer_json, read_optional("tokenizer.json"));
  if (assets.tokenizer_json.empty()) {
    ASSIGN_OR_RETURN(assets.tiktoken_model, read_optional("tiktoken.model"));
  }
  if (assets.tokenizer_json.empty() && assets.tiktoken_model.empty()) {
    return invalid_argument("{}/tokenizer.json: missing or empty, and there is no tiktoken.model", source);
  }
  ASSIGN_OR_RETURN(assets.tokenizer_config_json, read_optional("tokenizer_config.json"));
  ASSIGN_OR_RETURN(assets.chat_template_jinja, read_optional("chat_template.jinja"));
  return assets;
}

Result<TextAssets> read_text_assets(const std::string& folder) {
  const std::filesystem::path dir(folder);
  return read_text_assets(folder, [&](const std::string& name) { return read_optional(dir / name); });
}

}  // namespace fathom
