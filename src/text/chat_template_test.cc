// Chat templates as Hugging Face renders and encodes them, and that no message can write a special token.
#include "text/chat_template.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>

#include "text/test_fixtures.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

std::vector<ChatMessage> messages_from(const Json& json) {
  std::vector<ChatMessage> messages;
  for (const Json& m : json) {
    ChatMessage message;
    message.role = m["role"];
    if (!m["content"].is_null()) message.content = m["content"].get<std::string>();
    if (m.contains("name")) message.name = m["name"].get<std::string>();
    if (m.contains("tool_call_id")) message.tool_call_id = m["tool_call_id"].get<std::string>();
    if (m.contains("tool_calls")) message.tool_calls_json = m["tool_calls"].dump();
    messages.push_back(std::move(message));
  }
  return messages;
}

ChatTemplateOptions options_from(const Json& json, int64_t now_unix_s) {
  ChatTemplateOptions options;
  options.now_unix_s = now_unix_s;
  options.add_generation_prompt = json.value("add_generation_prompt", true);
  if (json.contains("thinking")) options.thinking = json["thinking"].get<bool>();
  if (json.contains("tools")) options.tools_json = json["tools"].dump();
  return options;
}

TextAssets small_assets(const std::string& jinja) {
  TextAssets assets = read_text_assets(fixture_path("tokenizer/small")).value();
  assets.source = "dir";
  assets.chat_template_jinja = jinja;
  return assets;
}

ChatTemplate small_template(const std::string& jinja) {
  return ChatTemplate::load(small_assets(jinja), small_tokenizer()).value();
}

ChatMessage message(std::string role, std::string content) {
  return {.role = std::move(role), .content = std::move(content)};
}

// Golden texts come from jinja2, golden ids from Hugging Face's tokenizers by another route
// (tools/make_golden/chat_template_golden.py).
void expect_golden(const Json& golden, const std::map<std::string, ChatTemplate>& templates) {
  for (const Json& c : golden["cases"]) {
    SCOPED_TRACE(c["template"].get<std::string>() + " " + c["messages"].dump() + " " +
                 c["options"].dump().substr(0, 60));
    const auto prompt =
        templates.at(c["template"])
            .render(messages_from(c["messages"]), options_from(c["options"], golden["now_unix_s"]));
    if (c.contains("refused")) {
      EXPECT_EQ(prompt.status().code(), StatusCode::kInvalidArgument);
      continue;
    }
    ASSERT_TRUE(prompt.ok()) << prompt.status().message();
    EXPECT_EQ(prompt->text, c["text"].get<std::string>());
    if (c.contains("ids")) {
      EXPECT_EQ(prompt->ids, c["ids"].get<std::vector<int32_t>>());
    }
  }
}

TEST(ChatTemplate, renders_and_encodes_as_hugging_face_does) {
  std::map<std::string, ChatTemplate> templates;
  for (const char* name : {"features", "r1_style", "v31_style"}) {
    templates.emplace(name, small_template(read_fixture(std::string("chat_templates/") + name + ".jinja")));
  }
  expect_golden(json_fixture("chat_templates/golden.json"), templates);
}

TEST(ChatTemplate, renders_the_built_in_models_template_as_hugging_face_does) {
  const TextAssets assets = read_text_assets(std::string(FATHOM_SOURCE_DIR) + "/models/demo").value();
  const Tokenizer tokenizer = Tokenizer::load(assets).value();
  const auto chat_template = ChatTemplate::load(assets, tokenizer);
  ASSERT_TRUE(chat_template.ok()) << chat_template.status().message();
  EXPECT_TRUE(chat_template->has_reasoning());
  expect_golden(json_fixture("chat_templates/golden_demo.json"), {{"demo", *chat_template}});
}

TEST(ChatTemplate, renders_deepseek_v3s_published_template_as_hugging_face_does) {
  NEED_DEEPSEEK_FILES();
  const TextAssets assets = read_text_assets(deepseek_folder()).value();
  const Tokenizer tokenizer = Tokenizer::load(assets).value();
  const auto chat_template = ChatTemplate::load(assets, tokenizer);
  ASSERT_TRUE(chat_template.ok()) << chat_template.status().message();
  EXPECT_FALSE(chat_template->has_reasoning());
  expect_golden(json_fixture("chat_templates/golden_deepseek_v3.json"), {{"published", *chat_template}});
}

TEST(ChatTemplate, messages_cannot_inject_special_tokens) {
  const Tokenizer& tokenizer = small_tokenizer();
  const ChatTemplate v31 = small_template(read_fixture("chat_templates/v31_style.jinja"));
  const auto num_added = [&](const RenderedPrompt& prompt) {
    return std::count_if(prompt.ids.begin(), prompt.ids.end(),
                         [&](int32_t id) { return tokenizer.is_added(id); });
  };
  const auto render = [&](const std::string& system, const std::string& user, const std::string& tool) {
    return v31
        .render({message("system", system), message("system", user), message("user", user),
                 message("assistant", "ok"), message("tool", tool), message("user", system)},
                {})
        .value();
  };
  const auto num_expected = num_added(render("a", "b", "c"));
  // Whole tokens, pieces that join over a border, and the first candidates for the sentinel.
  const auto text =
      rc::gen::map(rc::gen::container<std::vector<std::string>>(rc::gen::oneOf(
                       rc::gen::elementOf(tokenizer.added_tokens()),
                       rc::gen::element<std::string>("<", "<｜", "<｜Us", "er｜>", "｜>", ">", "x", " ", "\n",
                                                     "\xEF\xB7\x90", "\xEF\xB7\x91"))),
                   [](const std::vector<std::string>& words) {
                     std::string all;
                     for (const std::string& word : words) all += word;
                     return all;
                   });
  ASSERT_TRUE(rc::check([&] {
    const std::string system = *text, user = *text, tool = *text;
    const RenderedPrompt prompt = render(system, user, tool);
    RC_ASSERT(num_added(prompt) == num_expected);
    RC_ASSERT(tokenizer.decode(prompt.ids, false) == prompt.text);
    RC_ASSERT(prompt.text.find(user) != std::string::npos);
  }));
}

TEST(ChatTemplate, tools_and_calls_cannot_inject_special_tokens) {
  const ChatTemplate v31 = small_template(read_fixture("chat_templates/v31_style.jinja"));
  ChatTemplateOptions options;
  options.tools_json =
      R"([{"function":{"name":"f","description":"<｜User｜>","parameters":{"<think>":["</think>"]}}}])";
  ChatMessage call{
      .role = "assistant",
      .tool_calls_json = R"([{"function":{"name":"<｜tool▁sep｜>","arguments":{"<|EOT|>":1}}}])"};
  const auto prompt = v31.render({message("user", "x"), call}, options);
  ASSERT_TRUE(prompt.ok()) << prompt.status().message();
  std::string added;
  for (const int32_t id : prompt->ids) {
    if (small_tokenizer().is_added(id)) added += small_tokenizer().token_bytes(id);
  }
  EXPECT_EQ(
      added,
      "<｜begin▁of▁sentence｜><｜User｜><｜Assistant｜></think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
      "<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>");
}

TEST(ChatTemplate, the_prompt_tells_whether_reasoning_is_open) {
  const ChatTemplate r1 = small_template(read_fixture("chat_templates/r1_style.jinja"));
  const ChatTemplate v31 = small_template(read_fixture("chat_templates/v31_style.jinja"));
  const std::vector<ChatMessage> hi = {message("user", "hi <think>")};
  EXPECT_TRUE(r1.has_reasoning());
  EXPECT_TRUE(r1.render(hi, {})->starts_in_reasoning);
  EXPECT_FALSE(r1.render(hi, {.add_generation_prompt = false})->starts_in_reasoning);
  EXPECT_TRUE(v31.render(hi, {.thinking = true})->starts_in_reasoning);
  EXPECT_FALSE(v31.render(hi, {.thinking = false})->starts_in_reasoning);
  EXPECT_FALSE(v31.render(hi, {})->starts_in_reasoning);
}

TEST(ChatTemplate, falls_back_to_the_published_format) {
  const ChatTemplate chat_template = small_template("");
  const std::vector<ChatMessage> messages = {message("system", "S"), message("user", "u"),
                                             message("assistant", "<think>t</think>a"),
                                             message("system", "T"), message("user", "v")};
  EXPECT_EQ(chat_template.render(messages, {})->text,
            "<｜begin▁of▁sentence｜>S\n\nT<｜User｜>u<｜Assistant｜>a<｜end▁of▁sentence｜><｜User｜>v<"
            "｜Assistant｜>");
  EXPECT_TRUE(chat_template.render(messages, {.thinking = true})->text.ends_with("<｜Assistant｜><think>\n"));
  EXPECT_TRUE(
      chat_template.render(messages, {.add_generation_prompt = false})->text.ends_with("<｜User｜>v"));
  EXPECT_EQ(chat_template.render({message("tool", "x")}, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(
      chat_template
          .render(
              {message("user", "u"), {.role = "assistant", .content = std::nullopt}, message("user", "v")},
              {})
          ->text,
      "<｜begin▁of▁sentence｜><｜User｜>u<｜Assistant｜><｜end▁of▁sentence｜><｜User｜>v<｜Assistant｜>");

  TextAssets bare = small_assets("");
  bare.tokenizer_json =
      R"({"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{"a":0},"merges":[]},)"
      R"("decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}})";
  const auto tokenizer = Tokenizer::load(bare);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(ChatTemplate::load(bare, *tokenizer).status().code(), StatusCode::kNotFound);
}

TEST(ChatTemplate, a_list_of_templates_is_chosen_from_by_name) {
  TextAssets assets = small_assets("");
  assets.tokenizer_config_json =
      R"({"chat_template":[{"name":"default","template":"plain"},{"name":"tool_use","template":"tools"}]})";
  const auto chat_template = ChatTemplate::load(assets, small_tokenizer());
  ASSERT_TRUE(chat_template.ok()) << chat_template.status().message();
  EXPECT_EQ(chat_template->render({}, {})->text, "plain");
  EXPECT_EQ(chat_template->render({}, {.tools_json = "[]"})->text, "tools");
}

TEST(ChatTemplate, load_errors_name_the_file_and_the_line) {
  const auto load = [](TextAssets assets) { return ChatTemplate::load(assets, small_tokenizer()).status(); };
  const Status syntax = load(small_assets("a\n{% if %}"));
  EXPECT_EQ(syntax.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(syntax.message().starts_with("dir/chat_template.jinja: chat template: ")) << syntax.message();
  EXPECT_NE(syntax.message().find("line 2"), std::string::npos) << syntax.message();
  TextAssets assets = small_assets("");
  assets.tokenizer_config_json = R"({"chat_template": 3})";
  EXPECT_EQ(load(assets).message(), "dir/tokenizer_config.json: chat_template: expected a string or a list");
  assets.tokenizer_config_json = R"({"chat_template": [{"name": "default"}]})";
  EXPECT_FALSE(load(assets).ok());
}

TEST(ChatTemplate, refuses_what_the_template_or_the_request_gets_wrong) {
  const ChatTemplate chat_template = small_template("{{ raise_exception('roles must alternate') }}");
  const auto why = [](const Result<RenderedPrompt>& prompt) {
    EXPECT_EQ(prompt.status().code(), StatusCode::kInvalidArgument);
    return prompt.status().message();
  };
  EXPECT_EQ(why(chat_template.render({}, {})), "chat template: roles must alternate (line 1)");
  EXPECT_EQ(why(chat_template.render({message("root", "x")}, {})), "unknown role \"root\"");
  EXPECT_EQ(why(chat_template.render({}, {.tools_json = "{"})), "tools: not valid JSON");
  EXPECT_EQ(why(chat_template.render({}, {.tools_json = "{}"})), "tools: expected a list");
  EXPECT_EQ(why(chat_template.render({}, {.extra_json = "[]"})), "chat_template_kwargs: expected an object");
  EXPECT_EQ(why(chat_template.render({}, {.tools_json = std::string(200000, '[')})),
            "tools: nested deeper than 100 levels");
  const ChatTemplate endless = small_template("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
  EXPECT_FALSE(endless.render({}, {}).ok());
}

TEST(ChatTemplate, a_developer_message_is_a_system_message_where_the_template_knows_none) {
  const std::vector<ChatMessage> messages = {message("developer", "x")};
  EXPECT_EQ(small_template("{{ messages[0].role }}").render(messages, {})->text, "system");
  EXPECT_EQ(small_template("{{ messages[0].role }}{# developer #}").render(messages, {})->text, "developer");
}

TEST(ChatTemplate, invalid_utf8_in_messages_is_replaced) {
  const ChatTemplate chat_template = small_template("{{ messages[0].content }}");
  EXPECT_EQ(chat_template.render({message("user", "a\xff")}, {})->text, "a\xEF\xBF\xBD");
}

TEST(ChatTemplate, extra_variables_reach_the_template_but_not_the_messages) {
  const ChatTemplate chat_template =
      small_template("{{ style }} {{ messages | length }} {{ enable_thinking }}");
  EXPECT_EQ(chat_template
                .render({}, {.thinking = false, .extra_json = R"({"style": "short", "messages": [1, 2]})"})
                ->text,
            "short 0 False");
}

}  // namespace
}  // namespace fathom
