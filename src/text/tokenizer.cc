// Byte-level BPE through the bridge to Hugging Face tokenizers; special tokens only where trusted.
#include "text/tokenizer.h"

#include <fathom_bridge/src/lib.rs.h>
#include <rust/cxx.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "text/utf8.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint8_t kKnown = 1, kAdded = 2, kSpecial = 4;  // flags of bridge::TokenTable

rust::Slice<const uint8_t> as_slice(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::vector<int32_t> as_ids(const rust::Vec<uint32_t>& ids) { return {ids.begin(), ids.end()}; }

class BridgedCheck final : public bridge::EncodeCheck {
 public:
  explicit BridgedCheck(const fathom::EncodeCheck& check) : check_(check) {}
  bool may_go_on(size_t num_tokens) const noexcept override {
    if (check_) status_ = check_(num_tokens);
    return status_.ok();
  }
  const Status& status() const { return status_; }

 private:
  const fathom::EncodeCheck& check_;
  mutable Status status_;
};

// The one place where an error of the bridge, which arrives as an exception, becomes a Status.
template <typename Call>
Result<std::vector<int32_t>> encode_by(std::string_view text, const EncodeCheck& check, Call call) {
  if (text.size() > kEncodeBytesMax) {
    return invalid_argument("text of {} bytes; the limit is {}", text.size(), kEncodeBytesMax);
  }
  const BridgedCheck bridged(check);
  try {
    return as_ids(call(bridged));
  } catch (const rust::Error& error) {
    if (!bridged.status().ok()) return bridged.status();
    return make_status(StatusCode::kInternal, "tokenizer: {}", error.what());
  }
}

struct Config {
  std::vector<std::pair<std::string, std::string>> named_tokens;
  std::optional<bool> add_bos;
  std::string tokenizer_class;
};

// A special token is written as its text or as an object with "content".
std::optional<std::string> token_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object()) {
    const auto content = value.find("content");
    if (content != value.end() && content->is_string()) return content->get<std::string>();
  }
  return std::nullopt;
}

Result<Config> parse_config(const std::string& text) {
  Config config;
  if (text.empty()) return config;
  // The parser would take it for the end of the text.
  if (text.find('\0') != std::string::npos) return invalid_argument("holds a NUL byte");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return invalid_argument("not valid JSON");
  if (!json.is_object()) return invalid_argument("not a JSON object");
  for (const char* name : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
    const auto member = json.find(name);
    if (member == json.end() || member->is_null()) continue;
    const auto content = token_text(*member);
    if (!content) return invalid_argument("{}: expected a string or an object with \"content\"", name);
    config.named_tokens.emplace_back(name, *content);
  }
  if (const auto add_bos = json.find("add_bos_token"); add_bos != json.end() && add_bos->is_boolean()) {
    config.add_bos = add_bos->get<bool>();
  }
  if (const auto name = json.find("tokenizer_class"); name != json.end() && name->is_string()) {
    config.tokenizer_class = name->get<std::string>();
  }
  return config;
}

}  // namespace

struct Tokenizer::Impl {
  rust::Box<bridge::TokenizerCore> core;
  rust::Vec<uint8_t> token_bytes;
  rust::Vec<uint32_t> token_offsets;
  rust::Vec<uint8_t> token_flags;
  std::vector<std::string> added_tokens;
  std::unordered_map<std::string, int32_t> added_ids;
  std::vector<std::pair<std::string, std::string>> named_tokens;
  std::optional<int32_t> bos_id, eos_id, pad_id;
  bool add_bos = false;

  bool has_flag(int32_t id, uint8_t flag) const {
    return id >= 0 && static_cast<size_t>(id) < token_flags.size() &&
           (token_flags[static_cast<size_t>(id)] & flag) != 0;
  }
  // A special token that is no added token may still be one whole entry of the vocabulary.
  std::optional<int32_t> id_of(const std::string& content) const {
    if (const auto it = added_ids.find(content); it != added_ids.end()) return it->second;
    const auto ids = core->encode_trusted(as_slice(content), BridgedCheck({}));
    if (ids.size() == 1) return static_cast<int32_t>(ids[0]);
    return std::nullopt;
  }
  void apply(Config config) {
    named_tokens = std::move(config.named_tokens);
    for (const auto& [name, content] : named_tokens) {
      if (name == "bos_token") bos_id = id_of(content);
      if (name == "eos_token") eos_id = id_of(content);
      if (name == "pad_token") pad_id = id_of(content);
    }
    const auto frame = core->encode_empty();
    const bool framed = bos_id && !frame.empty() && static_cast<int32_t>(frame[0]) == *bos_id;
    const bool llama = config.tokenizer_class.starts_with("LlamaTokenizer");
    add_bos = bos_id && config.add_bos.value_or(llama || framed);
  }
};

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<Tokenizer> Tokenizer::load(const TextAssets& assets) {
  auto config = parse_config(assets.tokenizer_config_json);
  if (!config.ok()) return config.status().with_context(assets.source + "/tokenizer_config.json");
  const bool is_tiktoken = assets.tokenizer_json.empty() && !assets.tiktoken_model.empty();
  try {
    auto core = is_tiktoken ? bridge::tokenizer_load_tiktoken(as_slice(assets.tiktoken_model),
                                                              as_slice(assets.tokenizer_config_json))
                            : bridge::tokenizer_load(as_slice(assets.tokenizer_json));
    auto table = core->token_table();
    auto impl = std::make_shared<Impl>(Impl{.core = std::move(core),
                                            .token_bytes = std::move(table.bytes),
                                            .token_offsets = std::move(table.offsets),
                                            .token_flags = std::move(table.flags)});
    for (const auto& token : impl->core->added_tokens()) {
      impl->added_tokens.emplace_back(token.content);
      impl->added_ids.emplace(std::string(token.content), static_cast<int32_t>(token.id));
    }
    impl->apply(std::move(config).value());
    return Tokenizer(std::move(impl));
  } catch (const rust::Error& error) {
    const char* file = is_tiktoken ? "tiktoken.model" : "tokenizer.json";
    return invalid_argument("{}/{}: {}", assets.source, file, error.what());
  }
}

Result<Tokenizer> Tokenizer::load_folder(const std::string& folder) {
  ASSIGN_OR_RETURN(const TextAssets assets, read_text_assets(folder));
  return load(assets);
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, const EncodeCheck& check) const {
  return encode_by(text, check, [&](const bridge::EncodeCheck& bridged) {
    return impl_->core->encode_plain(as_slice(text), bridged);
  });
}

Result<std::vector<int32_t>> Tokenizer::encode_with_special(std::string_view text,
                                                            const EncodeCheck& check) const {
  return encode_by(text, check, [&](const bridge::EncodeCheck& bridged) {
    return impl_->core->encode_trusted(as_slice(text), bridged);
  });
}

Result<std::vector<int32_t>> Tokenizer::encode_marked(std::string_view text, std::string_view sentinel,
                                                      const EncodeCheck& check) const {
  return encode_by(text, check, [&](const bridge::EncodeCheck& bridged) {
    return impl_->core->encode_marked(as_slice(text), as_slice(sentinel), bridged);
  });
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (skip_special_tokens && is_special(id)) continue;
    bytes.append(token_bytes(id));
  }
  return replace_invalid_utf8(bytes);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (!is_known(id)) return {};
  const auto i = static_cast<size_t>(id);
  const uint32_t begin = impl_->token_offsets[i];
  return {reinterpret_cast<const char*>(impl_->token_bytes.data()) + begin,
          impl_->token_offsets[i + 1] - begin};
}

size_t Tokenizer::longest_token_bytes() const {
  size_t longest = 1;
  for (int32_t id = 0; id < vocab_size(); ++id) longest = std::max(longest, token_bytes(id).size());
  return longest;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->token_flags.size()); }
bool Tokenizer::is_known(int32_t id) const { return impl_->has_flag(id, kKnown); }
bool Tokenizer::is_added(int32_t id) const { return impl_->has_flag(id, kAdded); }
bool Tokenizer::is_special(int32_t id) const { return impl_->has_flag(id, kSpecial); }

std::optional<int32_t> Tokenizer::added_token_id(std::string_view content) const {
  const auto it = impl_->added_ids.find(std::string(content));
  if (it == impl_->added_ids.end()) return std::nullopt;
  return it->second;
}
const std::vector<std::string>& Tokenizer::added_tokens() const { return impl_->added_tokens; }

std::optional<int32_t> Tokenizer::bos_id() const { return impl_->bos_id; }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->eos_id; }
std::optional<int32_t> Tokenizer::pad_id() const { return impl_->pad_id; }
const std::vector<std::pair<std::string, std::string>>& Tokenizer::named_tokens() const {
  return impl_->named_tokens;
}
bool Tokenizer::add_bos() const { return impl_->add_bos; }

}  // namespace fathom
