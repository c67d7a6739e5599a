// What is written is read back; a file that is not finished is not there.
#include "tensor/safetensors_writer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tensor/safetensors.h"

namespace fathom {
namespace {

TEST(SafetensorsWriter, headers_are_read_back_and_aligned) {
  const std::vector<TensorSpec> specs = {
      {"a \"quoted\"\n", DType::kInt8, {3}}, {"b", DType::kF16, {2, 0}}, {"c", DType::kF32, {2, 2}}};
  const std::string header = safetensors_header(specs);
  EXPECT_EQ(header.size() % 64, 0u);
  const std::string file = header + std::string(3 + 16, 'x');
  const auto tensors = parse_safetensors("f", {reinterpret_cast<const std::byte*>(file.data()), file.size()});
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  ASSERT_EQ(tensors->size(), specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ((*tensors)[i].name, specs[i].name);
    EXPECT_EQ((*tensors)[i].dtype, specs[i].dtype);
    EXPECT_EQ((*tensors)[i].shape, specs[i].shape);
  }
  EXPECT_EQ(safetensors_header({}).size() % 64, 0u);
}

TEST(FileWriter, appears_whole_or_not_at_all) {
  std::string pattern = (std::filesystem::temp_directory_path() / "fathom-XXXXXX").string();
  const std::string folder = mkdtemp(pattern.data());
  {
    auto dropped = FileWriter::create(folder + "/dropped").value();
    ASSERT_TRUE(dropped.append("half").ok());
  }
  auto file = FileWriter::create(folder + "/file").value();
  ASSERT_TRUE(file.append("one ").ok());
  EXPECT_FALSE(std::filesystem::exists(folder + "/file"));
  ASSERT_TRUE(file.append("two").ok());
  ASSERT_TRUE(file.finish().ok());
  EXPECT_EQ(std::filesystem::file_size(folder + "/file"), 7u);
  EXPECT_EQ(FileWriter::create(folder + "/file").status().message(), folder + "/file: is there already");
  EXPECT_NE(
      FileWriter::create(folder + "/no/file").status().message().find("cannot be written: No such file"),
      std::string::npos);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1) << "no temporary file is left";
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace fathom
