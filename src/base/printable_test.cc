// What may not reach a terminal: line breaks, escape sequences, C1 controls; and what must reach it
// unchanged.
#include "base/printable.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(Printable, EscapesEveryControlCharacterAndNothingElse) {
  EXPECT_EQ(printable("a\nb\x1b[2J\x7f"), "a\\x0ab\\x1b[2J\\x7f");
  EXPECT_EQ(printable(std::string_view("\0x", 2)), "\\x00x");
  EXPECT_EQ(printable("\u009b2J"), "\\xc2\\x9b2J");  // CSI as one C1 character
  EXPECT_EQ(printable("é\u00a0模型 \\n \"q\""), "é\u00a0模型 \\n \"q\"");
  EXPECT_EQ(printable("\xc2"), "\xc2");  // torn UTF-8 is no control character
  EXPECT_EQ(printable(""), "");
}

TEST(Printable, KeepsLinesAndTabsOfLongText) {
  EXPECT_EQ(without_controls("a\n\tb\r\x1b]0;x\x07\u0085é"), "a\n\tb]0;xé");
}

TEST(Printable, TellsWhetherThereAreAny) {
  EXPECT_TRUE(has_control_characters("a\rb"));
  EXPECT_TRUE(has_control_characters("\u0090"));
  EXPECT_FALSE(has_control_characters("sk-é_~"));
}

}  // namespace
}  // namespace fathom
