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
          {"role":"assistant","content":"c","reasoning_content":"r"},
          {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],
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
  EXPECT_EQ(request.messages[1].reasoning_content, "r");
  EXPECT_EQ(request.messages[2].content, "ab");
  EXPECT_EQ(request.template_arguments.thinking, true);
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
      R"({"messages":[{"role":"user","content":"a","name":null}],"stop":null,"tools":null,"temperature":null})",
      kLimits);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed.value().options.sampling.temperature, 1.0f);
}

TEST(Request, a_conversation_ends_with_what_is_to_be_answered) {
  const auto parse = [](const std::string& more) {
    return parse_chat_request(R"({"messages":[{"role":"user","content":"a"},)" + more + "]}", kLimits);
  };
  for (const char* last :
       {R"({"role":"assistant","content":"5"})", R"({"role":"assistant","content":null})"}) {
    const auto refused = parse(last);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().param, "messages[1]");
    EXPECT_EQ(refused.error().code, "unsupported_parameter");
    EXPECT_TRUE(parse(std::string(last) + R"(,{"role":"user","content":"b"})").ok());
  }
  // Counting tokens of a conversation is another matter.
  EXPECT_TRUE(parse_tokenize_request(R"({"messages":[{"role":"assistant","content":"5"}]})", kLimits).ok());
}

TEST(Request, tokenize_takes_the_template_s_arguments_as_chat_does) {
  const auto parse = [](const char* fields) {
    return parse_tokenize_request(
        fmt::format(R"({{"messages":[{{"role":"user","content":"a"}}],{}}})", fields), kLimits);
  };
  EXPECT_EQ(parse(R"("thinking":{"type":"enabled"})").value().template_arguments.thinking, true);
  auto kwargs = parse(R"("chat_template_kwargs":{"enable_thinking":false,"style":"x"})");
  EXPECT_EQ(kwargs.value().template_arguments.thinking, false);
  EXPECT_EQ(kwargs.value().template_arguments.kwargs_json, R"({"enable_thinking":false,"style":"x"})");
  EXPECT_EQ(parse(R"("thinking":7)").error().param, "thinking");
}

TEST(Request, fields_of_one_value_are_honoured_or_refused) {
  const auto parse = [](const std::string& more) {
    return parse_chat_request(R"({"messages":[{"role":"user","content":"a"}],"stream":true,)" + more + "}",
                              kLimits);
  };
  EXPECT_EQ(parse(R"("reasoning_effort":"none")").value().template_arguments.thinking, false);
  EXPECT_EQ(parse(R"("reasoning_effort":"low")").value().template_arguments.thinking, true);
  EXPECT_EQ(
      parse(R"("reasoning_effort":"low","thinking":{"type":"disabled"})").value().template_arguments.thinking,
      false);
  EXPECT_EQ(parse(R"("reasoning_effort":"high","chat_template_kwargs":{"thinking":false})")
                .value()
                .template_arguments.thinking,
            false);
  EXPECT_EQ(parse(R"("seed":1)").value().template_arguments.thinking, std::nullopt);
  EXPECT_TRUE(parse(R"("verbosity":"medium","stream_options":{"continuous_usage_stats":false})").ok());
  EXPECT_EQ(parse(R"("reasoning_effort":"huge")").error().param, "reasoning_effort");
  EXPECT_EQ(parse(R"("reasoning_effort":3)").error().param, "reasoning_effort");
  EXPECT_EQ(parse(R"("verbosity":"low")").error().param, "verbosity");
  EXPECT_EQ(parse(R"("stream_options":{"continuous_usage_stats":true})").error().param,
            "stream_options.continuous_usage_stats");
}

TEST(Request, places_that_say_whether_to_think_must_agree) {
  const auto parse = [](const std::string& more) {
    return parse_chat_request(R"({"messages":[{"role":"user","content":"a"}],)" + more + "}", kLimits);
  };
  const std::vector<std::tuple<std::string, std::string, std::string>> opposites = {
      {R"("thinking":{"type":"disabled"},"chat_template_kwargs":{"thinking":true})", "thinking",
       "chat_template_kwargs.thinking"},
      {R"("reasoning_effort":"none","thinking":{"type":"enabled"})", "reasoning_effort", "thinking"},
      {R"("chat_template_kwargs":{"enable_thinking":true},"reasoning_effort":"none")", "reasoning_effort",
       "chat_template_kwargs.enable_thinking"},
      {R"("chat_template_kwargs":{"enable_thinking":true,"thinking":false})", "chat_template_kwargs.thinking",
       "chat_template_kwargs.enable_thinking"}};
  for (const auto& [fields, first, second] : opposites) {
    const auto refused = parse(fields);
    ASSERT_FALSE(refused.ok()) << fields;
    EXPECT_EQ(refused.error().param, second);
    EXPECT_TRUE(refused.error().message.starts_with(first + " and " + second + " contradict each other"))
        << refused.error().message;
  }
  EXPECT_EQ(parse(R"("reasoning_effort":"none","thinking":{"type":"disabled"},)"
                  R"("chat_template_kwargs":{"thinking":false,"enable_thinking":false})")
                .value()
                .template_arguments.thinking,
            false);
}

std::string param_of(const std::string& more) {
  auto parsed = parse_chat_request(R"({"messages":[{"role":"user","content":"a"}],)" + more + "}", kLimits);
  return parsed.ok() ? "taken" : parsed.error().param;
}

TEST(Request, labels_without_effect_have_types) {
  EXPECT_EQ(
      param_of(
          R"("user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto","parallel_tool_calls":false)"),
      "taken");
  EXPECT_EQ(
      param_of(R"("user":null,"metadata":null,"store":null,"service_tier":null,"safety_identifier":"s")"),
      "taken");
  EXPECT_EQ(param_of(R"("user":{})"), "user");
  EXPECT_EQ(param_of(R"("metadata":5)"), "metadata");
  EXPECT_EQ(param_of(R"("metadata":{"a":1})"), "metadata");
  EXPECT_EQ(param_of(R"("store":"yes")"), "store");
  EXPECT_EQ(param_of(R"("service_tier":"zzz")"), "service_tier");
  EXPECT_EQ(param_of(R"("parallel_tool_calls":1)"), "parallel_tool_calls");
  EXPECT_EQ(param_of(R"("prompt_cache_key":[])"), "prompt_cache_key");
  EXPECT_EQ(param_of(R"("chat_template_kwargs":{"thinking":"off"})"), "chat_template_kwargs.thinking");
  EXPECT_EQ(param_of(R"("chat_template_kwargs":{"enable_thinking":0})"),
            "chat_template_kwargs.enable_thinking");
  EXPECT_EQ(param_of(R"("chat_template_kwargs":{"thinking":null,"enable_thinking":false,"other":"x"})"),
            "taken");
}

TEST(Request, fields_of_inner_objects_are_honoured_or_named) {
  EXPECT_EQ(param_of(R"("thinking":{"type":"enabled","budget_tokens":null})"), "taken");
  EXPECT_EQ(param_of(R"("thinking":{"type":"enabled","budget_tokens":1})"), "thinking.budget_tokens");
  EXPECT_EQ(param_of(R"("thinking":{"type":"disabled","x":1})"), "thinking.x");
  EXPECT_EQ(param_of(R"("response_format":{"type":"text","json_schema":null})"), "taken");
  EXPECT_EQ(param_of(R"("response_format":{"type":"text","json_schema":{}})"), "response_format.json_schema");
  EXPECT_EQ(param_of(R"("response_format":{"type":"text","x":1})"), "response_format.x");
  EXPECT_EQ(param_of(R"("response_format":{})"), "response_format");
  const auto content = [](const std::string& parts) {
    const auto parsed = parse_chat_request(
        fmt::format(R"({{"messages":[{{"role":"user","content":[{}]}}]}})", parts), kLimits);
    return parsed.ok() ? "taken" : parsed.error().param;
  };
  EXPECT_EQ(content(R"({"type":"text","text":"a"})"), "taken");
  EXPECT_EQ(content(R"({"type":"text","text":"a"},{"type":"text","text":"b","x":1})"),
            "messages[0].content[1].x");
}

TEST(Request, an_id_of_the_logit_bias_is_written_in_one_way) {
  for (const char* id : {"05", "+5", "-0", " 5", "5 ", "5.0", "0x5", "", "99999999999"}) {
    EXPECT_EQ(param_of(fmt::format(R"("logit_bias":{{"{}":1}})", id)), "logit_bias") << id;
  }
  EXPECT_EQ(param_of(R"("logit_bias":{"0":1,"5":-1})"), "taken");
}

TEST(Request, stop_token_ids_have_a_limit) {
  const auto ids = [](int n) {
    std::string list = "1";
    for (int i = 1; i < n; ++i) list += ",1";
    return fmt::format("\"stop_token_ids\":[{}]", list);
  };
  EXPECT_EQ(param_of(ids(kLimits.stop_token_ids_max)), "taken");
  EXPECT_EQ(param_of(ids(kLimits.stop_token_ids_max + 1)), "stop_token_ids");
}

TEST(Request, what_a_client_sent_is_quoted_in_excerpts) {
  const std::string huge(1'000'000, 'm');
  for (const std::string& body :
       {fmt::format(R"({{"messages":[{{"role":"{}","content":"a"}}]}})", huge),
        fmt::format(R"({{"messages":[{{"role":"user","content":"a"}}],"{}":1}})", huge),
        fmt::format(R"({{"messages":[{{"role":"user","content":"a"}}],"service_tier":"{}"}})", huge),
        fmt::format(R"({{"messages":[{{"role":"user","content":"a"}}],"logit_bias":{{"{}":1}}}})", huge),
        fmt::format(R"({{"messages":[{{"role":"user","content":"a"}}],"n":{}}})", std::string(100'000, '9')),
        fmt::format(R"({{"a":"{})", huge)}) {
    const auto parsed = parse_chat_request(body, kLimits);
    ASSERT_FALSE(parsed.ok());
    EXPECT_LT(error_json(parsed.error()).size(), 600u) << error_json(parsed.error()).substr(0, 600);
  }
  EXPECT_EQ(excerpt("short", 5), "short");
  EXPECT_EQ(excerpt("äöü", 3), "ä…") << "whole characters only";
}

TEST(Request, the_first_bad_field_is_named) {
  const auto param = [](const char* body) { return parse_chat_request(body, kLimits).error().param; };
  EXPECT_EQ(param(R"({"messages":[{"role":"user","content":"a"}],"logit_bias":{"100":1}})"), "logit_bias");
  EXPECT_EQ(param(R"({"messages":[{"role":"user","content":"a"}],"seed":18446744073709551615})"), "seed");
  EXPECT_EQ(param(R"({"messages":[{"role":"user","content":"a","surprise":1}]})"), "messages[0].surprise");
  EXPECT_EQ(param(R"({"messages":[{"role":"user","content":"a"}],"tool_choice":{"type":"function"}})"),
            "tool_choice");
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
        fmt::format(R"({{"messages":[{{"role":"user","content":"{0}"}},{{"role":"user","content":"{0}"}}]}})",
                    text),
        limits);
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
  const auto deep =
      parse_json_object("{\"a\":" + std::string(kJsonDepthMax, '[') + std::string(kJsonDepthMax, ']') + "}");
  ASSERT_FALSE(deep.ok());
  EXPECT_NE(deep.error().message.find(fmt::format("byte {}", 5 + kJsonDepthMax)), std::string::npos)
      << deep.error().message;
  EXPECT_TRUE(parse_json_object("{\"a\":" + std::string(kJsonDepthMax - 1, '[') +
                                std::string(kJsonDepthMax - 1, ']') + "}")
                  .ok());
}

std::string object_of(int64_t num_keys) {
  std::string text = "{";
  for (int64_t i = 0; i < num_keys; ++i) text += fmt::format("{}\"k{}\":1", i == 0 ? "" : ",", i);
  return text + "}";
}

TEST(Json, keys_have_a_limit_in_each_object_and_in_all) {
  EXPECT_TRUE(parse_json_object(object_of(kJsonKeysPerObjectMax)).ok());
  const std::string wide = object_of(kJsonKeysPerObjectMax + 1);
  const auto refused = parse_json_object(wide);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find(fmt::format("at byte {}", wide.rfind(':') + 1)), std::string::npos)
      << refused.error().message;
  EXPECT_FALSE(parse_json_object("{\"metadata\":" + wide + "}").ok());
  // Many objects, each within the limit: the list alone is fine, its keys are too many.
  std::string list = "{\"a\":[" + object_of(kJsonKeysPerObjectMax);
  for (int64_t i = 1; i < kJsonKeysMax / kJsonKeysPerObjectMax; ++i)
    list += "," + object_of(kJsonKeysPerObjectMax - 1);
  EXPECT_TRUE(parse_json_object(list + "]}").ok());
  EXPECT_FALSE(parse_json_object(list + "," + object_of(kJsonKeysPerObjectMax - 1) + "]}").ok());
  // Siblings do not add up, and colons in strings are no keys.
  EXPECT_TRUE(parse_json_object("{\"a\":\"" + std::string(100'000, ':') + "\"}").ok());
}

TEST(Json, values_have_a_limit_far_above_a_full_context) {
  const auto ids = [](int64_t n) {
    std::string text = "{\"prompt\":[0";
    for (int64_t i = 1; i < n; ++i) text += ",0";
    return text + "]}";
  };
  EXPECT_TRUE(parse_json_object(ids(1'000'000)).ok());
  const auto refused = parse_json_object(ids(kJsonValuesMax));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("at byte 2097"), std::string::npos) << refused.error().message;
}

TEST(Json, nothing_follows_the_object_a_nul_neither) {
  for (const std::string& tail :
       {std::string(1, '\0'), std::string("\0 garbage {{{", 14), std::string("x"), std::string("{}")}) {
    EXPECT_FALSE(parse_json_object("{\"a\":1}" + tail).ok());
  }
  EXPECT_NE(parse_json_object(std::string("{\"a\":1}\0", 8)).error().message.find("byte 8"),
            std::string::npos);
  EXPECT_FALSE(parse_json_object(std::string("\0{}", 3)).ok());
  EXPECT_TRUE(parse_json_object(R"({"a":"\u0000"})").ok());
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

TEST(Request, an_answer_s_bytes_limit_its_tokens) {
  const RequestLimits limits{.answer_bytes_max = 1 << 20};
  GenerationOptions options;
  EXPECT_EQ(answer_tokens_max(limits, options, 1), 8192);
  options.num_choices = 4;
  EXPECT_EQ(answer_tokens_max(limits, options, 2), 1024);
  options.sampling.num_logprobs = 0;
  EXPECT_EQ(answer_tokens_max(limits, options, 2), 512);
  options.sampling.num_logprobs = 20;
  EXPECT_EQ(answer_tokens_max(limits, options, 2), 46);
  EXPECT_EQ(answer_tokens_max(limits, options, 1 << 20), 1) << "an answer of one token is always allowed";
}

}  // namespace
}  // namespace fathom::serve
