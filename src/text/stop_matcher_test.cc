// Stop strings over any cut of the text: the first complete one wins and no prefix of it leaks.
#include "text/stop_matcher.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "text/test_cuts.h"

namespace fathom {
namespace {

struct Outcome {
  std::string text;
  bool stopped = false;
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& os, const Outcome& o) {
  return os << "{" << o.text << "|" << o.stopped << "}";
}

Outcome run(const std::vector<std::string>& stops, std::string_view text, const Cuts& cuts = {}) {
  StopMatcher matcher(stops);
  Outcome outcome;
  for (const std::string_view piece : cuts.apply(text)) matcher.push(piece, outcome.text);
  outcome.stopped = matcher.matched();
  if (!outcome.stopped) matcher.flush(outcome.text);
  return outcome;
}

// The definition, by search: the first position where some stop string ends, the longest one ending there.
Outcome by_definition(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop) && stop.size() > best.size()) best = stop;
    }
    if (!best.empty()) return {text.substr(0, end - best.size()), true};
  }
  return {text, false};
}

TEST(StopMatcher, the_first_complete_stop_string_wins) {
  EXPECT_EQ(run({"STOP"}, "one STOP two"), (Outcome{"one ", true}));
  EXPECT_EQ(run({"b", "abc"}, "xabc"), (Outcome{"xa", true}));
  EXPECT_EQ(run({"c", "abc"}, "xabc"), (Outcome{"x", true}));
  EXPECT_EQ(run({"\n\n"}, "a\nb\n\nc"), (Outcome{"a\nb", true}));
  EXPECT_EQ(run({"aab"}, "aaab"), (Outcome{"a", true}));
  EXPECT_EQ(run({""}, "text"), (Outcome{"text", false}));
  EXPECT_EQ(run({}, "text"), (Outcome{"text", false}));
}

TEST(StopMatcher, holds_back_only_what_may_become_a_stop_string) {
  StopMatcher matcher({"</end>"});
  std::string out;
  EXPECT_FALSE(matcher.push("a<", out));
  EXPECT_EQ(out, "a");
  EXPECT_FALSE(matcher.push("/e", out));
  EXPECT_EQ(out, "a");
  EXPECT_FALSE(matcher.push("x</en", out));
  EXPECT_EQ(out, "a</ex");
  EXPECT_TRUE(matcher.push("d>tail", out));
  EXPECT_TRUE(matcher.push("more", out));
  EXPECT_EQ(out, "a</ex");
}

TEST(StopMatcher, flush_gives_back_an_unfinished_stop_string) {
  EXPECT_EQ(run({"stop"}, "a sto").text, "a sto");
}

TEST(StopMatcher, any_cut_gives_the_defined_result) {
  // Three letters make overlaps frequent.
  const auto word = [](int size_max) {
    return rc::gen::resize(size_max, rc::gen::container<std::string>(rc::gen::element('a', 'b', '\n')));
  };
  ASSERT_TRUE(rc::check([&] {
    const auto stops = *rc::gen::resize(4, rc::gen::container<std::vector<std::string>>(word(5)));
    const auto text = *word(60);
    const auto cuts = *rc::gen::arbitrary<Cuts>();
    RC_ASSERT(run(stops, text, cuts) == by_definition(stops, text));
  }));
}

TEST(StopMatcher, no_prefix_of_a_stop_string_leaks) {
  ASSERT_TRUE(rc::check([] {
    const auto before = *rc::gen::container<std::string>(rc::gen::element('x', 'y', 'S', 'T'));
    const auto cuts = *rc::gen::arbitrary<Cuts>();
    StopMatcher matcher({"STOP"});
    std::string out;
    const std::string text = before + "STOP";
    for (const std::string_view piece : cuts.apply(text)) {
      matcher.push(piece, out);
      RC_ASSERT(std::string_view(before).starts_with(out));
    }
    RC_ASSERT(out == before);
  }));
}

}  // namespace
}  // namespace fathom
