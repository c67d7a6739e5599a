// The forms of RFC 9112 §3.2 that a server must take, and escapes that are none.
#include "serve/api/http_target.h"

#include <gtest/gtest.h>

namespace fathom::serve {
namespace {

TEST(HttpTarget, both_forms_give_the_path_without_the_query) {
  for (const char* text : {"/v1/models?a=1&b=%20", "http://host:8000/v1/models?a=1&b=%20",
                           "https://host/v1/models?a=1&b=%20", "HTTP://host/v1/models?a=1&b=%20"}) {
    EXPECT_EQ(path_of_target(text), "/v1/models") << text;
  }
  EXPECT_EQ(path_of_target("http://host"), "/");
  EXPECT_EQ(path_of_target("http://host?q"), "/");
  EXPECT_EQ(path_of_target("/a?b?c"), "/a");
  EXPECT_EQ(path_of_target("/a"), "/a");
}

TEST(HttpTarget, escapes_are_decoded_and_others_stay) {
  EXPECT_EQ(path_of_target("/v1%2Fmodels%3f"), "/v1/models?");
  for (const char* text : {"/%", "/%2", "/%zz", "/%2g", "/a%"}) EXPECT_EQ(path_of_target(text), text);
  EXPECT_EQ(path_of_target("/%00"), std::string_view("/\0", 2));
}

}  // namespace
}  // namespace fathom::serve
