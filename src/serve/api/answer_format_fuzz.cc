// Fuzzes the way from token ids to the bytes of a stream: any ids, options, stop string and cuts into chunks.
// Holds: every payload is one line of JSON in valid UTF-8, and the stream put together is the whole answer.
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "base/check.h"
#include "serve/api/answer_format.h"
#include "serve/api/json.h"
#include "text/output_pipeline.h"
#include "text/utf8.h"

namespace fathom::serve {
namespace {

const Tokenizer& fixture_tokenizer() {
  static const Tokenizer tokenizer =
      Tokenizer::load_folder(std::string(FATHOM_SOURCE_DIR) + "/tests/fixtures/tokenizer/small").value();
  return tokenizer;
}

// Byte 0: options. Byte 1: length of a stop string, which follows. The rest: three bytes a token, the id and
// whether a chunk is sent after it.
struct Case {
  uint8_t flags = 0;
  OutputOptions output;
  AnswerFormatOptions format;
  std::vector<int32_t> ids;
  std::vector<bool> cuts;

  Case(const uint8_t* data, size_t size) {
    size_t at = 0;
    const auto next = [&] { return at < size ? data[at++] : uint8_t{0}; };
    flags = next();
    output.parse_reasoning = format.reasoning = (flags & 1) != 0;
    output.starts_in_reasoning = (flags & 2) != 0;
    output.skip_special_tokens = (flags & 4) != 0;
    format.logprobs = (flags & 8) != 0;
    format.include_usage = (flags & 16) != 0;
    format.return_token_ids = true;
    std::string stop;
    for (size_t left = next() % 8u; left > 0; --left) stop.push_back(static_cast<char>(next()));
    if (!stop.empty()) output.stop.push_back(replace_invalid_utf8(stop));
    while (at < size) {
      const int32_t high = next();
      ids.push_back((high << 8 | next()) % fixture_tokenizer().vocab_size());
      cuts.push_back(next() % 2 != 0);
    }
  }
};

// What a client gathers from the payloads of one choice.
struct Gathered {
  std::string reasoning, content, finish_reason;
  std::vector<int32_t> ids;

  void take(const std::string& payload) {
    CHECK(is_valid_utf8(payload) && payload.find('\n') == std::string::npos);
    CHECK(finish_reason.empty());
    const Json json = Json::parse(payload);
    const Json& choice = json.at("choices").at(0);
    const Json& part = choice.contains("delta") ? choice["delta"] : choice;
    reasoning += part.value("reasoning_content", "");
    content += part.value(choice.contains("delta") ? "content" : "text", "");
    for (const Json& id : choice.at("token_ids")) ids.push_back(id.get<int32_t>());
    if (!choice.at("finish_reason").is_null()) finish_reason = choice["finish_reason"].get<std::string>();
  }
};

void take_events(std::vector<OutputEvent> events, AnswerPart& part, std::string& finish_reason) {
  for (OutputEvent& event : events) {
    if (event.kind == OutputEvent::Kind::kReasoning) part.reasoning += event.text;
    if (event.kind == OutputEvent::Kind::kContent) part.content += event.text;
    if (event.kind == OutputEvent::Kind::kFinish) finish_reason = event.finish_reason;
    for (const OutputToken& token : event.tokens) {
      TokenLogprobs logprobs;
      logprobs.sampled = -std::numeric_limits<float>::infinity();
      logprobs.top.emplace_back(token.id, -0.5f);
      part.tokens.push_back(
          {.event = {.token = token.id, .logprobs = logprobs},
           .text_offset = token.text_offset,
           .part = token.is_reasoning ? AnswerToken::Part::kReasoning : AnswerToken::Part::kContent});
    }
  }
}

void check_stream(const Case& c, const AnswerFormat& format) {
  const AnswerHead head{.id = "x", .created = 1, .model = "m", .system_fingerprint = "f"};
  OutputPipeline pipeline(fixture_tokenizer(), c.output);
  ChoiceAnswer streamed, whole;
  Gathered client;
  const auto take = [&](const std::vector<OutputEvent>& events) {
    take_events(events, streamed.part, streamed.finish_reason);
    take_events(events, whole.part, whole.finish_reason);
  };
  const auto send = [&] {
    if (const std::optional<ChoiceAnswer> reasoning = take_reasoning(streamed)) {
      client.take(format.chunk(head, *reasoning, nullptr));
      streamed.started = true;
    }
    CHECK(streamed.part.reasoning.empty() || streamed.part.content.empty());
    client.take(format.chunk(head, streamed, nullptr));
    streamed.started = true;
    streamed.part = AnswerPart();
  };
  for (size_t i = 0; i < c.ids.size() && !pipeline.finished(); ++i) {
    take(pipeline.push(c.ids[i]));
    if (c.cuts[i] && !pipeline.finished()) send();
  }
  if (!pipeline.finished()) take(pipeline.finish("length"));
  send();
  CHECK(client.reasoning == whole.part.reasoning && client.content == whole.part.content);
  CHECK(client.finish_reason == whole.finish_reason);
  CHECK(static_cast<int64_t>(client.ids.size()) == pipeline.num_completion_tokens());
  CHECK(std::equal(client.ids.begin(), client.ids.end(), c.ids.begin()));

  const Json body = Json::parse(format.body(head, {&whole}, {{1}}, Usage{}));
  const Json& choice = body.at("choices").at(0);
  CHECK((choice.contains("message") ? choice["message"]["content"] : choice["text"]) == client.content);
}

}  // namespace
}  // namespace fathom::serve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fathom::serve;
  const Case c(data, size);
  if (c.format.reasoning) {
    check_stream(c, *make_chat_format(fixture_tokenizer(), c.format));
  } else {
    check_stream(c, *make_chat_format(fixture_tokenizer(), c.format));
    check_stream(c, *make_completion_format(fixture_tokenizer(), c.format));
  }
  return 0;
}
