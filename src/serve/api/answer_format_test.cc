// What an answer says of its tokens: in which list a log-probability stands.
#include "serve/api/answer_format.h"

#include <gtest/gtest.h>

#include "serve/api/json.h"

namespace fathom::serve {
namespace {

Tokenizer fixture_tokenizer() {
  return Tokenizer::load_folder(std::string(FATHOM_SOURCE_DIR) + "/tests/fixtures/tokenizer/small").value();
}

// The token that spells one character.
int32_t id_of(char character) {
  return fixture_tokenizer().encode(std::string(1, character)).value().front();
}

AnswerToken token(char character, AnswerToken::Part part, std::vector<std::pair<int32_t, float>> top) {
  return {
      .event = {.token = id_of(character), .logprobs = TokenLogprobs{.sampled = -4, .top = std::move(top)}},
      .part = part};
}

std::vector<std::string> texts(const Json& entries) {
  std::vector<std::string> out;
  for (const Json& entry : entries) out.push_back(entry["token"].get<std::string>());
  return out;
}

TEST(AnswerFormat, chat_logprobs_keep_reasoning_content_and_the_rest_apart) {
  const Tokenizer tokenizer = fixture_tokenizer();
  using Part = AnswerToken::Part;
  ChoiceAnswer choice;
  choice.finish_reason = "stop";
  choice.part.tokens = {token('a', Part::kReasoning, {}), token('b', Part::kNone, {}),
                        token('c', Part::kContent, {}), token('d', Part::kContent, {}),
                        token('e', Part::kNone, {})};
  const auto format = make_chat_format(tokenizer, {.logprobs = true, .reasoning = true});
  for (const std::string& payload :
       {format->chunk({}, choice, nullptr), format->body({}, {&choice}, {{1}}, {})}) {
    const Json logprobs = Json::parse(payload)["choices"][0]["logprobs"];
    EXPECT_EQ(texts(logprobs["content"]), (std::vector<std::string>{"c", "d"}));
    EXPECT_EQ(texts(logprobs["reasoning_content"]), std::vector<std::string>{"a"});
  }
}

TEST(AnswerFormat, no_chunk_carries_reasoning_and_content) {
  const Tokenizer tokenizer = fixture_tokenizer();
  using Part = AnswerToken::Part;
  ChoiceAnswer choice{.index = 3, .finish_reason = "stop"};
  choice.part = {.reasoning = "a", .content = "cd"};
  choice.part.tokens = {token('a', Part::kReasoning, {}), token('b', Part::kNone, {}),
                        token('c', Part::kContent, {}), token('d', Part::kContent, {}),
                        token('e', Part::kNone, {})};
  const auto format =
      make_chat_format(tokenizer, {.logprobs = true, .return_token_ids = true, .reasoning = true});
  const std::optional<ChoiceAnswer> reasoning = take_reasoning(choice);
  ASSERT_TRUE(reasoning.has_value());
  const Json first = Json::parse(format->chunk({}, *reasoning, nullptr))["choices"][0];
  choice.started = true;
  const Json second = Json::parse(format->chunk({}, choice, nullptr))["choices"][0];
  EXPECT_EQ(first["index"], 3);
  EXPECT_EQ(first["delta"], (Json{{"role", "assistant"}, {"content", ""}, {"reasoning_content", "a"}}));
  EXPECT_EQ(first["finish_reason"], nullptr);
  EXPECT_EQ(first["token_ids"].size(), 2u);
  EXPECT_EQ(second["delta"], (Json{{"content", "cd"}}));
  EXPECT_EQ(second["finish_reason"], "stop");
  EXPECT_EQ(second["token_ids"].size(), 3u);
  EXPECT_FALSE(take_reasoning(choice).has_value());
  choice.part = {};
  EXPECT_EQ(Json::parse(format->chunk({}, choice, nullptr))["choices"][0]["delta"], (Json{{"content", ""}}));
}

TEST(AnswerFormat, completions_list_the_sampled_token_beside_the_likeliest) {
  const Tokenizer tokenizer = fixture_tokenizer();
  ChoiceAnswer choice;
  choice.finish_reason = "length";
  choice.part.tokens = {token('a', AnswerToken::Part::kContent, {{id_of('x'), -1.f}, {id_of('y'), -2.f}}),
                        token('x', AnswerToken::Part::kContent, {{id_of('x'), -4.f}, {id_of('y'), -5.f}})};
  const auto format = make_completion_format(tokenizer, {.logprobs = true});
  const Json top =
      Json::parse(format->body({}, {&choice}, {{1}}, {}))["choices"][0]["logprobs"]["top_logprobs"];
  EXPECT_EQ(top[0], (Json{{"x", -1.0}, {"y", -2.0}, {"a", -4.0}}));
  EXPECT_EQ(top[1], (Json{{"x", -4.0}, {"y", -5.0}}));
}

}  // namespace
}  // namespace fathom::serve
