// fathom eplb as a user meets it: the golden list completed, and one line for bad input.
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
    const std::string head = "fathom eplb: " + path + ": ";
    EXPECT_EQ(ran.err.rfind(head, 0), 0u) << ran.err;
    EXPECT_EQ(ran.err.find('\n'), ran.err.size() - 1) << ran.err;
    return ran.err.substr(head.size(), ran.err.size() - head.size() - 1);
  };
  EXPECT_EQ(message("[1"), "not JSON at byte 3");
  EXPECT_EQ(message("{}"), "not a list of cases");
  EXPECT_EQ(message("[7]"), "case 0: not an object");
  EXPECT_EQ(message(R"([{"weight":[1,2],"num_replicas":2,"num_groups":1,"num_nodes":1}])"),
            "case 0: num_gpus: missing");
  EXPECT_EQ(message(R"([{"name":"x","weight":[1,"a"]}])"), "case 0 (x): weight[1]: not a number");
  EXPECT_EQ(message(R"([{"weight":[1,2],"num_replicas":3,"num_groups":1,"num_nodes":1,"num_gpus":2}])"),
            "case 0: num_replicas: 3 does not divide by num_gpus = 2");
  EXPECT_EQ(message(R"([{"weight":[1,-2],"num_replicas":2,"num_groups":1,"num_nodes":1,"num_gpus":2}])"),
            "case 0: weight[1]: -2 is not a finite number >= 0");
  EXPECT_EQ(message(R"([{"weight":[1,2],"num_replicas":2.5,"num_groups":1,"num_nodes":1,"num_gpus":2}])"),
            "case 0: num_replicas: not a whole number");
  EXPECT_EQ(run({"/nonexistent/cases.json"}).err, "fathom eplb: /nonexistent/cases.json: cannot be read\n");
}

}  // namespace
}  // namespace fathom::cli
