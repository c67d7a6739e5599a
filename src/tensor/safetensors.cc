// Which files make up a checkpoint, and one sorted list of their tensors.
#include "tensor/safetensors.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace fathom {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kSuffix = ".safetensors";
constexpr int kIndexDepthMax = 16;

// {"metadata": anything, "weight_map": {tensor: file}}; only weight_map is kept.
class IndexReader final : public nlohmann::json_sax<Json> {
 public:
  std::map<std::string, std::string> weight_map;
  std::string error;
  bool has_weight_map = false;

  bool key(string_t& name) override {
    if (depth_ == 1) {
      in_map_ = name == "weight_map";
      if (in_map_ && has_weight_map) return fail("weight_map occurs twice");
      has_weight_map |= in_map_;
    } else if (depth_ == 2 && in_map_) {
      tensor_ = name;
    }
    return true;
  }
  bool string(string_t& file) override {
    if (!in_map_ || depth_ == 0) return depth_ > 0 || fail("not an object");
    if (depth_ == 1) return fail("weight_map is not an object");
    if (!weight_map.emplace(tensor_, file).second) return fail(quoted_name(tensor_) + " occurs twice");
    return true;
  }
  bool start_object(std::size_t) override {
    if (in_map_ && depth_ >= 2) return scalar();
    return ++depth_ <= kIndexDepthMax || fail(fmt::format("nested deeper than {}", kIndexDepthMax));
  }
  bool end_object() override {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }
  bool start_array(std::size_t) override {
    if (!scalar()) return false;
    return ++depth_ <= kIndexDepthMax || fail(fmt::format("nested deeper than {}", kIndexDepthMax));
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t) override { return scalar(); }
  bool number_unsigned(number_unsigned_t) override { return scalar(); }
  bool number_float(number_float_t, const string_t&) override { return scalar(); }
  bool binary(binary_t&) override { return scalar(); }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    return fail(fmt::format("malformed JSON at byte {}", position));
  }

 private:
  // A value that is not a file name: fine anywhere but in the map.
  bool scalar() {
    if (depth_ == 0) return fail("not an object");
    if (!in_map_) return true;
    return depth_ == 1 ? fail("weight_map is not an object")
                       : fail(quoted_name(tensor_) + ": the file name is not a string");
  }
  bool fail(std::string what) {
    error = std::move(what);
    return false;
  }

  std::string tensor_;
  int depth_ = 0;
  bool in_map_ = false;
};

Result<std::map<std::string, std::string>> read_index(const ModelSource& source) {
  ASSIGN_OR_RETURN(const std::string text, source.read_text(kIndexFile, kSafetensorsIndexBytesMax));
  // The parser takes a NUL for the end and would leave what follows unread.
  if (text.find('\0') != std::string::npos)
    return invalid_argument("{}/{}: holds a NUL", source.label(), kIndexFile);
  IndexReader reader;
  if (!Json::sax_parse(text, &reader)) {
    return invalid_argument("{}/{}: {}", source.label(), kIndexFile, reader.error);
  }
  if (!reader.has_weight_map) return invalid_argument("{}/{}: no weight_map", source.label(), kIndexFile);
  if (reader.weight_map.empty())
    return invalid_argument("{}/{}: weight_map is empty", source.label(), kIndexFile);
  return std::move(reader.weight_map);
}

std::vector<std::string> loose_shards(const ModelSource& source) {
  std::vector<std::string> names = source.file_names();
  std::erase_if(names, [](const std::string& name) { return !std::string_view(name).ends_with(kSuffix); });
  return names;
}

bool by_name(const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; }

}  // namespace

int64_t TensorInfo::num_elements() const {
  int64_t count = 1;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

std::string TensorInfo::shape_text() const { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Status SafeTensors::add_file(const ModelSource& source, const std::string& name) {
  ASSIGN_OR_RETURN(std::shared_ptr<const ModelFile> file, source.open(name));
  ASSIGN_OR_RETURN(std::vector<TensorInfo> tensors,
                   parse_safetensors(source.label() + "/" + name, file->bytes()));
  for (TensorInfo& tensor : tensors) {
    tensor.file = name;
    tensor.source = file.get();
    tensors_.push_back(std::move(tensor));
  }
  files_.push_back(std::move(file));
  return ok_status();
}

bool SafeTensors::present(const ModelSource& source) {
  return source.contains(kIndexFile) || !loose_shards(source).empty();
}

Result<SafeTensors> SafeTensors::open(const ModelSource& source) {
  SafeTensors all;
  std::map<std::string, std::string> weight_map;
  if (source.contains(kSingleFile)) {
    all.list_name_ = kSingleFile;
    RETURN_IF_ERROR(all.add_file(source, all.list_name_));
  } else if (source.contains(kIndexFile)) {
    all.list_name_ = kIndexFile;
    ASSIGN_OR_RETURN(weight_map, read_index(source));
    std::map<std::string, std::string> first_tensor_of;
    for (const auto& [tensor, file] : weight_map) first_tensor_of.emplace(file, tensor);
    for (const auto& [file, tensor] : first_tensor_of) {
      if (Status status = all.add_file(source, file); !status.ok()) {
        if (status.code() == StatusCode::kNotFound || status.code() == StatusCode::kInvalidArgument) {
          return Status(status.code(), fmt::format("{} (named by {} for {})", status.message(), kIndexFile,
                                                   quoted_name(tensor)));
        }
        return status;
      }
    }
  } else {
    const std::vector<std::string> shards = loose_shards(source);
    if (shards.empty()) {
      return make_status(StatusCode::kNotFound, "{}: no weights: neither {} nor {} nor any *{} file",
                         source.label(), kSingleFile, kIndexFile, kSuffix);
    }
    all.list_name_ = shards.size() == 1 ? shards[0] : fmt::format("*{}", kSuffix);
    for (const std::string& name : shards) RETURN_IF_ERROR(all.add_file(source, name));
  }

  std::stable_sort(all.tensors_.begin(), all.tensors_.end(), by_name);
  const auto twice = std::adjacent_find(all.tensors_.begin(), all.tensors_.end(),
                                        [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != all.tensors_.end()) {
    return invalid_argument("{}/{}: {}: the tensor is in {} too", source.label(), twice->file,
                            quoted_name(twice->name), (twice + 1)->file);
  }
  for (const auto& [name, file] : weight_map) {
    const TensorInfo* tensor = all.find(name);
    if (tensor == nullptr || tensor->file != file) {
      return invalid_argument("{}/{}: {}: {} says the tensor is here, but it is not", source.label(), file,
                              quoted_name(name), kIndexFile);
    }
  }
  return all;
}

const TensorInfo* SafeTensors::find(std::string_view name) const {
  const auto at =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const TensorInfo& tensor, std::string_view key) { return tensor.name < key; });
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

}  // namespace fathom
