// fathom eplb as a user meets it: the golden list completed, and one line for bad input.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/commands.h"

namespace fathom::cli {
namespace {

struct Ran {
  int exit_code;
  std::string out;
  std::string err;
};

Ran run(std::vector<std::string> args) {
  CLI::App app;
  Outcome outcome;
  add_eplb_command(app, outcome);
  args.insert(args.begin(), "eplb");
  std::reverse(args.begin(), args.end());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  app.parse(args);
  std::fflush(stdout);
  const std::string out = testing::internal::GetCapturedStdout();
  return {outcome.exit_code, out, testing::internal::GetCapturedStderr()};
}

const std::string kGolden = FATHOM_SOURCE_DIR "/tests/fixtures/eplb/eplb_golden.json";

TEST(EplbCommand, completes_the_golden_list_exactly) {
  const Ran ran = run({kGolden, "--json"});
  EXPECT_EQ(ran.exit_code, 0);
  std::ifstream in(kGolden);
  EXPECT_EQ(nlohmann::json::parse(ran.out), nlohmann::json::parse(in));
}

TEST(EplbCommand, prints_max_over_mean_before_and_after) {
  const Ran published = run({kGolden}), refined = run({kGolden, "--refine"});
  EXPECT_NE(
      published.out.find("4 (v3_prefill_ep32)                 288     32 hierarchical     1.5512    1.0413"),
      std::string::npos)
      << published.out;
  EXPECT_EQ(refined.exit_code, 0);
  EXPECT_NE(refined.out, published.out);
}

TEST(EplbCommand, names_file_case_and_field_of_bad_input) {
  const auto message = [](const std::string& text) {
    const std::string path = testing::TempDir() + "eplb_bad.json";
    std::ofstream(path) << text;
    const Ran ran = run({path});
    EXPECT_EQ(ran.exit_code, 2) << text;
    EXPECT_EQ(ran.out, "") << text;
    const std::string head = "fathom eplb: " + path + ":";
    EXPECT_EQ(ran.err.rfind(head, 0), 0u) << ran.err;
    EXPECT_EQ(ran.err.find('\n'), ran.err.size() - 1) << ran.err;
    return ran.err.substr(head.size(), ran.err.size() - head.size() - 1);
  };
  const std::string good = R"({"weight":[1,2],"num_replicas":2,"num_groups":1,"num_nodes":1,"num_gpus":2})";
  EXPECT_EQ(message("[\n1"), "2: not JSON at byte 4");
  EXPECT_EQ(message(""), "1: the file is empty");
  EXPECT_EQ(message(" \n"), "1: the file is empty");
  EXPECT_EQ(message("[1]" + std::string(1, '\0')), "1: not JSON at byte 4: a NUL");
  EXPECT_EQ(message("{}"), "1: not a list of cases");
  EXPECT_EQ(message("[" + good + ",\n\n7]"), "3: case 1: not an object");
  EXPECT_EQ(message(R"([{"weight":[1,2],"num_replicas":2,"num_groups":1,"num_nodes":1}])"),
            "1: case 0: num_gpus: missing");
  EXPECT_EQ(message("[" + good + ",\n" + R"({"name":"x[,\"]","weight":[1,"a"]}])"),
            R"(2: case 1 (x[,\"]): weight[1]: not a number)");
  EXPECT_EQ(message(R"([{"weight":[1,2],"num_replicas":3,"num_groups":1,"num_nodes":1,"num_gpus":2}])"),
            "1: case 0: num_replicas: 3 does not divide by num_gpus = 2");
  EXPECT_EQ(message(R"([{"weight":[1,-2],"num_replicas":2,"num_groups":1,"num_nodes":1,"num_gpus":2}])"),
            "1: case 0: weight[1]: -2 is outside 0..1e+30");
  EXPECT_EQ(message(R"([{"weight":[1,1e39],"num_replicas":2,"num_groups":1,"num_nodes":1,"num_gpus":2}])"),
            "1: case 0: weight[1]: 1e+39 is outside 0..1e+30");
  EXPECT_EQ(message("[\n{\"weight\":[1,1e400]}]"), "2: number: 1e400 is more than a number may be");
  EXPECT_EQ(message(R"([{"weight":[1,2],"num_replicas":2.5,"num_groups":1,"num_nodes":1,"num_gpus":2}])"),
            "1: case 0: num_replicas: not a whole number");
  EXPECT_EQ(message("[" + good + R"(,{"a":{"weight":1},"weight":[1],"weight":[2]}])"),
            "1: case 1: weight: given twice");
  EXPECT_EQ(run({"/nonexistent/cases.json"}).err, "fathom eplb: /nonexistent/cases.json: cannot be read\n");
}

std::string case_of(int num_experts, int num_slots, int num_gpus) {
  std::string weights = "1e9";
  for (int e = 1; e < num_experts; ++e) weights += ",0";
  return fmt::format(R"({{"weight":[{}],"num_replicas":{},"num_groups":1,"num_nodes":1,"num_gpus":{}}})",
                     weights, num_slots, num_gpus);
}

TEST(EplbCommand, refuses_what_would_take_the_stack_the_memory_or_the_day) {
  const std::string path = testing::TempDir() + "eplb_large.json";
  const auto message = [&](const std::string& text, const char* option) {
    std::ofstream(path) << text;
    const Ran ran = option == nullptr ? run({path}) : run({path, option});
    EXPECT_EQ(ran.exit_code, 2);
    EXPECT_EQ(ran.out, "");
    return ran.err;
  };
  const std::string deep = std::string(60'000, '[') + std::string(60'000, ']');
  EXPECT_EQ(message("[{\"x\":\n" + deep + "}]", nullptr),
            "fathom eplb: " + path + ":2: nested deeper than 64 levels\n");
  EXPECT_EQ(message("[" + case_of(15'000, 30'000, 10) + "]", nullptr),
            "fathom eplb: " + path +
                ":1: case 0: num_replicas: 15000 experts, of which one has 15001 copies, make a log2phy of "
                "225015000 "
                "entries, at most 67108864 are held\n");
  // One such case is an answer, two are not.
  const std::string large = case_of(3'000, 6'000, 10);
  EXPECT_EQ(message("[" + large + ",\n" + large + "]", "--json"),
            "fathom eplb: " + path +
                ":2: case 1: num_replicas: with this case log2phy has 18006000 entries, an answer holds "
                "16777216\n");
  EXPECT_EQ(message("[" + case_of(8, 2048, 8) + "]", "--refine"),
            "fathom eplb: " + path + ":1: case 0: num_replicas: 2048, --refine takes at most 1024\n");
}

}  // namespace
}  // namespace fathom::cli
