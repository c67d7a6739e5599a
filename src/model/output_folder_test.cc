// The folder appears whole, or not at all; what cannot be written is said before anything is.
#include "model/output_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace fathom {
namespace fs = std::filesystem;
namespace {

class OutputFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "output_folder_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string in_root(const char* name) const { return (root_ / name).string(); }
  static StatusCode code_of(const std::string& path) { return OutputFolder::create(path).status().code(); }

  fs::path root_;
};

TEST_F(OutputFolderTest, AppearsOnlyWhenFinished) {
  {
    auto folder = OutputFolder::create(in_root("a/b/"));
    ASSERT_TRUE(folder.ok()) << folder.status().message();
    std::ofstream(folder->work_path() + "/f") << "x";
    EXPECT_FALSE(fs::exists(in_root("a/b")));
    ASSERT_TRUE(folder->finish().ok());
  }
  EXPECT_TRUE(fs::exists(in_root("a/b/f")));
  EXPECT_FALSE(fs::exists(in_root("a/b.partial")));
}

TEST_F(OutputFolderTest, LeavesNothingWhenGivenUp) {
  {
    auto folder = OutputFolder::create(in_root("out"));
    ASSERT_TRUE(folder.ok());
    std::ofstream(folder->work_path() + "/f") << "x";
  }
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(OutputFolderTest, TakesTheEmptyFolderALinkLeadsTo) {
  fs::create_directory(in_root("there"));
  fs::create_symlink(in_root("there"), in_root("link"));
  auto folder = OutputFolder::create(in_root("link"));
  ASSERT_TRUE(folder.ok());
  std::ofstream(folder->work_path() + "/f") << "x";
  ASSERT_TRUE(folder->finish().ok());
  EXPECT_TRUE(fs::exists(in_root("there/f")));
  EXPECT_TRUE(fs::is_symlink(in_root("link")));
}

// It may be a mount, or have rights of its own.
TEST_F(OutputFolderTest, AFolderThatIsThereStaysItself) {
  fs::create_directory(in_root("there"));
  fs::permissions(in_root("there"), fs::perms::owner_all);
  struct stat before{}, after{};
  ASSERT_EQ(stat(in_root("there").c_str(), &before), 0);
  {
    auto given_up = OutputFolder::create(in_root("there/."));
    ASSERT_TRUE(given_up.ok()) << given_up.status().message();
    std::ofstream(given_up->work_path() + "/f") << "x";
  }
  EXPECT_TRUE(fs::is_empty(in_root("there")));
  auto folder = OutputFolder::create(in_root("there"));
  ASSERT_TRUE(folder.ok());
  std::ofstream(folder->work_path() + "/config.json") << "{}";
  std::ofstream(folder->work_path() + "/f") << "x";
  EXPECT_FALSE(fs::exists(in_root("there/f")) || fs::exists(in_root("there/config.json")));
  EXPECT_EQ(code_of(in_root("there")), StatusCode::kInvalidArgument) << "another conversion is at work";
  ASSERT_TRUE(folder->finish().ok());
  EXPECT_TRUE(fs::exists(in_root("there/f")) && fs::exists(in_root("there/config.json")));
  EXPECT_FALSE(fs::exists(in_root("there/.partial")) || fs::exists(in_root("there.partial")));
  ASSERT_EQ(stat(in_root("there").c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(before.st_mode, after.st_mode);
}

TEST_F(OutputFolderTest, SaysWhetherAnotherIsAtWorkOrWasCutOff) {
  fs::create_directory(in_root("there"));
  const auto refusal = [](const std::string& path) { return OutputFolder::create(path).status().message(); };
  for (const auto& [out, work] : {std::pair("new", "new.partial"), std::pair("there", "there/.partial")}) {
    {
      auto made = OutputFolder::create(in_root(out));
      ASSERT_TRUE(made.ok()) << made.status().message();
      const OutputFolder at_work = std::move(*made);
      EXPECT_EQ(refusal(in_root(out)), in_root(work) + ": another conversion is writing it");
      EXPECT_TRUE(fs::exists(in_root(work)));
    }
    fs::create_directory(in_root(work));  // as a killed one leaves it
    EXPECT_EQ(refusal(in_root(out)),
              in_root(work) + ": is there, left by a conversion that was cut off; remove it");
    fs::remove(in_root(work));
    EXPECT_TRUE(OutputFolder::create(in_root(out)).ok());
  }
}

TEST_F(OutputFolderTest, RefusesWhatIsNoPlaceForIt) {
  fs::create_symlink("loop", in_root("loop"));
  fs::create_symlink("nothing", in_root("dangling"));
  std::ofstream(in_root("file")) << "x";
  fs::create_directories(in_root("full/inside"));
  fs::create_directory(in_root("cut.partial"));
  std::ofstream(in_root("cut_file.partial")) << "x";
  fs::create_directories(in_root("cut_inside/.partial"));
  for (const char* name : {"loop", "dangling", "file", "file/x", "full", "cut", "cut_file", "cut_inside"}) {
    EXPECT_EQ(code_of(in_root(name)), StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(code_of(""), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(in_root(std::string(300, 'x').c_str())), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fathom
