// Fuzzes what users send to the tokenizer and the chat template: any bytes as text and as messages.
// Holds: no crash, no added token out of user text, decoding restores the text.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace fathom {
namespace {

struct Fixture {
  TextAssets assets;
  Tokenizer tokenizer;
  ChatTemplate published;

  static Fixture load() {
    TextAssets assets =
        read_text_assets(std::string(FATHOM_SOURCE_DIR) + "/tests/fixtures/tokenizer/small").value();
    Tokenizer tokenizer = Tokenizer::load(assets).value();
    ChatTemplate published = ChatTemplate::load(assets, tokenizer).value();
    return {std::move(assets), std::move(tokenizer), std::move(published)};
  }
};

void check_plain(const Fixture& fixture, std::string_view bytes) {
  const auto ids = fixture.tokenizer.encode(bytes).value();
  for (const int32_t id : ids) CHECK(!fixture.tokenizer.is_added(id));
  CHECK(fixture.tokenizer.decode(ids, false) == replace_invalid_utf8(bytes));
  const auto trusted = fixture.tokenizer.encode_with_special(bytes).value();
  CHECK(fixture.tokenizer.decode(trusted, false) == replace_invalid_utf8(bytes));
}

// The bytes up to the first 0xFF are a system message, the rest a user message; both also as tools.
void check_messages(const Fixture& fixture, std::string_view bytes) {
  const size_t cut = std::min(bytes.find('\xFF'), bytes.size());
  const std::string system(bytes.substr(0, cut));
  const std::string user(bytes.substr(cut));
  const std::vector<ChatMessage> messages = {{.role = "system", .content = system},
                                             {.role = "user", .content = user}};
  const auto prompt = fixture.published.render(messages, {});
  CHECK(prompt.ok());
  int num_added = 0;
  for (const int32_t id : prompt->ids) num_added += fixture.tokenizer.is_added(id);
  CHECK(num_added == 3);  // <bos>, <｜User｜>, <｜Assistant｜>
  CHECK(fixture.tokenizer.decode(prompt->ids, false) == prompt->text);

  ChatTemplateOptions options;
  options.tools_json = system;
  options.extra_json = user;
  static_cast<void>(fixture.published.render(messages, options).ok());
}

}  // namespace
}  // namespace fathom

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fathom::Fixture fixture = fathom::Fixture::load();
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  fathom::check_plain(fixture, bytes);
  fathom::check_messages(fixture, bytes);
  return 0;
}
