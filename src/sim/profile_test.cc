// The shipped profiles, and what is said of broken ones.
#include "sim/profile.h"

#include <gtest/gtest.h>

#include <sstream>

#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

std::string good_text() { return read_file_for_test(source_path("profiles/h800.toml")).value(); }

std::string load_error(const std::string& text) {
  const auto read = [&](const std::string&) -> Result<std::string> { return text; };
  const auto loaded = load_profile("dir/p.toml", read);
  return loaded.ok() ? "" : loaded.status().message();
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Profile, AllShippedProfilesLoadAndDiffer) {
  const HardwareProfile h800 = test_profile("h800");
  const HardwareProfile day = test_profile("h800-day");
  const HardwareProfile h200 = test_profile("h200");
  EXPECT_EQ(h800.kind, "measured");
  EXPECT_EQ(h200.kind, "scaled");
  EXPECT_EQ(test_profile("h100").kind, "scaled");
  EXPECT_EQ(h800.decode_phi, 1.0);
  EXPECT_EQ(day.decode_phi, 1.05);
  EXPECT_EQ(day.gemm_peak_tflops, h800.gemm_peak_tflops);
  EXPECT_NEAR(h200.gemm_hbm_tb_per_s, 2.96 * 4.8 / 3.35, 1e-3);
  EXPECT_NE(h800.hash, day.hash);
  EXPECT_EQ(h800.hash.size(), 16u);
  EXPECT_EQ(h800.hash, test_profile("h800").hash);
}

// Every constant says in its own line where it comes from.
TEST(Profile, EveryConstantNamesItsSource) {
  for (const char* name : {"h800", "h800-day", "h100", "h200", "cpu-2core"}) {
    std::istringstream lines(read_file_for_test(source_path(fmt::format("profiles/{}.toml", name))).value());
    int line_idx = 0, constants = 0;
    for (std::string line; std::getline(lines, line);) {
      ++line_idx;
      const size_t equals = line.find(" = ");
      if (line.starts_with('#') || line.starts_with("base = ") || equals == std::string::npos) continue;
      if (line.find('#') < equals) continue;  // the comment of the line before goes on
      ++constants;
      const size_t comment = line.find("# ", equals);
      EXPECT_TRUE(comment != std::string::npos && line.size() > comment + 4) << name << ".toml:" << line_idx;
    }
    EXPECT_GT(constants, 0) << name;
  }
}

TEST(Profile, MissingConstantNamesFileLineAndField) {
  const std::string error = load_error(replaced(good_text(), "launch_us = 2.49", "#"));
  EXPECT_NE(error.find("dir/p.toml:13: gemm.launch_us: missing constant"), std::string::npos) << error;
}

// A profile's text again, but for one constant.
std::string text_without(const HardwareProfile& profile, std::string_view left_out) {
  std::string text = "[hardware]\nname = \"x\"\nkind = \"scaled\"\n", section = "hardware";
  for (const auto& [name, value] : profile_constants(profile)) {
    const std::string_view of = name.substr(0, name.find('.'));
    if (of != section) text += fmt::format("[{}]\n", section = of);
    if (name != left_out) text += fmt::format("{} = {:f}\n", name.substr(of.size() + 1), value);
  }
  return text;
}

TEST(Profile, NoConstantHasADefaultInCode) {
  const HardwareProfile profile = test_profile("h800");
  EXPECT_EQ(load_error(text_without(profile, "")), "");
  for (const auto& [name, value] : profile_constants(profile)) {
    const std::string error = load_error(text_without(profile, name));
    EXPECT_TRUE(error.starts_with("dir/p.toml:") &&
                error.ends_with(fmt::format(": {}: missing constant", name)))
        << error;
  }
}

TEST(Profile, ScalingStaysInTheRangeOfAConstant) {
  HardwareProfile profile = test_profile("h800");
  const std::string before = profile.hash;
  scale_profile_constant(profile, "gemm.k_half", 1.1);
  EXPECT_DOUBLE_EQ(profile.gemm_k_half, 1.1 * 543);
  EXPECT_NE(profile.hash, before);
  scale_profile_constant(profile, "prefill.sm_share", 2);
  EXPECT_EQ(profile.prefill_sm_share, 1);
}

TEST(Profile, WrongValuesNameTheirLine) {
  EXPECT_EQ(load_error(replaced(good_text(), "peak_tflops = 1359.0", "peak_tflops = \"fast\"")),
            "dir/p.toml:15: gemm.peak_tflops: expected a number");
  EXPECT_EQ(load_error(replaced(good_text(), "smoothing = 2.53", "smoothing = 0.5")),
            "dir/p.toml:17: gemm.smoothing: 0.5 is outside 1..100");
  EXPECT_EQ(load_error(replaced(good_text(), "k_half = 543.0", "k_hlf = 543.0")),
            "dir/p.toml:18: gemm.k_hlf: unknown constant");
  EXPECT_EQ(load_error("[hardware]\nname = \"H8\\n00\"\n"),
            "dir/p.toml:2: hardware.name: a control character in a name");
  EXPECT_NE(load_error("[gemm\n").find("dir/p.toml:1: toml:"), std::string::npos);
}

TEST(Profile, BaseLoopEnds) {
  EXPECT_NE(load_error("base = \"p.toml\"\n").find("more than"), std::string::npos);
}

TEST(Profile, SettingAConstantChangesTheHash) {
  HardwareProfile profile = test_profile("h800");
  const std::string before = profile.hash;
  ASSERT_TRUE(set_profile_constant(profile, "residual.decode_phi", 1.04).ok());
  EXPECT_NE(profile.hash, before);
  EXPECT_FALSE(set_profile_constant(profile, "residual.decode_phi", -1).ok());
  EXPECT_FALSE(set_profile_constant(profile, "no.such", 1).ok());
}

}  // namespace
}  // namespace fathom::sim
