// Text that looks like a special token is broken up, and the mark of trusted text occurs nowhere else.
#include "text/marked_text.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

constexpr std::string_view kMark = "*";

std::string mark(std::string_view text, bool also_ends = false,
                 const std::vector<std::string>& allowed = {}) {
  const std::vector<std::string> tokens = {"<User>", "<think>", "</think>", "«end»"};
  return LookAlikeMarker(tokens).mark(text, kMark, also_ends, allowed);
}

TEST(LookAlikeMarker, breaks_every_whole_token) {
  EXPECT_EQ(mark("a<User>b"), "a<*User>b");
  EXPECT_EQ(mark("<User><User>"), "<*User><*User>");
  EXPECT_EQ(mark("«end»"), "«*end»");
  EXPECT_EQ(mark("<<User>"), "<<*User>");
  EXPECT_EQ(mark("plain <b> text"), "plain <b> text");
  EXPECT_EQ(mark(""), "");
}

TEST(LookAlikeMarker, breaks_ends_that_could_become_part_of_a_token_when_asked) {
  EXPECT_EQ(mark("a <"), "a <");
  EXPECT_EQ(mark("a <", true), "a <*");
  EXPECT_EQ(mark("<Us", true), "<*Us");
  EXPECT_EQ(mark("<</th", true), "<<*/th");
  EXPECT_EQ(mark("<Us ", true), "<Us ");
  EXPECT_EQ(mark("> quote"), "> quote");
  EXPECT_EQ(mark("> quote", true), "*> quote");
  EXPECT_EQ(mark("ser> x", true), "*ser> x");
  EXPECT_EQ(mark("ser x", true), "ser x");
  EXPECT_EQ(mark("User", true), "*User");
}

TEST(LookAlikeMarker, leaves_allowed_tokens_whole) {
  const std::vector<std::string> tags = {"<think>", "</think>"};
  EXPECT_EQ(mark("<think>a</think>", true, tags), "<think>a</think>");
  EXPECT_EQ(mark("<think><User></think", true, tags), "<think><*User><*/think");
}

TEST(SentinelChooser, picks_a_character_that_no_text_holds) {
  SentinelChooser chooser;
  EXPECT_EQ(chooser.choose(), "\xEF\xB7\x90");
  chooser.avoid("x\xEF\xB7\x90y\xEF\xB7\x91");
  EXPECT_EQ(chooser.choose(), "\xEF\xB7\x92");
  for (int i = 0; i < 32; ++i) chooser.avoid(std::string("\xEF\xB7") + static_cast<char>(0x90 + i));
  EXPECT_EQ(chooser.choose(), "\xF4\x8F\x80\x80");
  std::string all;
  for (int i = 0; i < 0x1000; ++i) {
    all += {'\xF4', '\x8F', static_cast<char>(0x80 | i >> 6), static_cast<char>(0x80 | (i & 0x3F))};
  }
  chooser.avoid(all.substr(0, all.size() - 4));
  EXPECT_EQ(chooser.choose(), "\xF4\x8F\xBF\xBF");
  chooser.avoid(all);
  EXPECT_FALSE(chooser.choose().has_value());
}

}  // namespace
}  // namespace fathom
