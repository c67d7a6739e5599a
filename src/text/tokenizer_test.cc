// Token ids equal to Hugging Face's and tiktoken's on a mixed corpus, and decoding that restores any bytes.
#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <thread>

#include "text/detokenizer.h"
#include "text/test_fixtures.h"
#include "text/utf8.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

std::string case_text(const Json& c) {
  if (c.contains("text")) return c["text"].get<std::string>();
  std::string out;
  if (c.contains("unit")) {
    for (int i = 0; i < c["times"]; ++i) out += c["unit"].get<std::string>();
    return out;
  }
  const auto hex = c["hex"].get<std::string>();
  for (size_t i = 0; i < hex.size(); i += 2) {
    out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

// Long lists are kept as their length and the FNV-1a hash of their little-endian bytes.
Json pack(const Ids& ids) {
  if (ids.size() <= 400) return ids;
  uint64_t hash = 0xCBF29CE484222325;
  for (const int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8)
      hash = (hash ^ (static_cast<uint32_t>(id) >> shift & 0xFF)) * 0x100000001B3;
  }
  return {{"count", ids.size()}, {"fnv1a", fmt::format("{:016x}", hash)}};
}

void expect_equal_to_hugging_face(const Tokenizer& tokenizer, const std::string& golden_file) {
  const Json corpus = json_fixture("tokenizer/corpus.json")["cases"];
  const Json golden = json_fixture("tokenizer/" + golden_file);
  ASSERT_EQ(corpus.size(), golden["encode"].size());
  for (size_t i = 0; i < corpus.size(); ++i) {
    const std::string text = case_text(corpus[i]);
    const Json& want = golden["encode"][i];
    const auto trusted = tokenizer.encode_with_special(text);
    ASSERT_TRUE(trusted.ok());
    EXPECT_EQ(pack(*trusted), want["trusted"]) << corpus[i];
    const auto plain = tokenizer.encode(text);
    ASSERT_TRUE(plain.ok());
    EXPECT_EQ(pack(*plain), want.value("plain", want["trusted"])) << corpus[i];
    EXPECT_EQ(tokenizer.decode(*plain, false), replace_invalid_utf8(text));
  }
  for (const Json& c : golden["decode"]) {
    const auto ids = c["ids"].get<Ids>();
    EXPECT_EQ(tokenizer.decode(ids, false), c["text"].get<std::string>()) << c;
    EXPECT_EQ(tokenizer.decode(ids, true), c["skipped"].get<std::string>()) << c;
  }
}

TEST(Tokenizer, equals_hugging_face_on_the_small_tokenizer) {
  expect_equal_to_hugging_face(small_tokenizer(), "golden_small.json");
}

TEST(Tokenizer, equals_hugging_face_on_the_built_in_model) {
  const auto tokenizer = Tokenizer::load_folder(std::string(FATHOM_SOURCE_DIR) + "/models/demo");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  expect_equal_to_hugging_face(*tokenizer, "golden_demo.json");
}

TEST(Tokenizer, equals_hugging_face_on_deepseek_v3) {
  NEED_DEEPSEEK_FILES();
  const auto tokenizer = Tokenizer::load_folder(deepseek_folder());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  expect_equal_to_hugging_face(*tokenizer, "golden_deepseek_v3.json");
  EXPECT_EQ(tokenizer->vocab_size(), 128815);
  EXPECT_EQ(tokenizer->bos_id(), 0);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_TRUE(tokenizer->add_bos());
}

// Moonlight's and Kimi-K2's form: ids come from the package tiktoken with their pattern.
TEST(Tokenizer, equals_tiktoken_on_tiktoken_files) {
  const auto tokenizer = Tokenizer::load_folder(fixture_path("tokenizer/tiktoken"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  expect_equal_to_hugging_face(*tokenizer, "golden_tiktoken.json");
  EXPECT_EQ(tokenizer->bos_id(), tokenizer->added_token_id("[BOS]"));
  EXPECT_EQ(tokenizer->token_bytes(tokenizer->vocab_size() - 1),
            fmt::format("<|reserved_token_{}|>", tokenizer->vocab_size() - 1));
  EXPECT_FALSE(tokenizer->add_bos());
}

TEST(Tokenizer, knows_its_special_tokens) {
  const Tokenizer& tokenizer = small_tokenizer();
  const int32_t bos = tokenizer.bos_id().value();
  EXPECT_EQ(tokenizer.token_bytes(bos), "<｜begin▁of▁sentence｜>");
  EXPECT_TRUE(tokenizer.is_special(bos));
  EXPECT_EQ(tokenizer.eos_id(), tokenizer.added_token_id("<｜end▁of▁sentence｜>"));
  EXPECT_EQ(tokenizer.pad_id(), tokenizer.eos_id());
  EXPECT_TRUE(tokenizer.add_bos());
  const int32_t user = tokenizer.added_token_id("<｜User｜>").value();
  EXPECT_TRUE(tokenizer.is_added(user));
  EXPECT_FALSE(tokenizer.is_special(user));
  EXPECT_FALSE(tokenizer.added_token_id("<｜Nobody｜>").has_value());
}

TEST(Tokenizer, ids_out_of_range_are_unknown) {
  const Tokenizer& tokenizer = small_tokenizer();
  for (const int32_t id : {-1, tokenizer.vocab_size(), INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(tokenizer.is_known(id));
    EXPECT_EQ(tokenizer.token_bytes(id), "");
    EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{id}, false), "");
  }
}

TEST(Tokenizer, user_text_never_becomes_an_added_token) {
  const Tokenizer& tokenizer = small_tokenizer();
  ASSERT_TRUE(rc::check([&] {
    const auto words = *rc::gen::container<std::vector<std::string>>(
        rc::gen::oneOf(rc::gen::elementOf(tokenizer.added_tokens()),
                       rc::gen::element<std::string>("<", "｜>", " ", "a", "<｜")));
    std::string text;
    for (const std::string& word : words) text += word;
    const auto ids = tokenizer.encode(text);
    RC_ASSERT(ids.ok());
    for (const int32_t id : *ids) RC_ASSERT(!tokenizer.is_added(id));
    RC_ASSERT(tokenizer.decode(*ids, true) == text);
  }));
}

TEST(Tokenizer, decoding_restores_any_bytes_as_text) {
  ASSERT_TRUE(rc::check([&](const std::vector<uint8_t>& raw) {
    const std::string bytes(raw.begin(), raw.end());
    const auto ids = small_tokenizer().encode(bytes);
    RC_ASSERT(ids.ok());
    RC_ASSERT(small_tokenizer().decode(*ids, false) == replace_invalid_utf8(bytes));
  }));
}

TEST(Detokenizer, the_pieces_of_any_ids_make_the_decoded_text) {
  const Tokenizer& tokenizer = small_tokenizer();
  ASSERT_TRUE(rc::check([&](bool skip_special_tokens) {
    // Up to a few unknown ids past the end; low ids are mostly single bytes, so characters come apart.
    const auto ids = *rc::gen::container<Ids>(
        rc::gen::oneOf(rc::gen::inRange(-2, 256), rc::gen::inRange(0, tokenizer.vocab_size() + 3)));
    Detokenizer detokenizer(tokenizer, skip_special_tokens);
    std::string text;
    for (const int32_t id : ids) {
      std::string piece;
      detokenizer.push(id, piece);
      RC_ASSERT(is_valid_utf8(piece));
      text += piece;
    }
    detokenizer.flush(text);
    RC_ASSERT(text == tokenizer.decode(ids, skip_special_tokens));
  }));
}

// The small tokenizer with another pre-tokenizer.
Result<Tokenizer> with_pre_tokenizer(const Json& pre_tokenizer) {
  Json json = json_fixture("tokenizer/small/tokenizer.json");
  json["pre_tokenizer"] = pre_tokenizer;
  return Tokenizer::load({.source = "dir", .tokenizer_json = json.dump()});
}

Json split(const std::string& regex, const std::string& behavior = "Isolated", bool invert = false) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", behavior}, {"invert", invert}};
}
Json byte_level(bool prefix_space, bool regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", prefix_space},
          {"trim_offsets", true},
          {"use_regex", regex}};
}
Json sequence(const std::vector<Json>& members) { return {{"type", "Sequence"}, {"pretokenizers", members}}; }

// A sequence within a sequence is left to the library, which runs each member over the whole text.
TEST(Tokenizer, encoding_in_pieces_equals_the_library_on_the_whole) {
  const Json small = json_fixture("tokenizer/small/tokenizer.json")["pre_tokenizer"];
  const std::string words =
      R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const std::vector<std::vector<Json>> kinds = {
      small.value("pretokenizers", std::vector<Json>{small}),
      {split("[\r\n]"),
       split(R"(\s?\p{L}+)"),
       {{"type", "Digits"}, {"individual_digits", true}},
       byte_level(false, false)},
      {split(words), byte_level(false, false)},
      {split(words, "Removed", true), byte_level(false, false)},
      {split(R"(\s+)", "MergedWithNext"),
       {{"type", "Digits"}, {"individual_digits", false}},
       byte_level(false, false)},
      {split("x*"), byte_level(true, true)},
      {{{"type", "Punctuation"}, {"behavior", "Isolated"}}, byte_level(true, false)},
      {{{"type", "WhitespaceSplit"}}, byte_level(false, true)},
      {byte_level(true, true)},
  };
  for (const auto& stages : kinds) {
    const auto in_pieces = with_pre_tokenizer(sequence(stages));
    const auto whole = with_pre_tokenizer(sequence({sequence(stages)}));
    ASSERT_TRUE(in_pieces.ok() && whole.ok()) << Json(stages);
    const auto alone = stages.size() == 1 ? with_pre_tokenizer(stages[0]) : in_pieces;
    ASSERT_TRUE(rc::check([&] {
      const auto parts = *rc::gen::container<std::vector<std::string>>(rc::gen::oneOf(
          rc::gen::arbitrary<std::string>(), rc::gen::elementOf(whole->added_tokens()),
          rc::gen::element<std::string>("x", " ", "  ", "\r\n", "\n", "\t", "12345", "٣", "½", "!?", "it's",
                                        "hello", "模型", "é", "e\u0301", "\u3000")));
      std::string text;
      for (const std::string& part : parts) text += part;
      const auto plain = whole->encode(text), trusted = whole->encode_with_special(text);
      RC_ASSERT(plain.ok() && trusted.ok());
      RC_ASSERT(in_pieces->encode(text).value() == *plain);
      RC_ASSERT(in_pieces->encode_with_special(text).value() == *trusted);
      RC_ASSERT(alone->encode(text).value() == *plain);
      RC_ASSERT(in_pieces->encode_marked(text, "x").value() == whole->encode_marked(text, "x").value());
    })) << Json(stages);
  }
}

TEST(Tokenizer, a_check_ends_an_encoding_between_pieces) {
  const Tokenizer& tokenizer = small_tokenizer();
  const std::string text = [] {
    std::string out;
    for (int i = 0; i < 50'000; ++i) out += "1 a\n";
    return out;
  }();
  const Ids all = tokenizer.encode(text).value();
  for (const size_t tokens_max : {size_t{0}, size_t{30'000}}) {
    size_t asked_last = 0;
    const EncodeCheck check = [&](size_t num_tokens) {
      EXPECT_GE(num_tokens, asked_last);
      asked_last = num_tokens;
      return num_tokens <= tokens_max ? ok_status() : make_status(StatusCode::kCancelled, "enough");
    };
    const auto expect_ended = [&](const Result<Ids>& result) {
      EXPECT_EQ(result.status().code(), StatusCode::kCancelled);
      EXPECT_EQ(result.status().message(), "enough");
      EXPECT_LT(asked_last, tokens_max + 10'000);
      asked_last = 0;
    };
    expect_ended(tokenizer.encode(text, check));
    expect_ended(tokenizer.encode_with_special(text, check));
    expect_ended(tokenizer.encode_marked(text, "|", check));
  }
  int times = 0;
  EXPECT_EQ(tokenizer.encode(text, [&](size_t) { return ++times, ok_status(); }).value(), all);
  EXPECT_GT(times, 10);
}

TEST(Tokenizer, many_threads_get_the_same_ids) {
  const std::string text = "What is 347 + 586? 模型把提示词分成小块 <think> नमस्ते";
  const Ids want = small_tokenizer().encode(text).value();
  std::vector<std::thread> threads;
  std::atomic<int> num_wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) num_wrong += small_tokenizer().encode(text).value() != want;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
}

Status load_status(const std::string& tokenizer_json, const std::string& config_json = "") {
  return Tokenizer::load(
             {.source = "dir", .tokenizer_json = tokenizer_json, .tokenizer_config_json = config_json})
      .status();
}

TEST(Tokenizer, load_errors_name_the_file_and_the_reason) {
  const auto starts = [](const Status& status, std::string_view text) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(status.message().starts_with(text)) << status.message();
  };
  starts(load_status(""), "dir/tokenizer.json: EOF while parsing");
  const auto tiktoken = [](const std::string& model) {
    return Tokenizer::load({.source = "dir", .tiktoken_model = model}).status();
  };
  starts(tiktoken("IQ== 0\nIg== 2\n"), "dir/tiktoken.model: line 2: expected rank 1, found 2");
  starts(tiktoken("I*== 0\n"), "dir/tiktoken.model: line 1: not base64");
  starts(tiktoken("IQ==\n"), "dir/tiktoken.model: line 1: expected \"BASE64 RANK\"");
  starts(load_status("{\"version\":"), "dir/tokenizer.json: EOF while parsing");
  starts(load_status("\xff\xff"), "dir/tokenizer.json: expected value");
  starts(load_status("{}"), "dir/tokenizer.json: ");
  const std::string word_level =
      R"({"version":"1.0","added_tokens":[],"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}})";
  starts(load_status(word_level), "dir/tokenizer.json: the model is not BPE");
  const std::string good = read_fixture("tokenizer/small/tokenizer.json");
  EXPECT_TRUE(load_status(good).ok());
  starts(load_status(good, "{"), "dir/tokenizer_config.json: not valid JSON");
  starts(load_status(good, "[]"), "dir/tokenizer_config.json: not a JSON object");
  starts(load_status(good, R"({"bos_token": 3})"), "dir/tokenizer_config.json: bos_token: expected a string");
  std::string huge = good;
  huge.replace(huge.find("\"!\":0"), 5, "\"!\":4000000000");
  starts(load_status(huge), "dir/tokenizer.json: token id 4000000000 is above the limit");
  EXPECT_TRUE(
      Tokenizer::load_folder("/nonexistent").status().message().starts_with("/nonexistent/tokenizer.json: "));
}

TEST(Tokenizer, bos_habit_follows_the_config) {
  const std::string good = read_fixture("tokenizer/small/tokenizer.json");
  const auto add_bos = [&](const std::string& config) {
    return Tokenizer::load({.source = "d", .tokenizer_json = good, .tokenizer_config_json = config})
        ->add_bos();
  };
  const std::string bos = R"("bos_token":"<｜begin▁of▁sentence｜>")";
  EXPECT_FALSE(add_bos(""));
  EXPECT_TRUE(add_bos("{" + bos + R"(,"add_bos_token":true})"));
  EXPECT_FALSE(add_bos("{" + bos + R"(,"add_bos_token":false,"tokenizer_class":"LlamaTokenizerFast"})"));
  EXPECT_TRUE(add_bos("{" + bos + R"(,"tokenizer_class":"LlamaTokenizerFast"})"));
  EXPECT_FALSE(add_bos("{" + bos + R"(,"tokenizer_class":"PreTrainedTokenizerFast"})"));
}

}  // namespace
}  // namespace fathom
