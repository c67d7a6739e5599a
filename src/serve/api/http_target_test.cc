// The forms of RFC 9112 §3.2 that a server must take, and escapes that are none.
#include "serve/api/http_target.h"

#include <gtest/gtest.h>

namespace fathom::serve {
namespace {

TEST(HttpTarget, both_forms_give_path_and_query) {
  for (const char* text : {"/v1/models?a=1&b=%20", "http://host:8000/v1/models?a=1&b=%20",
                           "https://host/v1/models?a=1&b=%20", "HTTP://host/v1/models?a=1&b=%20"}) {
    const HttpTarget target = parse_target(text);
    EXPECT_EQ(target.path, "/v1/models") << text;
    EXPECT_EQ(target.query, "a=1&b=%20") << text;
  }
  EXPECT_EQ(parse_target("http://host").path, "/");
  EXPECT_EQ(parse_target("http://host?q").path, "/");
  EXPECT_EQ(parse_target("http://host?q").query, "q");
  EXPECT_EQ(parse_target("/a?b?c").query, "b?c");
  EXPECT_EQ(parse_target("/a").query, "");
}

TEST(HttpTarget, escapes_are_decoded_and_others_stay) {
  EXPECT_EQ(parse_target("/v1%2Fmodels%3f").path, "/v1/models?");
  for (const char* text : {"/%", "/%2", "/%zz", "/%2g", "/a%"}) EXPECT_EQ(parse_target(text).path, text);
  EXPECT_EQ(parse_target("/%00").path, std::string_view("/\0", 2));
}

}  // namespace
}  // namespace fathom::serve
