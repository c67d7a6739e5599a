// Fuzzes the output pipeline with any sequence of token ids, options and stop strings.
// Holds: valid UTF-8, one finish, exact counts, and the same message when pieces are flushed in one go.
#include <algorithm>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "text/output_pipeline.h"
#include "text/utf8.h"

namespace fathom {
namespace {

const Tokenizer& fixture_tokenizer() {
  static const Tokenizer tokenizer =
      Tokenizer::load_folder(std::string(FATHOM_SOURCE_DIR) + "/tests/fixtures/tokenizer/small").value();
  return tokenizer;
}

struct Case {
  OutputOptions options;
  std::vector<int32_t> ids;
};

// Byte 0: options. Bytes 1 and 2: lengths of two stop strings, which follow. The rest: ids, two bytes each.
Case parse_case(const uint8_t* data, size_t size) {
  Case c;
  size_t at = 0;
  const auto next = [&] { return at < size ? data[at++] : uint8_t{0}; };
  const uint8_t flags = next();
  c.options.parse_reasoning = (flags & 1) != 0;
  c.options.starts_in_reasoning = (flags & 2) != 0;
  c.options.skip_special_tokens = (flags & 4) != 0;
  const size_t lengths[2] = {next() % 16u, next() % 16u};
  for (const size_t length : lengths) {
    std::string stop;
    for (size_t i = 0; i < length; ++i) stop.push_back(static_cast<char>(next()));
    c.options.stop.push_back(replace_invalid_utf8(stop));
  }
  while (at < size) {
    const int32_t high = next();
    c.ids.push_back((high << 8 | next()) % (fixture_tokenizer().vocab_size() + 8));
  }
  return c;
}

// What the stages give for the whole text at once.
void check_whole(const Case& c, const std::string& given_reasoning, const std::string& given_content) {
  const std::string all = fixture_tokenizer().decode(c.ids, c.options.skip_special_tokens);
  StopMatcher matcher(c.options.stop);
  std::string kept, reasoning, content;
  matcher.push(all, kept);
  if (!matcher.matched()) matcher.flush(kept);
  if (c.options.parse_reasoning) {
    ReasoningParser parser(c.options.starts_in_reasoning);
    parser.push(kept, reasoning, content);
    parser.flush(reasoning, content);
  } else {
    content = kept;
  }
  CHECK(given_reasoning == reasoning);
  CHECK(given_content == content);
}

}  // namespace
}  // namespace fathom

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fathom;
  const Case c = parse_case(data, size);
  OutputPipeline pipeline(fixture_tokenizer(), c.options);
  int num_finishes = 0;
  int64_t num_tokens = 0;
  std::string reasoning, content;
  const auto look = [&](const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) {
      CHECK(num_finishes == 0);
      CHECK(is_valid_utf8(event.text));
      if (event.kind == OutputEvent::Kind::kReasoning) reasoning += event.text;
      if (event.kind == OutputEvent::Kind::kContent) content += event.text;
      num_finishes += event.kind == OutputEvent::Kind::kFinish;
      num_tokens += static_cast<int64_t>(event.tokens.size());
    }
  };
  for (const int32_t id : c.ids) look(pipeline.push(id));
  look(pipeline.finish("length"));
  CHECK(num_finishes == 1);
  CHECK(num_tokens == pipeline.num_completion_tokens());
  CHECK(pipeline.num_reasoning_tokens() <= num_tokens);
  check_whole(c, reasoning, content);
  return 0;
}
