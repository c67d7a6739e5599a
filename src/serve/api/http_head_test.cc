// Refusals that a header alone decides, by status.
#include "serve/api/http_head.h"

#include <gtest/gtest.h>

namespace fathom::serve {
namespace {

using Headers = std::vector<std::pair<std::string, std::string>>;

// The status of the refusal, or 0.
int status_of(Headers headers, int version = 11) {
  HttpRequest head;
  head.headers = std::move(headers);
  const auto refusal = check_head(head, version);
  return refusal ? refusal->status : 0;
}

TEST(HttpHead, one_host_and_none_before_http_1_1) {
  EXPECT_EQ(status_of({{"host", "a"}}), 0);
  EXPECT_EQ(status_of({{"host", ""}}), 0);
  EXPECT_EQ(status_of({}), 400);
  EXPECT_EQ(status_of({}, 10), 0);
  EXPECT_EQ(status_of({{"host", "a"}, {"host", "a"}}), 400);
  EXPECT_EQ(status_of({{"host", "a"}, {"host", "a"}}, 10), 400);
}

TEST(HttpHead, a_body_has_one_length) {
  const auto with = [](Headers more, int version = 11) {
    more.emplace_back("host", "a");
    return status_of(std::move(more), version);
  };
  EXPECT_EQ(with({{"content-length", "5"}}), 0);
  EXPECT_EQ(with({{"transfer-encoding", "Chunked"}}), 0);
  EXPECT_EQ(with({{"content-length", "5"}, {"content-length", "5"}}), 400);
  EXPECT_EQ(with({{"content-length", "5"}, {"transfer-encoding", "chunked"}}), 400);
  EXPECT_EQ(with({{"transfer-encoding", "chunked"}}, 10), 400);
  for (const char* coding :
       {"xchunked", "chunked, gzip", "gzip, chunked", "chunked, chunked", "identity", "", "chunked;q=1"}) {
    EXPECT_EQ(with({{"transfer-encoding", coding}}), 501) << coding;
  }
  EXPECT_EQ(with({{"transfer-encoding", "chunked"}, {"transfer-encoding", "chunked"}}), 501);
}

TEST(HttpHead, what_is_expected_and_how_the_body_is_coded) {
  EXPECT_EQ(status_of({{"host", "a"}, {"expect", "100-Continue"}}), 0);
  EXPECT_EQ(status_of({{"host", "a"}, {"expect", "foo"}}), 417);
  EXPECT_EQ(status_of({{"host", "a"}, {"expect", "foo"}}, 10), 0) << "HTTP/1.0 knows no Expect";
  EXPECT_EQ(status_of({{"host", "a"}, {"content-encoding", "Identity"}}), 0);
  EXPECT_EQ(status_of({{"host", "a"}, {"content-encoding", "gzip"}}), 415);
}

}  // namespace
}  // namespace fathom::serve
