// From tokens to events: the same message however the tokens are cut, whatever bytes they spell.
#include "text/output_pipeline.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "text/test_fixtures.h"
#include "text/utf8.h"

namespace fathom {
namespace {

using Ids = std::vector<int32_t>;
using Kind = OutputEvent::Kind;

struct Message {
  std::string reasoning, content, finish_reason;
  std::vector<OutputToken> tokens;
  int64_t num_completion_tokens = 0, num_reasoning_tokens = 0;
};

void add(Message& message, const std::vector<OutputEvent>& events) {
  for (const OutputEvent& event : events) {
    EXPECT_TRUE(message.finish_reason.empty()) << "an event after the finish";
    EXPECT_EQ(event.text.empty(), event.kind == Kind::kFinish);
    EXPECT_TRUE(is_valid_utf8(event.text));
    if (event.kind == Kind::kReasoning) message.reasoning += event.text;
    if (event.kind == Kind::kContent) message.content += event.text;
    if (event.kind == Kind::kFinish) message.finish_reason = event.finish_reason;
    message.tokens.insert(message.tokens.end(), event.tokens.begin(), event.tokens.end());
  }
}

Message run(const Ids& ids, const OutputOptions& options, std::string_view reason = "length") {
  OutputPipeline pipeline(small_tokenizer(), options);
  Message message;
  for (const int32_t id : ids) add(message, pipeline.push(id));
  add(message, pipeline.finish(reason));
  message.num_completion_tokens = pipeline.num_completion_tokens();
  message.num_reasoning_tokens = pipeline.num_reasoning_tokens();
  return message;
}

Ids trusted(std::string_view text) { return small_tokenizer().encode_with_special(text).value(); }

// One token per byte: the finest way a model can write a text.
Ids byte_ids(std::string_view text) {
  static const std::vector<int32_t> of_byte = [] {
    std::vector<int32_t> ids(256, -1);
    for (int32_t id = 0; id < small_tokenizer().vocab_size(); ++id) {
      const std::string_view bytes = small_tokenizer().token_bytes(id);
      if (bytes.size() == 1) ids[static_cast<uint8_t>(bytes[0])] = id;
    }
    return ids;
  }();
  Ids ids;
  for (const char byte : text) ids.push_back(of_byte[static_cast<uint8_t>(byte)]);
  return ids;
}

TEST(OutputPipeline, splits_reasoning_from_content) {
  const Ids ids = trusted("<think>\n7+6=13;\n</think>\n\nIt is 13.<｜end▁of▁sentence｜>");
  const Message message = run(ids, {.parse_reasoning = true}, "stop");
  EXPECT_EQ(message.reasoning, "7+6=13;");
  EXPECT_EQ(message.content, "It is 13.");
  EXPECT_EQ(message.finish_reason, "stop");
  EXPECT_EQ(message.num_completion_tokens, static_cast<int64_t>(ids.size()));
  EXPECT_EQ(message.num_reasoning_tokens, static_cast<int64_t>(trusted("<think>\n7+6=13;\n</think>").size()));
}

TEST(OutputPipeline, without_the_parser_tags_are_text) {
  const Message message = run(trusted("<think>a</think>b"), {});
  EXPECT_EQ(message.reasoning, "");
  EXPECT_EQ(message.content, "<think>a</think>b");
  EXPECT_EQ(message.num_reasoning_tokens, 0);
}

TEST(OutputPipeline, a_stop_string_ends_the_choice_and_does_not_leak) {
  OutputPipeline pipeline(small_tokenizer(), {.stop = {"STOP"}});
  Message message;
  for (const int32_t id : byte_ids("one STO two STOP three")) add(message, pipeline.push(id));
  EXPECT_TRUE(pipeline.finished());
  EXPECT_EQ(message.content, "one STO two ");
  EXPECT_EQ(message.finish_reason, "stop");
  EXPECT_EQ(pipeline.num_completion_tokens(), 16);
  EXPECT_TRUE(pipeline.finish("length").empty());
}

TEST(OutputPipeline, a_stop_string_ends_reasoning_too) {
  const Message message = run(byte_ids("a b\n STOP </think>c"),
                              {.stop = {"STOP"}, .parse_reasoning = true, .starts_in_reasoning = true});
  EXPECT_EQ(message.reasoning, "a b\n ");
  EXPECT_EQ(message.content, "");
  EXPECT_EQ(message.finish_reason, "stop");
}

TEST(OutputPipeline, a_stop_string_may_hold_the_closing_tag) {
  const Message message = run(byte_ids("a</think>b"),
                              {.stop = {"</think>"}, .parse_reasoning = true, .starts_in_reasoning = true});
  EXPECT_EQ(message.reasoning, "a");
  EXPECT_EQ(message.content, "");
  EXPECT_EQ(message.finish_reason, "stop");
}

TEST(OutputPipeline, an_incomplete_character_ends_as_a_replacement) {
  const Message message = run(byte_ids("ok \xF0\x9F\x98"), {});
  EXPECT_EQ(message.content, "ok \xEF\xBF\xBD");
  EXPECT_EQ(message.finish_reason, "length");
}

TEST(OutputPipeline, a_silent_token_counts_but_adds_no_text) {
  OutputPipeline pipeline(small_tokenizer(), {.skip_special_tokens = false});
  Message message;
  add(message, pipeline.push(byte_ids("a")[0]));
  add(message, pipeline.push_silent(small_tokenizer().eos_id().value()));
  add(message, pipeline.finish("stop"));
  EXPECT_EQ(message.content, "a");
  EXPECT_EQ(pipeline.num_completion_tokens(), 2);
  EXPECT_EQ(message.tokens.size(), 2u);
}

TEST(OutputPipeline, tokens_carry_offsets_in_characters) {
  OutputPipeline pipeline(small_tokenizer(), {});
  Message message;
  for (const int32_t id : byte_ids("a中b")) add(message, pipeline.push(id));
  add(message, pipeline.finish("stop"));
  std::vector<int64_t> offsets;
  for (const OutputToken& token : message.tokens) offsets.push_back(token.text_offset);
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 1, 1, 1, 2}));
}

// Text made of what matters to some stage, as bytes that may be no UTF-8.
rc::Gen<std::string> interesting_text() {
  return rc::gen::map(
      rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
          "<think>", "</think>", "\n", "STOP", "ST", "a", "<", "中", "😀", "\xF0\x9F", "\xFF", " ", "</thi")),
      [](const std::vector<std::string>& words) {
        std::string text;
        for (const std::string& word : words) text += word;
        return text;
      });
}

// The stages one after another, each on the whole text.
Message in_one_go(const std::string& bytes, const OutputOptions& options) {
  Message message;
  std::string text = replace_invalid_utf8(bytes);
  StopMatcher matcher(options.stop);
  std::string kept;
  matcher.push(text, kept);
  if (!matcher.matched()) matcher.flush(kept);
  if (options.parse_reasoning) {
    ReasoningParser parser(options.starts_in_reasoning);
    parser.push(kept, message.reasoning, message.content);
    parser.flush(message.reasoning, message.content);
  } else {
    message.content = kept;
  }
  message.finish_reason = matcher.matched() ? "stop" : "length";
  return message;
}

TEST(OutputPipeline, any_tokens_that_spell_a_text_give_the_same_message) {
  ASSERT_TRUE(rc::check([](bool parse_reasoning, bool starts_in_reasoning) {
    const std::string bytes = *interesting_text();
    const OutputOptions options{.stop = {"STOP", "😀\n"},
                                .parse_reasoning = parse_reasoning,
                                .starts_in_reasoning = starts_in_reasoning};
    const Message want = in_one_go(bytes, options);
    // Byte by byte, and, where the text survives encoding, as the tokenizer would cut it.
    std::vector<Ids> spellings = {byte_ids(bytes)};
    if (is_valid_utf8(bytes)) {
      spellings.push_back(trusted(bytes));
      spellings.push_back(small_tokenizer().encode(bytes).value());
    }
    for (const Ids& ids : spellings) {
      const Message got = run(ids, options);
      RC_ASSERT(got.reasoning == want.reasoning);
      RC_ASSERT(got.content == want.content);
      RC_ASSERT(got.finish_reason == want.finish_reason);
    }
  }));
}

TEST(OutputPipeline, every_sampled_token_is_reported_once_and_counted_once) {
  ASSERT_TRUE(rc::check([] {
    const auto ids = *rc::gen::container<Ids>(rc::gen::inRange(0, small_tokenizer().vocab_size()));
    const Message message = run(ids, {.stop = {"e", "\xEF\xBF\xBD"}, .parse_reasoning = true});
    RC_ASSERT(message.num_completion_tokens == static_cast<int64_t>(message.tokens.size()));
    RC_ASSERT(message.num_completion_tokens <= static_cast<int64_t>(ids.size()));
    int64_t num_reasoning = 0;
    for (size_t i = 0; i < message.tokens.size(); ++i) {
      RC_ASSERT(message.tokens[i].index == static_cast<int64_t>(i));
      RC_ASSERT(message.tokens[i].id == ids[i]);
      num_reasoning += message.tokens[i].is_reasoning;
    }
    RC_ASSERT(num_reasoning == message.num_reasoning_tokens);
  }));
}

TEST(OutputPipeline, random_tokens_concatenate_to_the_decoded_text) {
  ASSERT_TRUE(rc::check([](bool skip_special_tokens) {
    const auto ids = *rc::gen::container<Ids>(rc::gen::inRange(-1, small_tokenizer().vocab_size() + 2));
    const Message message = run(ids, {.skip_special_tokens = skip_special_tokens});
    RC_ASSERT(message.content == small_tokenizer().decode(ids, skip_special_tokens));
    RC_ASSERT(message.finish_reason == "length");
  }));
}

}  // namespace
}  // namespace fathom
