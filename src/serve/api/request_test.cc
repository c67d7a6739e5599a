// Requests from JSON to the engine's terms: every field, the first bad one named, limits of keys and server.
#include "serve/api/request.h"

#include <gtest/gtest.h>

#include "serve/api/admission.h"
#include "serve/api/json.h"

namespace fathom::serve {
namespace {

constexpr RequestLimits kLimits{.vocab_size = 100, .context_max = 512};

TEST(Request, a_full_chat_request_arrives_whole) {
  auto parsed = parse_chat_request(
      R"({"model":"m","messages":[{"role":"developer","content":"be brief"},
          {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
          {"role":"assistant","content":"c","reasoning_content":"r"}],
          "temperature":0.5,"top_p":0.25,"top_k":-1,"min_p":0.125,"seed":-3,"n":2,"max_tokens":7,
          "max_completion_tokens":9,"stop":"x","stop_token_ids":[5],"logit_bias":{"3":-1.5},"logprobs":true,
          "top_logprobs":4,"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true,
          "user_id":"u","thinking":{"type":"enabled"},"user":"label","tools":[],"response_format":{"type":"text"}})",
      kLimits);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  const ChatRequest& request = parsed.value();
  EXPECT_EQ(request.model, "m");
  ASSERT_EQ(request.messages.size(), 3u);
  EXPECT_EQ(request.messages[0].role, "system");
  EXPECT_EQ(request.messages[1].content, "ab");
  EXPECT_EQ(request.messages[2].reasoning_content, "r");
  EXPECT_EQ(request.thinking, true);
  const GenerationOptions& options = request.options;
  EXPECT_EQ(options.sampling.temperature, 0.5f);
  EXPECT_EQ(options.sampling.top_p, 0.25f);
  EXPECT_EQ(options.sampling.top_k, 0);
  EXPECT_EQ(options.sampling.min_p, 0.125f);
  EXPECT_TRUE(options.seeded);
  EXPECT_EQ(options.sampling.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(options.num_choices, 2);
  EXPECT_EQ(options.max_tokens, 9) << "the newer name wins";
  EXPECT_EQ(options.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(options.stop_token_ids, std::vector<int32_t>{5});
  EXPECT_EQ(options.sampling.logit_bias, (std::vector<std::pair<int32_t, float>>{{3, -1.5f}}));
  EXPECT_EQ(options.sampling.num_logprobs, 4);
  EXPECT_TRUE(options.stream && options.include_usage && options.return_token_ids);
  EXPECT_EQ(options.tenant, "u");
}

TEST(Request, null_counts_as_absent) {
  auto parsed = parse_chat_request(
      R"({"messages":[{"role":"user","content":"a","name":null}],"stop":null,"tools":null,"temperature":null})", kLimits);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed.value().options.sampling.temperature, 1.0f);
}

TEST(Request, fields_of_one_value_are_honoured_or_refused) {
  const auto parse = [](const std::string& more) {
    return parse_chat_request(R"({"messages":[{"role":"user","content":"a"}],"stream":true,)" + more + "}", kLimits);
  };
  EXPECT_EQ(parse(R"("reasoning_effort":"none")").value().thinking, false);
  EXPECT_EQ(parse(R"("reasoning_effort":"low")").value().thinking, true);
  EXPECT_EQ(parse(R"("reasoning_effort":"low","thinking":{"type":"disabled"})").value().thinking, false);
  EXPECT_EQ(parse(R"("seed":1)").value().thinking, std::nullopt);
  EXPECT_TRUE(parse(R"("verbosity":"medium","stream_options":{"continuous_usage_stats":false})").ok());
  EXPECT_EQ(parse(R"("reasoning_effort":"huge")").error().param, "reasoning_effort");
  EXPECT_EQ(parse(R"("reasoning_effort":3)").error().param, "reasoning_effort");
  EXPECT_EQ(parse(R"("verbosity":"low")").error().param, "verbosity");
  EXPECT_EQ(parse(R"("stream_options":{"continuous_usage_stats":true})").error().param,
            "stream_options.continuous_usage_stats");
}

TEST(Request, the_first_bad_field_is_named) {
  const auto param = [](const char* body) { return parse_chat_request(body, kLimits).error().param; };
  EXPECT_EQ(param(R"({"messages":[{"role":"user","content":"a"}],"logit_bias":{"100":1}})"), "logit_bias");
  EXPECT_EQ(param(R"({"messages":[{"role":"user","content":"a"}],"seed":18446744073709551615})"), "seed");
  EXPECT_EQ(param(R"({"messages":[{"role":"user","content":"a","surprise":1}]})"), "messages[0].surprise");
  EXPECT_EQ(param(R"({"messages":[{"role":"user","content":"a"}],"tool_choice":{"type":"function"}})"), "tool_choice");
}

TEST(Request, text_that_no_window_can_hold_is_refused_by_its_bytes) {
  RequestLimits limits = kLimits;
  limits.token_bytes_max = 3;
  const std::string fits(512 * 3 + 2, 'a'), too_long(513 * 3, 'a');
  const auto completion = [&](const std::string& text) {
    return parse_completion_request(fmt::format(R"({{"prompt":["b","{}"]}})", text), limits);
  };
  EXPECT_TRUE(completion(fits).ok());
  ASSERT_FALSE(completion(too_long).ok());
  EXPECT_EQ(completion(too_long).error().code, "context_length_exceeded");
  EXPECT_EQ(completion(too_long).error().param, "prompt");
  const auto chat = [&](const std::string& text) {  // the messages count together
    return parse_chat_request(
        fmt::format(R"({{"messages":[{{"role":"user","content":"{0}"}},{{"role":"user","content":"{0}"}}]}})", text), limits);
  };
  EXPECT_TRUE(chat(fits.substr(0, fits.size() / 2)).ok());
  EXPECT_EQ(chat(too_long.substr(0, 800)).error().code, "context_length_exceeded");
  EXPECT_FALSE(parse_tokenize_request(fmt::format(R"({{"prompt":"{}"}})", too_long), limits).ok());
  std::string ids = "1";
  for (int i = 1; i < 512; ++i) ids += ",1";
  EXPECT_TRUE(parse_detokenize_request(fmt::format(R"({{"tokens":[{}]}})", ids), limits).ok());
  EXPECT_FALSE(parse_detokenize_request(fmt::format(R"({{"tokens":[{},1]}})", ids), limits).ok());
}

TEST(Json, nesting_is_measured_outside_strings_only) {
  const std::string brackets(1000, '[');
  EXPECT_TRUE(parse_json_object("{\"a\":\"" + brackets + "\\\"[\"}").ok());
  const auto deep = parse_json_object("{\"a\":" + std::string(kJsonDepthMax, '[') + std::string(kJsonDepthMax, ']') + "}");
  ASSERT_FALSE(deep.ok());
  EXPECT_NE(deep.error().message.find(fmt::format("byte {}", 5 + kJsonDepthMax)), std::string::npos)
      << deep.error().message;
  EXPECT_TRUE(parse_json_object("{\"a\":" + std::string(kJsonDepthMax - 1, '[') + std::string(kJsonDepthMax - 1, ']') + "}").ok());
}

TEST(Json, malformed_text_has_a_position) {
  for (const char* body : {"{", "{\"a\":}", "{\"a\":\"\xff\"}", "[1]", "{\"a\":1e999}"}) {
    const auto parsed = parse_json_object(body);
    ASSERT_FALSE(parsed.ok()) << body;
    EXPECT_EQ(parsed.error().http_status, 400);
    EXPECT_EQ(parsed.error().code, "invalid_json");
  }
  const auto message = [](const char* body) { return parse_json_object(body).error().message; };
  EXPECT_NE(message("{\"a\":}").find("byte 6"), std::string::npos);
  EXPECT_NE(message("{\"1e999\":-1,\"b\":1e999}").find("byte 17)"), std::string::npos) << "counted from 1";
}

TEST(Admission, limits_of_a_key_and_of_all_keys_and_room_after_release) {
  Admission admission({.requests_per_key_max = 2, .requests_max = 3});
  auto a1 = admission.admit("a"), a2 = admission.admit("a");
  ASSERT_TRUE(a1.ok() && a2.ok());
  const auto refused = admission.admit("a");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().http_status, 429);
  EXPECT_GT(refused.error().retry_after_s, 0);
  auto b1 = admission.admit("b");
  ASSERT_TRUE(b1.ok());
  EXPECT_EQ(admission.admit("c").error().http_status, 503);
  EXPECT_EQ(admission.in_flight(), 3);
  a1.value().reset();
  EXPECT_TRUE(admission.admit("a").ok());
}

TEST(ApiKeys, without_a_file_everyone_is_anonymous) {
  EXPECT_EQ(ApiKeys().authenticate("").value(), "");
  EXPECT_FALSE(ApiKeys::load("/does/not/exist").ok());
}

}  // namespace
}  // namespace fathom::serve
