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

// Every packed weight of a model, in the order of its fields.
std::vector<PackedWeight> packed_weights(const ModelWeights& w) {
  std::vector<PackedWeight> all;
  const auto swiglu = [&](const SwigluWeights& ffn) {
    if (ffn.present()) all.insert(all.end(), {ffn.gate, ffn.up, ffn.down});
  };
  const auto layer = [&](const LayerWeights& l) {
    const AttentionWeights& a = l.self_attn;
    all.insert(all.end(), {a.q_proj, a.q_a_proj, a.q_b_proj, a.kv_a_proj_with_mqa, a.o_proj, l.moe.gate});
    for (const auto* heads : {&a.w_uk, &a.w_uk_t, &a.w_uv})
      all.insert(all.end(), heads->begin(), heads->end());
    swiglu(l.mlp);
    for (const SwigluWeights& expert : l.moe.experts) swiglu(expert);
    swiglu(l.moe.shared_experts);
  };
  for (const LayerWeights& l : w.layers) layer(l);
  for (const MtpWeights& mtp : w.mtp) {
    all.push_back(mtp.eh_proj);
    layer(mtp.layer);
  }
  all.push_back(w.lm_head);
  return all;
}

bool same_floats(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0;
}

bool same_weights(const Model& a, const Model& b) {
  const auto x = packed_weights(a.weights()), y = packed_weights(b.weights());
  if (x.size() != y.size()) return false;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i].format != y[i].format || x[i].n != y[i].n || x[i].k != y[i].k || x[i].bytes() != y[i].bytes())
      return false;
    if (x[i].bytes() == 0) continue;  // a weight the model does not have
    if (std::memcmp(x[i].data, y[i].data, static_cast<size_t>(x[i].bytes())) != 0) return false;
  }
  const ModelConfig& c = a.config();
  const auto embedding_bytes =
      static_cast<size_t>(dtype_bytes(a.weights().embed_dtype, c.vocab_size * c.hidden_size));
  const LayerWeights &p = a.weights().layers[1], &q = b.weights().layers[1];
  return a.weights().embed_dtype == b.weights().embed_dtype &&
         std::memcmp(a.weights().embed_tokens, b.weights().embed_tokens, embedding_bytes) == 0 &&
         same_floats(a.weights().norm, b.weights().norm, c.hidden_size) &&
         same_floats(p.self_attn.kv_a_layernorm, q.self_attn.kv_a_layernorm, c.kv_lora_rank) &&
         same_floats(p.moe.e_score_correction_bias, q.moe.e_score_correction_bias, c.n_routed_experts) &&
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

class ConvertFrom : public ::testing::TestWithParam<std::pair<DType, ConvertLayout>> {};

TEST_P(ConvertFrom, every_format_loads_as_if_quantised_at_load) {
  const auto [dtype, layout] = GetParam();
  TempFolder original, work;
  Checkpoint cp = Checkpoint::make(dtype, true);
  if (dtype == DType::kFp8E4m3) cp.config["quantization_config"]["scale_fmt"] = "ue8m0";
  cp.write(original, 3);
  for (const WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kInt8, WeightFormat::kInt4}) {
    const std::string out = work.path() + "/" + std::string(weight_format_name(format));
    ConvertOptions options{.weights = format, .layout = layout};
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
    EXPECT_EQ(converted->config().fathom_panels, layout == ConvertLayout::kPanels);
    EXPECT_EQ(converted->config().scale_fmt_ue8m0, dtype == DType::kFp8E4m3);
    EXPECT_EQ(converted->weights().mtp.size(), 1u);
    // In place: only norms and such are memory of our own.
    const ModelWeights& w = converted->weights();
    EXPECT_EQ(w.mapped_bytes > 0, layout == ConvertLayout::kPanels && active_isa() != Isa::kRef);
    EXPECT_EQ(static_cast<int64_t>(w.memory[0].size_bytes()), w.bytes.total() - w.mapped_bytes);
    if (w.mapped_bytes > 0) {
      EXPECT_LT(w.bytes.total() - w.mapped_bytes, w.bytes.gate_and_norms + w.bytes.mtp);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Convert, ConvertFrom,
                         ::testing::Values(std::pair(DType::kF32, ConvertLayout::kRows),
                                           std::pair(DType::kF32, ConvertLayout::kPanels),
                                           std::pair(DType::kBf16, ConvertLayout::kRows),
                                           std::pair(DType::kBf16, ConvertLayout::kPanels),
                                           std::pair(DType::kF16, ConvertLayout::kRows),
                                           std::pair(DType::kF16, ConvertLayout::kPanels),
                                           std::pair(DType::kFp8E4m3, ConvertLayout::kRows),
                                           std::pair(DType::kFp8E4m3, ConvertLayout::kPanels)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", dtype_name(info.param.first),
                                              info.param.second == ConvertLayout::kRows ? "rows" : "panels");
                         });

// The format is public (docs/weight-formats.md; its quantisers, written in numpy, made these codes and scales
// too): the same model gives the same bytes on every machine, for ever.
TEST(Convert, the_bytes_written_are_fixed) {
  const std::map<WeightFormat, std::string> rows = {
      {WeightFormat::kBf16, "683fd439dc7a81688aa1732687c8e1bbe23717fd627ef3f80565f8a71626a823"},
      {WeightFormat::kFp8, "2206f274214e7d07d73ed63a66a886cf7ee4cbe463c3f0a76d953bfad8cd61c1"},
      {WeightFormat::kInt8, "ff3362727a2d3274ee1046cffc42b7c12ff4207824bcff00eca3f80ef30f9d4f"},
      {WeightFormat::kInt4, "75d4102783379c433315172a455400f5bba616e9cd6956753eeda531756ea70a"},
  };
  TempFolder work;
  const auto source = open_model_folder(FATHOM_SOURCE_DIR "/tests/fixtures/v3").value();
  const std::map<WeightFormat, std::string> panels = {
      {WeightFormat::kBf16, "baa1e42aa8c9f4a8028eeaced7a8c1fd9cf9f73d574aae0210675437eb0bd666"},
      {WeightFormat::kFp8, "1692296af0eaca59413e105436db37a582f94e5dae06f93a14a2eef9f07cfd09"},
      {WeightFormat::kInt8, "c8ac467349f2227ad429bfdb4cd3eb6b94595a4768f15e70251462fddcd321de"},
      {WeightFormat::kInt4, "c82cf915fd5382df0766c774cd20940809590f7ab82263af8f20b3e50f8f0853"}};
  for (const ConvertLayout layout : {ConvertLayout::kRows, ConvertLayout::kPanels}) {
    for (const auto& [format, wanted] : layout == ConvertLayout::kRows ? rows : panels) {
      const std::string out =
          fmt::format("{}/{}-{}", work.path(), weight_format_name(format), static_cast<int>(layout));
      ThreadTeam team(1);
      ASSERT_TRUE(convert_model(*source, out, {.weights = format, .layout = layout}, team).ok());
      EXPECT_EQ(sha256_hex(read_file(out + "/model.safetensors")), wanted) << weight_format_name(format);
    }
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
  for (const ConvertLayout layout : {ConvertLayout::kRows, ConvertLayout::kPanels}) {
    for (const WeightFormat format : {WeightFormat::kInt4, WeightFormat::kFp8}) {
      const std::string out =
          fmt::format("{}/{}-{}", work.path(), weight_format_name(format), static_cast<int>(layout));
      ASSERT_TRUE(convert(original, out, {.weights = format, .layout = layout}).ok());
      const auto model = load(out);
      // FP8 keeps the head as it is: still the embedding, except where it is packed.
      const bool tied = format == WeightFormat::kFp8 && layout == ConvertLayout::kRows;
      EXPECT_EQ(model->config().tie_word_embeddings, tied);
      EXPECT_TRUE(same_weights(*model, *load(original.path(), format)));
    }
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
  EXPECT_NE(message("/proc/nowhere", WeightFormat::kInt8).find("/proc/nowhere.partial: "), std::string::npos);
  cp.tensors.erase("model.norm.weight");
  cp.write(original);
  EXPECT_NE(
      message(work.path() + "/y", WeightFormat::kInt8).find("'model.norm.weight': the tensor is missing"),
      std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(work.path() + "/y")) << "nothing is written before all is checked";
}

// What one machine packed serves on any: another layout is filled from the panels, and where pages are placed
// on nodes, the panels are copied there. The fingerprint, and with it every stored KV block, stays the same.
TEST(Convert, panels_load_for_every_instruction_set_and_onto_nodes) {
  TempFolder original, work;
  Checkpoint::make(DType::kBf16, true).write(original);
  for (const WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kInt8, WeightFormat::kInt4}) {
    const std::string out = work.path() + "/" + std::string(weight_format_name(format));
    ASSERT_TRUE(convert(original, out, {.weights = format}).ok());
    const auto mapped = load(out);
    for (int i = 0; i <= static_cast<int>(active_isa()); ++i) {
      LoadOptions options{.isa = static_cast<Isa>(i)};
      ThreadTeam team(2);
      const auto there = Model::load(*open_model_folder(out).value(), options, team).value();
      options.weights = format;
      const auto wanted = Model::load(*original.source(), options, team).value();
      EXPECT_TRUE(same_weights(*there, *wanted)) << weight_format_name(format) << " " << i;
      EXPECT_EQ(there->weights().fingerprint, mapped->weights().fingerprint);
    }
    LoadOptions on_nodes{.pages = {.nodes = numa_nodes()}};
    ThreadTeam team(2);
    const auto placed = Model::load(*open_model_folder(out).value(), on_nodes, team).value();
    EXPECT_EQ(placed->weights().mapped_bytes, 0);
    EXPECT_TRUE(same_weights(*placed, *mapped));
    EXPECT_EQ(placed->weights().fingerprint, mapped->weights().fingerprint);
  }
}

void expect_says(const std::string& message, std::string_view part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

// A converted folder that somebody spoilt: every case is one line that names file and tensor.
class SpoiltPanels : public ::testing::Test {
 protected:
  void SetUp() override {
    TempFolder original;
    Checkpoint::make(DType::kBf16).write(original);
    ASSERT_TRUE(convert(original, work_.path() + "/m", {.weights = WeightFormat::kInt8}).ok());
    file_ = read_file(work_.path() + "/m/model.safetensors");
    std::filesystem::remove(work_.path() + "/m/model.safetensors");
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, file_.data(), 8);
    header_ = nlohmann::ordered_json::parse(file_.substr(8, header_bytes));
    data_ = file_.substr(8 + header_bytes);
  }
  // The message of loading `header` with `data`; the data starts at a multiple of 64, plus `shift`.
  std::string refusal(const nlohmann::ordered_json& header, const std::string& data, size_t shift = 0) {
    std::string json = header.dump();
    json.append((64 - (json.size() + 8) % 64) % 64 + shift, ' ');
    const uint64_t header_bytes = json.size();
    work_.write("m/model.safetensors",
                std::string(reinterpret_cast<const char*>(&header_bytes), 8) + json + data);
    ThreadTeam team(2);
    const auto model = Model::load(*open_model_folder(work_.path() + "/m").value(), {}, team);
    return model.ok() ? "" : model.status().message();
  }
  // The bytes of a tensor cut from header and data, and what follows moved up.
  void cut(const std::string& name, int64_t bytes_to_cut) {
    const int64_t begin = header_[name]["data_offsets"][0], end = header_[name]["data_offsets"][1];
    data_.erase(static_cast<size_t>(end - bytes_to_cut), static_cast<size_t>(bytes_to_cut));
    for (auto& [key, tensor] : header_.items()) {
      if (!tensor.contains("data_offsets")) continue;
      for (auto& offset : tensor["data_offsets"])
        if (offset.get<int64_t>() >= end) offset = offset.get<int64_t>() - bytes_to_cut;
    }
    if (end - begin == bytes_to_cut)
      header_.erase(name);
    else
      header_[name]["shape"] = {end - begin - bytes_to_cut};
  }

  TempFolder work_;
  std::string file_, data_;
  nlohmann::ordered_json header_;
};

TEST_F(SpoiltPanels, are_refused_with_the_reason) {
  constexpr const char* kName = "model.layers.0.mlp.up_proj.int8_panels";
  const std::string sums = "fathom.checksums.model.safetensors";
  EXPECT_EQ(refusal(header_, data_), "");
  expect_says(refusal(header_, data_, 8), "does not begin at a multiple of 64 bytes");
  expect_says(refusal(header_, data_.substr(0, data_.size() - 1)), "truncated?");

  std::string flipped = data_;
  flipped[header_[kName]["data_offsets"][0].get<size_t>() + 100] ^= 1;
  expect_says(refusal(header_, flipped),
              "model.safetensors: 'model.layers.0.mlp.up_proj.int8_panels': its "
              "bytes do not have the checksum they were saved with");
  auto header = header_;
  header[kName]["dtype"] = "I8";
  expect_says(refusal(header, data_), "dtype I8 where U8 is needed");
  header = header_;
  header["model.layers.0.mlp.up_proj.int4_panels"] = header[kName];
  header.erase(kName);
  expect_says(refusal(header, data_), "'model.layers.0.mlp.up_proj.int4_panels': shape [");
  header = header_;
  header[sums]["dtype"] = "I64";
  expect_says(refusal(header, data_), "I64 [");
  header = header_;
  header["other"] = header[sums];
  header.erase(sums);
  expect_says(refusal(header, data_), "has no fathom.checksums.* with checksums");

  cut(kName, 64);
  expect_says(refusal(header_, data_), "where the config asks for [");
  cut(kName, header_[kName]["shape"][0].get<int64_t>());
  expect_says(refusal(header_, data_), "'model.layers.0.mlp.up_proj.bf16_panels': the tensor is missing");
}

TEST_F(SpoiltPanels, are_packed_already) {
  work_.write("m/model.safetensors", file_);
  const auto source = open_model_folder(work_.path() + "/m").value();
  ThreadTeam team(1);
  LoadOptions int4{.weights = WeightFormat::kInt4};
  expect_says(Model::load(*source, int4, team).status().message(), "is int8 already and cannot become int4");
  expect_says(convert_model(*source, work_.path() + "/again", {}, team).status().message(),
              "its weights are packed already; convert the model it was made from");
}

}  // namespace
}  // namespace fathom
