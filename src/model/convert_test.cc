// Convert, load again: the same packed bytes as quantising at load.
#include "model/convert.h"

#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "model/checkpoint_testing.h"
#include "model/weights.h"
#include "tensor/safetensors.h"

namespace fathom {
namespace {

using testing::Checkpoint;
using testing::TempFolder;

std::unique_ptr<Model> load(const std::string& folder, std::optional<WeightFormat> weights = {}) {
  ThreadTeam team(2);
  LoadOptions options;
  options.weights = weights;
  auto model = Model::load(*open_model_folder(folder).value(), options, team);
  CHECK_MSG(model.ok(), model.status().message());
  return std::move(*model);
}

bool same_weights(const Model& a, const Model& b) {
  const AlignedBuffer& x = a.weights().memory[0];
  const AlignedBuffer& y = b.weights().memory[0];
  return x.size_bytes() == y.size_bytes() && std::memcmp(x.data(), y.data(), x.size_bytes()) == 0 &&
         a.weights().attention_act == b.weights().attention_act &&
         a.weights().ffn_act == b.weights().ffn_act && a.weights().head_act == b.weights().head_act &&
         a.weights().core_dtype == b.weights().core_dtype;
}

Result<ConvertReport> convert(const TempFolder& in, const std::string& out, ConvertOptions options) {
  ThreadTeam team(2);
  return convert_model(*in.source(), out, options, team);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string sha256_hex(const std::string& bytes) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest);
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

class ConvertFrom : public ::testing::TestWithParam<DType> {};

TEST_P(ConvertFrom, every_format_loads_as_if_quantised_at_load) {
  TempFolder original, work;
  Checkpoint cp = Checkpoint::make(GetParam(), true);
  if (GetParam() == DType::kFp8E4m3) cp.config["quantization_config"]["scale_fmt"] = "ue8m0";
  cp.write(original, 3);
  for (const WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kInt8, WeightFormat::kInt4}) {
    const std::string out = work.path() + "/" + std::string(weight_format_name(format));
    ConvertOptions options{.weights = format};
    int64_t last = 0, total = 0;
    options.progress = [&](int64_t done, int64_t all) {
      EXPECT_GT(done, last);
      last = done;
      total = all;
    };
    const auto report = convert(original, out, options);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(last, total);
    EXPECT_EQ(report->num_shards, 1);
    EXPECT_TRUE(report->warnings.empty());
    const auto converted = load(out);
    EXPECT_TRUE(same_weights(*converted, *load(original.path(), format))) << weight_format_name(format);
    EXPECT_TRUE(converted->weights().warnings.empty());
    EXPECT_EQ(converted->config().quant_method, QuantMethod::kFathom);
    EXPECT_EQ(converted->config().fathom_weights, weight_format_name(format));
    EXPECT_EQ(converted->config().scale_fmt_ue8m0, GetParam() == DType::kFp8E4m3);
    EXPECT_EQ(converted->weights().mtp.size(), 1u);
  }
}

INSTANTIATE_TEST_SUITE_P(Convert, ConvertFrom,
                         ::testing::Values(DType::kF32, DType::kBf16, DType::kF16, DType::kFp8E4m3),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

// The format is public (docs/weight-formats.md; its quantisers, written in numpy, made these codes and scales
// too): the same model gives the same bytes on every machine, for ever.
TEST(Convert, the_bytes_written_are_fixed) {
  const std::map<WeightFormat, std::string> golden = {
      {WeightFormat::kBf16, "683fd439dc7a81688aa1732687c8e1bbe23717fd627ef3f80565f8a71626a823"},
      {WeightFormat::kFp8, "2206f274214e7d07d73ed63a66a886cf7ee4cbe463c3f0a76d953bfad8cd61c1"},
      {WeightFormat::kInt8, "ff3362727a2d3274ee1046cffc42b7c12ff4207824bcff00eca3f80ef30f9d4f"},
      {WeightFormat::kInt4, "75d4102783379c433315172a455400f5bba616e9cd6956753eeda531756ea70a"},
  };
  TempFolder work;
  const auto source = open_model_folder(FATHOM_SOURCE_DIR "/tests/fixtures/v3").value();
  for (const auto& [format, wanted] : golden) {
    const std::string out = work.path() + "/" + std::string(weight_format_name(format));
    ThreadTeam team(1);
    ASSERT_TRUE(convert_model(*source, out, {.weights = format}, team).ok());
    EXPECT_EQ(sha256_hex(read_file(out + "/model.safetensors")), wanted) << weight_format_name(format);
  }
}

TEST(Convert, shards_index_and_side_files) {
  TempFolder original, work;
  Checkpoint::make(DType::kBf16).write(original, 2);
  original.write("tokenizer.json", "{\"t\": 1}\n");
  original.write("chat_template.jinja", "{{ x }}");
  original.write("generation_config.json", R"({"eos_token_id":[2,3]})");
  original.write("pytorch_model.bin", "not taken along");
  const std::string out = work.path() + "/new/folder";
  ConvertOptions options{.weights = WeightFormat::kInt8, .shard_bytes_max = 100000};
  const auto report = convert(original, out, options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_GT(report->num_shards, 2);
  EXPECT_EQ(report->copied_files,
            (std::vector<std::string>{"chat_template.jinja", "generation_config.json", "tokenizer.json"}));
  EXPECT_EQ(read_file(out + "/tokenizer.json"), "{\"t\": 1}\n");
  EXPECT_FALSE(std::filesystem::exists(out + "/pytorch_model.bin"));
  const auto source = open_model_folder(out).value();
  const auto tensors = SafeTensors::open(*source).value();
  EXPECT_EQ(tensors.num_files(), report->num_shards);
  for (const std::string& name : source->file_names()) EXPECT_FALSE(name.ends_with(".tmp")) << name;
  const auto model = load(out);
  EXPECT_TRUE(same_weights(*model, *load(original.path(), WeightFormat::kInt8)));
  EXPECT_EQ(model->config().eos_token_ids, (std::vector<int32_t>{2, 3}));
  // What is INT8 already can be loaded as INT8 but as nothing else.
  EXPECT_TRUE(same_weights(*model, *load(out, WeightFormat::kInt8)));
  TempFolder again;
  ThreadTeam team(1);
  LoadOptions int4;
  int4.weights = WeightFormat::kInt4;
  EXPECT_NE(
      Model::load(*source, int4, team).status().message().find("is int8 already and cannot become int4"),
      std::string::npos);
}

TEST(Convert, a_tied_head_becomes_a_tensor_of_its_own_when_quantised) {
  TempFolder original, work;
  Checkpoint cp = Checkpoint::make(DType::kBf16);
  cp.config["tie_word_embeddings"] = true;
  cp.tensors.erase("lm_head.weight");
  cp.write(original);
  for (const WeightFormat format : {WeightFormat::kInt4, WeightFormat::kFp8}) {
    const std::string out = work.path() + "/" + std::string(weight_format_name(format));
    ASSERT_TRUE(convert(original, out, {.weights = format}).ok());
    const auto model = load(out);
    EXPECT_EQ(model->config().tie_word_embeddings, format == WeightFormat::kFp8);
    EXPECT_TRUE(same_weights(*model, *load(original.path(), format)));
  }
}

TEST(Convert, refusals) {
  TempFolder original, work;
  Checkpoint cp = Checkpoint::make(DType::kBf16);
  cp.write(original);
  const auto message = [&](const std::string& out, WeightFormat format) {
    return convert(original, out, {.weights = format}).status().message();
  };
  EXPECT_EQ(message(work.path() + "/x", WeightFormat::kF32),
            "--weights: converting to f32 is not supported (known: bf16, fp8, int8, int4)");
  EXPECT_EQ(message(original.path(), WeightFormat::kInt8), original.path() + ": is there and not empty");
  EXPECT_EQ(message(original.path() + "/config.json", WeightFormat::kInt8),
            original.path() + "/config.json: is there and is not a folder");
  EXPECT_NE(message("/proc/nowhere", WeightFormat::kInt8).find("/proc/nowhere: "), std::string::npos);
  cp.tensors.erase("model.norm.weight");
  cp.write(original);
  EXPECT_NE(message(work.path() + "/y", WeightFormat::kInt8).find("'model.norm.weight': missing"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(work.path() + "/y")) << "nothing is written before all is checked";
}

}  // namespace
}  // namespace fathom
