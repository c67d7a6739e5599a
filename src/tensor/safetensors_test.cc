// Healthy files, torn files and hostile files; folders on disk (made here) and bytes in memory.
#include "tensor/safetensors.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

namespace fathom {
namespace {

std::string with_header(std::string_view json, std::string_view data = {}) {
  std::string out(8, '\0');
  const uint64_t length = json.size();
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(length >> (8 * i));
  out += json;
  out += data;
  return out;
}

std::span<const std::byte> as_bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string parse_error(const std::string& file) {
  const auto result = parse_safetensors("s.safetensors", as_bytes(file));
  EXPECT_FALSE(result.ok()) << "accepted";
  EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
  return result.status().message();
}

void expect_error(const std::string& file, std::string_view wanted) {
  const std::string message = parse_error(file);
  EXPECT_TRUE(message.starts_with("s.safetensors: ")) << message;
  EXPECT_NE(message.find(wanted), std::string::npos) << message << "\n  lacks: " << wanted;
}

// A folder under the system's temporary folder that goes when the test ends.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "fathom-XXXXXX").string();
    CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << content;
  }
  Result<SafeTensors> open() const { return SafeTensors::open(*open_model_folder(path_).value()); }

 private:
  std::string path_;
};

const std::string kTwoTensors = with_header(
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[4,8]},)"
    R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"empty":{"dtype":"I64","shape":[3,0],"data_offsets":[8,8]}}  )",
    "AAAABBBB");

TEST(ParseSafetensors, reads_a_healthy_file) {
  const auto tensors = parse_safetensors("s", as_bytes(kTwoTensors));
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  ASSERT_EQ(tensors->size(), 3u);
  const TensorInfo& b = (*tensors)[0];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.dtype, DType::kBf16);
  EXPECT_EQ(b.shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(b.shape_text(), "[2, 1]");
  EXPECT_EQ(std::memcmp(b.bytes.data(), "BBBB", 4), 0);
  EXPECT_EQ((*tensors)[1].num_elements(), 1);
  EXPECT_EQ((*tensors)[2].num_elements(), 0);
  EXPECT_TRUE(parse_safetensors("s", as_bytes(with_header("{}"))).ok());
}

TEST(ParseSafetensors, refuses_wrong_lengths) {
  expect_error("", "0 bytes are too few");
  expect_error("1234567", "7 bytes are too few");
  expect_error(std::string(8, '\0'), "not a JSON object");
  expect_error(std::string(8, '\xff') + "{}", "header length 18446744073709551615 is above the limit");
  expect_error(with_header("{}").substr(0, 9),
               "header length 2 reaches beyond the end of the file (9 bytes)");
  expect_error(with_header("[]"), "not a JSON object");
}

TEST(ParseSafetensors, refuses_malformed_json_with_its_position) {
  expect_error(with_header("{\"a\" 1}"), "malformed JSON at header byte 6");
  expect_error(with_header("{} x"), "malformed JSON at header byte 4");
  expect_error(with_header("{\"a\n\":1}"), "malformed JSON at header byte 4");
  expect_error(with_header("{\"\xff\":1}"), "malformed JSON");
  expect_error(with_header(R"({"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,0]}})"),
               "malformed JSON");
  expect_error(with_header(std::string("{}\0 garbage {{{", 15)), "the header holds a NUL");
}

TEST(ParseSafetensors, refuses_other_structures) {
  expect_error(with_header(R"({"a":1})"), "'a': a number in the wrong place");
  expect_error(with_header(R"({"a":null})"), "'a': null in the wrong place");
  expect_error(with_header(R"({"a":[1]})"), "'a': an array in the wrong place");
  expect_error(with_header(R"({"a":{}})"), "'a': no dtype");
  expect_error(with_header(R"({"a":{"dtype":"F32"}})"), "'a': no shape");
  expect_error(with_header(R"({"a":{"dtype":"F32","shape":[]}})"), "'a': no data_offsets");
  expect_error(with_header(R"({"a":{"dtype":["F32"]}})"), "dtype must be a string");
  expect_error(with_header(R"({"a":{"dtype":3}})"), "'a': a number in the wrong place");
  expect_error(with_header(R"({"a":{"shape":"x"}})"), "'a': a string in the wrong place");
  expect_error(with_header(R"({"a":{"shape":[[1]]}})"), "an array in the wrong place");
  expect_error(with_header(R"({"a":{"shape":[{}]}})"), "an object where numbers belong");
  expect_error(with_header(R"({"a":{"shape":[-1]}})"), "shape must hold integers ≥ 0, not -1");
  expect_error(with_header(R"({"a":{"shape":[1.5]}})"), "shape must hold integers ≥ 0, not '1.5'");
  expect_error(with_header(R"({"a":{"shape":[true]}})"), "a boolean in the wrong place");
  expect_error(with_header(R"({"a":{"shape":[1,1,1,1,1,1,1,1,1]}})"), "shape has more than 8 entries");
  expect_error(with_header(R"({"a":{"stride":[1]}})"), "unexpected key 'stride'");
  expect_error(with_header(R"({"a":{"dtype":"F32","dtype":"F32"}})"), "dtype occurs twice");
  expect_error(with_header(R"({"__metadata__":{"a":{"b":{}}}})"), "an object too deep");
  std::string deep = R"({"a":)";
  for (int i = 0; i < 100000; ++i) deep += R"({"dtype":)";
  expect_error(with_header(deep), "'a': an object too deep");
}

TEST(ParseSafetensors, refuses_wrong_tensors) {
  const auto one = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return with_header(
        fmt::format(R"({{"w\n":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets),
        "12345678");
  };
  expect_error(one("F4", "[16]", "[0,8]"), "'w\\x0a': unknown dtype 'F4'");
  expect_error(one("I4", "[16]", "[0,8]"), "unknown dtype 'I4'");
  expect_error(one("F32", "[2]", "[0]"), "data_offsets has 1 entries, not 2");
  expect_error(one("F32", "[2]", "[8,0]"), "data_offsets [8, 0] run backwards");
  expect_error(one("F32", "[4]", "[0,16]"),
               "data_offsets [0, 16] end beyond the 8 data bytes of the file (truncated?)");
  expect_error(one("F32", "[3]", "[0,8]"), "F32 [3] needs 12 bytes, data_offsets give 8");
  expect_error(one("F32", "[4294967296,4294967296]", "[0,8]"), "the shape's product overflows");
  expect_error(one("F32", "[18446744073709551615]", "[0,8]"), "overflows");
  expect_error(one("F32", "[1]", "[4,8]"), "4 bytes before it belong to no tensor");
  expect_error(one("F32", "[1]", "[0,4]"), "the last 4 bytes belong to no tensor");
  // A zero dimension makes the tensor empty whatever the others are.
  expect_error(one("F32", "[4611686018427387904,4,0]", "[0,0]"), "the last 8 bytes belong to no tensor");
}

TEST(ParseSafetensors, refuses_overlap_and_equal_names) {
  expect_error(
      with_header(
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[5],"data_offsets":[3,8]}})",
          "12345678"),
      "'b': overlaps 'a'");
  expect_error(
      with_header(
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
          "1234"),
      "overlaps");
  expect_error(
      with_header(
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
          "12345678"),
      "'a': the name occurs twice");
}

TEST(ParseSafetensors, every_truncation_is_refused) {
  for (size_t length = 0; length < kTwoTensors.size(); ++length) {
    EXPECT_FALSE(parse_safetensors("s", as_bytes(kTwoTensors.substr(0, length))).ok()) << length;
  }
}

TEST(ParseSafetensors, a_changed_byte_never_escapes_the_file) {
  EXPECT_TRUE(rc::check("accepted tensors lie inside the file and have the bytes of their shape", [] {
    std::string file = kTwoTensors;
    const auto at = *rc::gen::inRange<size_t>(0, file.size());
    file[at] = *rc::gen::arbitrary<char>();
    const auto tensors = parse_safetensors("s", as_bytes(file));
    if (!tensors.ok()) return;
    for (const TensorInfo& tensor : *tensors) {
      RC_ASSERT(tensor.bytes.size() == static_cast<size_t>(dtype_bytes(tensor.dtype, tensor.num_elements())));
      RC_ASSERT(tensor.bytes.data() >= as_bytes(file).data());
      RC_ASSERT(tensor.bytes.data() + tensor.bytes.size() <= as_bytes(file).data() + file.size());
    }
  }));
}

std::string one_tensor(std::string_view name, std::string_view data) {
  return with_header(fmt::format(R"({{"{}":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}}}})", name,
                                 data.size(), data.size()),
                     data);
}

TEST(SafeTensors, one_file_several_shards_with_and_without_index) {
  TempFolder folder;
  folder.write("model-00001-of-00002.safetensors", one_tensor("z", "zz"));
  folder.write("model-00002-of-00002.safetensors", one_tensor("a", "aaa"));
  folder.write("notes.txt", "no tensors");
  for (const bool with_index : {false, true}) {
    if (with_index) {
      folder.write(
          "model.safetensors.index.json",
          R"({"metadata":{"total_size":5,"x":[{"y":1}]},"weight_map":{"a":"model-00002-of-00002.safetensors","z":"model-00001-of-00002.safetensors"}})");
    }
    auto all = folder.open();
    ASSERT_TRUE(all.ok()) << all.status().message();
    ASSERT_EQ(all->tensors().size(), 2u);
    EXPECT_EQ(all->num_files(), 2);
    EXPECT_EQ(all->list_name(), with_index ? "model.safetensors.index.json" : "*.safetensors");
    EXPECT_EQ(all->tensors()[0].name, "a");
    ASSERT_NE(all->find("z"), nullptr);
    EXPECT_EQ(all->find("z")->file, "model-00001-of-00002.safetensors");
    EXPECT_EQ(std::memcmp(all->find("z")->bytes.data(), "zz", 2), 0);
    EXPECT_EQ(all->find("b"), nullptr);
    SafeTensors::drop_pages(*all->find("z"), all->find("z")->bytes);
    EXPECT_EQ(std::memcmp(all->find("z")->bytes.data(), "zz", 2), 0);
  }
  folder.write("model.safetensors", one_tensor("single", "x"));
  EXPECT_EQ(folder.open()->tensors().size(), 1u) << "a single model.safetensors is the whole model";
}

void expect_open_error(const TempFolder& folder, std::string_view wanted) {
  const auto all = folder.open();
  ASSERT_FALSE(all.ok()) << wanted;
  EXPECT_NE(all.status().message().find(wanted), std::string::npos)
      << all.status().message() << "\n  lacks: " << wanted;
  EXPECT_EQ(all.status().message().find('\n'), std::string::npos);
}

TEST(SafeTensors, refuses_broken_folders) {
  TempFolder folder;
  expect_open_error(folder, folder.path() + ": no weights");
  EXPECT_FALSE(SafeTensors::present(*open_model_folder(folder.path()).value()));
  folder.write("a.safetensors", one_tensor("w", "1"));
  folder.write("b.safetensors", one_tensor("w", "2"));
  expect_open_error(folder, "a.safetensors: 'w': the tensor is in b.safetensors too");
  folder.write("b.safetensors", one_tensor("v", "2").substr(0, 60));
  expect_open_error(folder, "b.safetensors: ");
  const std::vector<std::pair<std::string, std::string>> bad_indexes = {
      {R"({"weight_map":{"w":"a.safetensors"}})" + std::string("\0 garbage {", 11),
       "model.safetensors.index.json: holds a NUL"},
      {R"({"weight_map":{"w":"a.safetensors","v":"c.safetensors"}})",
       "c.safetensors: No such file or directory (named by model.safetensors.index.json for 'v')"},
      {R"({"weight_map":{"w":"../a.safetensors"}})", "'../a.safetensors': not a plain file name"},
      {R"({"weight_map":{"w":"a.safetensors","v":"a.safetensors"}})",
       "a.safetensors: 'v': model.safetensors.index.json says"},
      {R"({"weight_map":{"w":"a.safetensors","w":"a.safetensors"}})",
       "model.safetensors.index.json: 'w' occurs twice"},
      {R"({"weight_map":{"w":3}})", "'w': the file name is not a string"},
      {R"({"weight_map":{"w":{"x":"a"}}})", "'w': the file name is not a string"},
      {R"({"weight_map":["w"]})", "weight_map is not an object"},
      {R"({"weight_map":"w"})", "weight_map is not an object"},
      {R"({"weight_map":{}})", "weight_map is empty"},
      {R"({"weight_map":{"w":"a.safetensors"},"weight_map":{}})", "weight_map occurs twice"},
      {R"({"map":{}})", "no weight_map"},
      {R"(["weight_map"])", "not an object"},
      {R"("weight_map")", "not an object"},
      {R"({"weight_map":{"w":"a.safetensors")", "malformed JSON at byte"},
      {R"({"metadata":)" + std::string(1000, '['), "nested deeper than 16"},
      {"", "malformed JSON at byte"},
  };
  for (const auto& [index, wanted] : bad_indexes) {
    folder.write("model.safetensors.index.json", index);
    expect_open_error(folder, wanted);
  }
  folder.write("model.safetensors.index.json", R"({"weight_map":{"w":"sub"}})");
  std::filesystem::create_directory(folder.path() + "/sub");
  expect_open_error(folder, "sub: not a regular file");
  folder.write("model.safetensors.index.json", R"({"weight_map":{"w":"fifo"}})");
  ASSERT_EQ(mkfifo((folder.path() + "/fifo").c_str(), 0600), 0);
  expect_open_error(folder, "fifo: not a regular file");
  folder.write("model.safetensors.index.json", R"({"weight_map":{"w":"empty"}})");
  folder.write("empty", "");
  expect_open_error(folder, "empty: 0 bytes are too few");
}

// Passed over, they would leave "no weights" of a folder that shows the name.
TEST(SafeTensors, names_what_is_there_and_no_file) {
  for (const std::string name : {"model.safetensors", "shard.safetensors", "model.safetensors.index.json"}) {
    TempFolder folder;
    const std::string path = folder.path() + "/" + name;
    std::filesystem::create_symlink("gone", path);
    expect_open_error(folder, path + ": a link to nothing");
    EXPECT_TRUE(SafeTensors::present(*open_model_folder(folder.path()).value()));
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    expect_open_error(folder, path + ": not a regular file");
    EXPECT_TRUE(SafeTensors::present(*open_model_folder(folder.path()).value()));
  }
}

TEST(ModelSource, folders_and_memory_say_the_same) {
  EXPECT_EQ(open_model_folder("/nonexistent/model").status().message(),
            "/nonexistent/model: No such file or directory");
  TempFolder folder;
  folder.write("config.json", "{}");
  folder.write("b.safetensors", one_tensor("w", "1"));
  EXPECT_NE(open_model_folder(folder.path() + "/config.json").status().message().find("not a folder"),
            std::string::npos);
  const auto disk = open_model_folder(folder.path() + "//").value();
  EXPECT_EQ(disk->label(), folder.path());

  const std::string config = "{}";
  const std::string weights = one_tensor("w", "1");
  const auto memory = make_memory_model_source(
      "built-in", {{"config.json", as_bytes(config)}, {"b.safetensors", as_bytes(weights)}});
  for (const ModelSource* source : std::vector<const ModelSource*>{disk.get(), memory.get()}) {
    EXPECT_EQ(source->file_names(), (std::vector<std::string>{"b.safetensors", "config.json"}));
    EXPECT_EQ(source->read_text("config.json").value(), "{}");
    EXPECT_EQ(source->read_text("config.json", 1).status().code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(source->read_text("absent").status().code(), StatusCode::kNotFound);
    EXPECT_NE(source->read_text("absent").status().message().find(source->label() + "/absent: "),
              std::string::npos);
    EXPECT_EQ(source->open("../config.json").status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(source->open(std::string_view("config.json\0", 12)).status().code(),
              StatusCode::kInvalidArgument);
    EXPECT_FALSE(source->contains(".."));
    EXPECT_EQ(SafeTensors::open(*source)->tensors().size(), 1u);
  }
}

TEST(ModelSource, names_in_messages_stay_on_one_line) {
  EXPECT_EQ(quoted_name("a\nb\x7f"), "'a\\x0ab\\x7f'");
  EXPECT_EQ(quoted_name(std::string(1000, 'x')).size(), 1 + 160 + std::string("…'").size());
}

}  // namespace
}  // namespace fathom
