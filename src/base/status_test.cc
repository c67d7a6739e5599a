// Status and Result: a value or the reason, handed on unchanged or with its context before it.
#include "base/status.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return invalid_argument("{} is odd", x);
  return x / 2;
}
Result<int> quarter(int x) {
  ASSIGN_OR_RETURN(int h, half(x));
  return half(h);
}

TEST(Status, results_carry_a_value_or_the_reason) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(6).status().message(), "3 is odd");
  EXPECT_EQ(quarter(6).status().with_context("f").to_string(), "INVALID_ARGUMENT: f: 3 is odd");
}

}  // namespace
}  // namespace fathom
