// UTF-8 with replacement as Python does it, and a decoder that holds back incomplete characters only.
#include "text/utf8.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <vector>

#include "text/test_cuts.h"

namespace fathom {
namespace {

constexpr std::string_view kBad = "\xEF\xBF\xBD";

std::string repeat(std::string_view text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

// Expected values from Python: bytes.decode("utf-8", "replace").
TEST(Utf8, invalid_bytes_are_replaced_by_maximal_subparts) {
  const std::string bad(kBad);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"plain", "plain"},
      {"\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80", "\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80"},
      {"a\x80z", "a" + bad + "z"},
      {"\xC0\xAF", repeat(kBad, 2)},
      {"\xE0\x80\xAF", repeat(kBad, 3)},
      {"\xED\xA0\x80", repeat(kBad, 3)},
      {"\xF0\x82\x82\xAC", repeat(kBad, 4)},
      {"\xF4\x91\x92\x93\xFF\x41", repeat(kBad, 5) + "A"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", repeat(kBad, 4) + "A"},
      {"\xF0\x9F\x98", bad},
      {"\xE4\xB8", bad},
      {"\xE4\xB8\xE4\xB8\xAD", bad + "\xE4\xB8\xAD"},
      {std::string("\0x", 2), std::string("\0x", 2)},
  };
  for (const auto& [bytes, text] : cases) EXPECT_EQ(replace_invalid_utf8(bytes), text);
}

TEST(Utf8, validity_and_length) {
  EXPECT_TRUE(is_valid_utf8(""));
  EXPECT_TRUE(is_valid_utf8("a\xEF\xBF\xBD"));
  EXPECT_FALSE(is_valid_utf8("a\xEF\xBF"));
  EXPECT_FALSE(is_valid_utf8("\xC1\x81"));
  EXPECT_EQ(count_code_points("a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80"), 4u);
}

TEST(Utf8, text_does_not_depend_on_the_cuts) {
  ASSERT_TRUE(rc::check([](const std::string& ascii, std::vector<uint8_t> raw, const Cuts& cuts) {
    const std::string bytes = ascii + std::string(raw.begin(), raw.end());
    Utf8Stream stream;
    std::string out;
    for (const std::string_view piece : cuts.apply(bytes)) stream.push(piece, out);
    stream.flush(out);
    RC_ASSERT(out == replace_invalid_utf8(bytes));
    RC_ASSERT(is_valid_utf8(out));
  }));
}

TEST(Utf8, only_an_incomplete_character_is_held) {
  Utf8Stream stream;
  std::string out;
  stream.push("a\xF0\x9F\x98", out);
  EXPECT_EQ(out, "a");
  stream.push("\x80", out);
  EXPECT_EQ(out, "a\xF0\x9F\x98\x80");
}

}  // namespace
}  // namespace fathom
