// Reasoning apart from content: the tags' rules, and that any cut of the text gives the same parts.
#include "text/reasoning_parser.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "text/test_cuts.h"

namespace fathom {
namespace {

struct Parts {
  std::string reasoning;
  std::string content;
  bool operator==(const Parts&) const = default;
};

std::ostream& operator<<(std::ostream& os, const Parts& p) {
  return os << "{" << p.reasoning << "|" << p.content << "}";
}

Parts parse(bool starts_in_reasoning, std::string_view text, const Cuts& cuts = {}) {
  ReasoningParser parser(starts_in_reasoning);
  Parts parts;
  for (const std::string_view piece : cuts.apply(text)) parser.push(piece, parts.reasoning, parts.content);
  parser.flush(parts.reasoning, parts.content);
  return parts;
}

TEST(ReasoningParser, splits_at_the_tags) {
  EXPECT_EQ(parse(false, "<think>\nwhy\n</think>\n\nbecause"), (Parts{"why", "because"}));
  EXPECT_EQ(parse(true, "why\n</think>\n\nbecause"), (Parts{"why", "because"}));
  EXPECT_EQ(parse(true, "<think>\nwhy</think>because"), (Parts{"why", "because"}));
  EXPECT_EQ(parse(false, "\n <think>why</think>because"), (Parts{"why", "because"}));
  EXPECT_EQ(parse(false, "<think></think>because"), (Parts{"", "because"}));
  EXPECT_EQ(parse(true, "\n\n</think>\n\nbecause"), (Parts{"", "because"}));
}

TEST(ReasoningParser, text_without_tags_belongs_to_one_part) {
  EXPECT_EQ(parse(false, "an answer"), (Parts{"", "an answer"}));
  EXPECT_EQ(parse(false, "\n an answer\n"), (Parts{"", "\n an answer\n"}));
  EXPECT_EQ(parse(true, "cut off"), (Parts{"cut off", ""}));
  EXPECT_EQ(parse(true, "cut off\n</thi"), (Parts{"cut off\n</thi", ""}));
  EXPECT_EQ(parse(false, "<thi"), (Parts{"", "<thi"}));
  EXPECT_EQ(parse(false, ""), (Parts{"", ""}));
}

TEST(ReasoningParser, later_tags_are_content) {
  EXPECT_EQ(parse(false, "see <think>x</think>"), (Parts{"", "see <think>x</think>"}));
  EXPECT_EQ(parse(true, "a</think>b</think>c<think>d"), (Parts{"a", "b</think>c<think>d"}));
}

TEST(ReasoningParser, inner_line_breaks_and_broken_tags_stay) {
  EXPECT_EQ(parse(true, "a\n\nb<//think></ think>\n<</think>c\n"),
            (Parts{"a\n\nb<//think></ think>\n<", "c\n"}));
}

TEST(ReasoningParser, content_starts_to_flow_as_soon_as_it_is_certain) {
  ReasoningParser parser(false);
  std::string reasoning, content;
  parser.push("<thing", reasoning, content);
  EXPECT_EQ(content, "<thing");
  EXPECT_FALSE(parser.in_reasoning());
}

TEST(ReasoningParser, any_cut_gives_the_same_parts) {
  ASSERT_TRUE(rc::check([] {
    const auto words = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
        "<think>", "</think>", "\n", " ", "a", "<", "</thi", "nk>", "\r\n", "<think"));
    std::string text;
    for (const std::string& word : words) text += word;
    const bool starts_in_reasoning = *rc::gen::arbitrary<bool>();
    const auto cuts = *rc::gen::arbitrary<Cuts>();
    RC_ASSERT(parse(starts_in_reasoning, text, cuts) == parse(starts_in_reasoning, text));
  }));
}

// The rules of the header by search instead of by state.
TEST(ReasoningParser, equals_the_rules_applied_to_the_whole_text) {
  const auto strip_front = [](std::string text) {
    return text.erase(0, std::min(text.find_first_not_of("\r\n"), text.size()));
  };
  const auto strip_back = [](std::string text) { return text.erase(text.find_last_not_of("\r\n") + 1); };
  ASSERT_TRUE(rc::check([&] {
    const auto inside = *rc::gen::container<std::string>(rc::gen::element('a', '\n', '<', '/', 't', ' '));
    const auto after = *rc::gen::container<std::string>(rc::gen::element('a', '\n', '<', '>', ' '));
    const auto cuts = *rc::gen::arbitrary<Cuts>();
    const Parts want{strip_back(strip_front(inside)), strip_front(after)};
    RC_ASSERT(parse(true, inside + "</think>" + after, cuts) == want);
    RC_ASSERT(parse(false, "<think>" + inside + "</think>" + after, cuts) == want);
  }));
}

}  // namespace
}  // namespace fathom
