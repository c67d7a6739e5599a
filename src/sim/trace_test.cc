// The shipped traces, and torn ones.
#include "sim/trace.h"

#include <gtest/gtest.h>

#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

Trace shipped(const std::string& name) {
  return parse_trace(name, read_file_for_test(source_path("data/" + name)).value()).value();
}

std::string error_of(const std::string& text) { return parse_trace("t.jsonl", text).status().message(); }

TEST(Trace, MooncakeReadsWholeAndGivesItsBound) {
  const Trace trace = shipped("mooncake_conversation.jsonl");
  ASSERT_EQ(trace.requests.size(), 12031u);
  EXPECT_EQ(trace.requests[0].input_tokens, 6758);
  EXPECT_EQ(trace.requests[0].blocks.size(), 14u);
  const TraceStats stats = trace_stats(trace);
  std::printf("Mooncake: %.1f requests/s, %.0f in, %.0f out, bound on hits %.2f %%\n", stats.requests_per_s,
              stats.input_mean, stats.output_mean, stats.hit_share_bound * 100);
  EXPECT_NEAR(stats.hit_share_bound, 0.374, 0.002);
  EXPECT_NEAR(stats.mix.cached_per_computed, 0.374 / 0.626, 0.01);
  EXPECT_NEAR(stats.mix.computed_tokens, stats.input_mean * (1 - stats.hit_share_bound), 1);
  EXPECT_NEAR(stats.input_cv2, 1.72, 0.05);
  EXPECT_NEAR(stats.output_cv2, 0.53, 0.05);
}

TEST(Trace, AzureReadsWhole) {
  const Trace trace = shipped("azure_conv_2023.csv");
  ASSERT_EQ(trace.requests.size(), 19366u);
  EXPECT_EQ(trace.requests[0].arrival_us, 0);
  EXPECT_EQ(trace.requests[0].input_tokens, 374);
  EXPECT_NEAR(trace_stats(trace).duration_s, 3501.7, 0.1);
  EXPECT_EQ(trace_stats(trace).hit_share_bound, 0);
  EXPECT_EQ(trace_stats(trace).mix.cached_per_computed, 0);
}

TEST(Trace, ACsvTraceRunsOverMidnightAndLeapDays) {
  const Trace trace =
      parse_trace("t.csv",
                  "2024-02-28 23:59:59.5,1,1\n2024-02-29 00:00:00.5,1,1\n2024-03-01 00:00:00.5,1,1\n")
          .value();
  EXPECT_EQ(trace.requests[1].arrival_us, 1'000'000);
  EXPECT_EQ(trace.requests[2].arrival_us, 86'401'000'000);
}

// A header names its columns, in any order; those that a replay does not use are accepted.
TEST(Trace, ACsvHeaderMayHaveMoreColumns) {
  const Trace trace = parse_trace("t.csv",
                                  "Model,TIMESTAMP,GeneratedTokens,ContextTokens,User\n"
                                  "chat,2024-02-28 23:59:59.5,7,11,ann\n,2024-02-28 23:59:59.5,8,12,\n")
                          .value();
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[0].input_tokens, 11);
  EXPECT_EQ(trace.requests[1].output_tokens, 8);
  const std::string row = "2023-11-16 18:15:46.68,5,6";
  EXPECT_EQ(error_of("TIMESTAMP,ContextTokens\n"),
            "t.jsonl:1: GeneratedTokens: no such column in the header");
  EXPECT_EQ(error_of("TIMESTAMP,ContextTokens,GeneratedTokens,TIMESTAMP\n"),
            "t.jsonl:1: TIMESTAMP: two columns of that name");
  EXPECT_EQ(error_of("TIMESTAMP,ContextTokens,GeneratedTokens\n" + row + ",9\n"),
            "t.jsonl:2: column 4: \"9\", but the header names 3 columns");
  EXPECT_EQ(error_of(row + "\n" + row + ",chat\n"),
            "t.jsonl:2: column 4: \"chat\" has no name; more than TIMESTAMP,ContextTokens,GeneratedTokens "
            "needs a header");
}

TEST(Trace, TheFirstPartOfEachHourClosesTheGaps) {
  Trace trace{"t", 512, {}};
  for (int minute = 0; minute < 150; ++minute) trace.requests.push_back({minute * 60'000'000LL, 1, 1, {}});
  const Trace part = first_part_of_each_hour(trace, 0.1).value();
  ASSERT_EQ(part.requests.size(), 18u);  // minutes 0..5, 60..65, 120..125
  EXPECT_EQ(part.requests[6].arrival_us, 360'000'000);
  EXPECT_EQ(part.requests[17].arrival_us, (720 + 300) * 1'000'000LL);
  EXPECT_EQ(first_part_of_each_hour(trace, 1).value().requests.size(), 150u);
  EXPECT_EQ(first_part_of_each_hour(trace, 0.1, 600).value().requests.size(), 15u);
  trace.requests.erase(trace.requests.begin());
  trace.requests.resize(30);
  EXPECT_EQ(first_part_of_each_hour(trace, 0.01).status().message(),
            "--fraction: no request arrives in the first 36 s of any hour");
}

TEST(Trace, BadInputNamesFileLineAndField) {
  const std::string good =
      "{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 3, \"hash_ids\": [1, 2]}\n";
  EXPECT_EQ(error_of(good), "");
  EXPECT_EQ(error_of(good + good.substr(0, 60)), "t.jsonl:2: object: the line ends inside a field name");
  EXPECT_EQ(error_of(good + "{\"timestamp\": 6, \"input_length\": 600}\n"),
            "t.jsonl:2: output_length: missing or 0");
  EXPECT_EQ(
      error_of(good + "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}"),
      "t.jsonl:2: timestamp: earlier than the line before");
  EXPECT_EQ(error_of("{\"timestamp\": 6, \"input_length\": -4}"),
            "t.jsonl:1: input_length: -4 is outside 0..10000000");
  EXPECT_EQ(error_of("{\"timestamp\": 6, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [1]}"),
            "t.jsonl:1: hash_ids: 1 blocks of 512 tokens for 600 input tokens");
  EXPECT_EQ(error_of("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n"),
            "t.jsonl:2: TIMESTAMP: \"yesterday\" is not a time");
  EXPECT_EQ(error_of("2023-11-16 18:15:46.68,1\n"), "t.jsonl:1: GeneratedTokens: missing");
  EXPECT_EQ(error_of("2023-11-16 24:00:00,1,1\n"),
            "t.jsonl:1: TIMESTAMP: \"2023-11-16 24:00:00\" is not a time");
  EXPECT_EQ(error_of("2023-11-16 18:15:nan,1,1\n"),
            "t.jsonl:1: TIMESTAMP: \"2023-11-16 18:15:nan\" is not a time");
  EXPECT_EQ(error_of("2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1\n"),
            "t.jsonl:2: TIMESTAMP: earlier than the line before");
  EXPECT_EQ(error_of("{\"timestamp\": 6, \"input_length\": 6.5}"),
            "t.jsonl:1: input_length: 6.5 is not a whole number");
  EXPECT_EQ(error_of("{\"timestamp\": 6, \"timestamp\": 7}"), "t.jsonl:1: timestamp: given twice");
  EXPECT_EQ(error_of(""), "t.jsonl:1: trace: no requests");
  EXPECT_EQ(error_of("\n[{\"timestamp\": 6}]"),
            "t.jsonl:2: object: '[': a trace is one object per line, not a list");
  for (const char* time : {"2023-02-31 18:15:46", "2023-02-29 00:00:00", "1900-02-29 00:00:00",
                           "2023-11-31 00:00:00", "2023-11-16 18:15:01e1", "2023-11-16 18:15:1e1",
                           "2023-11-16 18:15:46x", "2023-11-16 18:15:461", "2023-11-16 18:15:61"}) {
    EXPECT_EQ(error_of(std::string(time) + ",1,1\n"),
              fmt::format("t.jsonl:1: TIMESTAMP: \"{}\" is not a time", time));
  }
}

TEST(Trace, TimesRunFromTheFirstRequest) {
  const std::string tail = ", \"input_length\": 1, \"output_length\": 1}\n";
  const Trace trace = parse_trace("t.jsonl", "{\"timestamp\": 1700000000000.5" + tail +
                                                 "\n{\"timestamp\": 1700000001000" + tail)
                          .value();
  EXPECT_EQ(trace.requests[0].arrival_us, 0);
  EXPECT_EQ(trace.requests[1].arrival_us, 999'500);
  EXPECT_EQ(trace.end_place, "t.jsonl:3: timestamp");
  EXPECT_EQ(trace_stats(trace).requests_per_s, 2 / 0.9995);
  const Trace csv = parse_trace("t.csv", "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:48,1,1\n").value();
  EXPECT_EQ(csv.end_place, "t.csv:2: TIMESTAMP");
  EXPECT_EQ(csv.span_s(), 2);
  // One instant tells no rate.
  EXPECT_EQ(trace_stats(parse_trace("t.csv", "2023-11-16 18:15:46,1,1\n").value()).requests_per_s, 0);
}

TEST(Trace, AByteOrderMarkAndSpaceBeforeTheFirstLineAreSkipped) {
  const std::string json = "{\"timestamp\": 6, \"input_length\": 1, \"output_length\": 1}\n";
  const std::string csv = "2023-11-16 18:15:46,1,1\n", mark = "\xef\xbb\xbf";
  for (const std::string& text : {mark + json, " " + json, "\r\n\t" + json, mark + csv,
                                  mark + "TIMESTAMP,ContextTokens,GeneratedTokens\n" + csv}) {
    EXPECT_EQ(error_of(text), "");
  }
}

// A torn JSON line never reads whole, a torn CSV row only where digits of its last number are gone; nothing
// in the file tells that from one that just has no last line feed (Azure's has none), so it is said.
TEST(Trace, EveryTearIsAnErrorOrSaid) {
  const std::string line =
      "{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 34, \"hash_ids\": [1, 22]}";
  const std::string lines = line + "\n" + line + "\n";
  for (size_t end = line.size() + 2; end < lines.size() - 1; ++end)
    EXPECT_TRUE(error_of(lines.substr(0, end)).starts_with("t.jsonl:2: ")) << end;
  EXPECT_EQ(error_of(lines.substr(0, lines.size() - 1)), "");
  for (const std::string head : {"", "TIMESTAMP,ContextTokens,GeneratedTokens\n"}) {
    const std::string row = "2023-11-16 18:15:46.68,374,445";
    const std::string rows = head + row + "\n" + row + "\n";
    int said = 0;
    for (size_t end = head.size() + row.size() + 2; end < rows.size(); ++end) {
      const Result<Trace> torn = parse_trace("t.csv", rows.substr(0, end));
      EXPECT_NE(torn.ok(), torn.status().message().starts_with(head.empty() ? "t.csv:2: " : "t.csv:3: "));
      if (!torn.ok()) continue;
      ++said;
      EXPECT_TRUE(torn->doubt.find("GeneratedTokens: the file ends without a line feed") != std::string::npos)
          << end;
    }
    EXPECT_EQ(said, 3);  // "4", "44" and "445"
    EXPECT_EQ(parse_trace("t.csv", rows)->doubt, "");
  }
  // A last column that is not read may be cut as it likes.
  const std::string wide = "TIMESTAMP,ContextTokens,GeneratedTokens,User\n2023-11-16 18:15:46.68,374,445,an";
  EXPECT_EQ(parse_trace("t.csv", wide)->doubt, "");
  EXPECT_EQ(shipped("azure_conv_2023.csv").doubt,
            "azure_conv_2023.csv:19367: GeneratedTokens: the file ends without a line feed: 183 may be cut "
            "short, it is read as it is");
}

}  // namespace
}  // namespace fathom::sim
