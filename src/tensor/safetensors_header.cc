// The header of one safetensors file: a strict reader on nlohmann's event parser. A document tree would
// silently keep the last of two equal names and build whatever depth it is given; events let both be refused
// at once.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "tensor/safetensors.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

struct HeaderTensor {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_dtype = false;
  bool has_shape = false;
  bool has_offsets = false;
};

// Depth 1: the header; 2: one tensor's object, or __metadata__; 3: a tensor's array. Nothing is deeper.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  std::vector<HeaderTensor> take() { return std::move(tensors_); }
  const std::string& error() const { return error_; }

  bool start_object(std::size_t) override {
    if (in_array_) return fail("an object where numbers belong");
    if (depth_ == 2) return fail("an object too deep");
    if (depth_ == 1 && !in_metadata_) tensors_.push_back({.name = key_});
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (depth_ == 2 && !in_metadata_) {
      const HeaderTensor& tensor = tensors_.back();
      if (!tensor.has_dtype) return fail("no dtype");
      if (!tensor.has_shape) return fail("no shape");
      if (!tensor.has_offsets) return fail("no data_offsets");
    }
    if (--depth_ == 1) in_metadata_ = false;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || in_array_) return fail("an array in the wrong place");
    if (field_ == "shape") {
      numbers_ = &tensors_.back().shape;
      tensors_.back().has_shape = true;
    } else if (field_ == "data_offsets") {
      numbers_ = &tensors_.back().offsets;
      tensors_.back().has_offsets = true;
    } else {
      return fail("dtype must be a string");
    }
    in_array_ = true;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      key_ = name;
      in_metadata_ = name == "__metadata__";
      if (!names_.insert(name).second) return fail("the name occurs twice");
      return true;
    }
    field_ = name;
    if (in_metadata_) return true;
    const HeaderTensor& tensor = tensors_.back();
    const bool known = name == "dtype" || name == "shape" || name == "data_offsets";
    if (!known) return fail(fmt::format("unexpected key {}", quoted_name(name)));
    const bool seen = (name == "dtype" && tensor.has_dtype) || (name == "shape" && tensor.has_shape) ||
                      (name == "data_offsets" && tensor.has_offsets);
    return !seen || fail(fmt::format("{} occurs twice", name));
  }
  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || in_array_ || field_ != "dtype") return fail("a string in the wrong place");
    tensors_.back().dtype = value;
    tensors_.back().has_dtype = true;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return fail("a number in the wrong place");
    if (numbers_->size() >= kSafetensorsDimsMax) {
      return fail(fmt::format("{} has more than {} entries", field_, kSafetensorsDimsMax));
    }
    numbers_->push_back(value);
    return true;
  }
  bool number_integer(number_integer_t value) override {
    return fail(fmt::format("{} must hold integers ≥ 0, not {}", field_, value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return fail(fmt::format("{} must hold integers ≥ 0, not {}", field_, quoted_name(text)));
  }
  bool null() override { return fail("null in the wrong place"); }
  bool boolean(bool) override { return fail("a boolean in the wrong place"); }
  bool binary(binary_t&) override { return fail("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const Json::exception& problem) override {
    // what() is "[json.exception.parse_error.101] parse error at line 1, column 7: …": keep what follows the
    // tag.
    const std::string_view text = problem.what();
    const size_t tag_end = text.find("] ");
    error_ = fmt::format("malformed JSON at header byte {}: {}", position,
                         text.substr(tag_end == std::string_view::npos ? 0 : tag_end + 2));
    return false;
  }

 private:
  bool fail(std::string_view what) {
    error_ = key_.empty() ? std::string(what) : fmt::format("{}: {}", quoted_name(key_), what);
    return false;
  }

  std::vector<HeaderTensor> tensors_;
  std::set<std::string> names_;
  std::string error_;
  std::string key_;    // the tensor being read
  std::string field_;  // dtype, shape, data_offsets
  std::vector<uint64_t>* numbers_ = nullptr;
  int depth_ = 0;
  bool in_metadata_ = false;
  bool in_array_ = false;
};

Status torn(std::string_view file, std::string_view what) {
  return make_status(StatusCode::kDataLoss, "{}: {}", file, what);
}

// Elements × size in bytes; nothing when it does not fit 62 bits.
std::optional<uint64_t> shape_bytes(const std::vector<uint64_t>& shape, DType dtype) {
  unsigned __int128 bytes = static_cast<unsigned>(dtype_bits(dtype)) / 8;
  // Zeros first: [2^60, 2^60, 0] is an empty tensor, not an overflow.
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) bytes = 0;
  for (const uint64_t dim : shape) {
    if (dim > (uint64_t{1} << 62)) return std::nullopt;
    bytes *= dim;
    if (bytes > (uint64_t{1} << 62)) return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

Result<TensorInfo> check_tensor(std::string_view file, const HeaderTensor& raw,
                                std::span<const std::byte> data) {
  const auto wrong = [&](std::string_view what) {
    return make_status(StatusCode::kDataLoss, "{}: {}: {}", file, quoted_name(raw.name), what);
  };
  const std::optional<DType> dtype = parse_dtype(raw.dtype);
  if (!dtype) return wrong(fmt::format("unknown dtype {}", quoted_name(raw.dtype)));
  if (raw.offsets.size() != 2)
    return wrong(fmt::format("data_offsets has {} entries, not 2", raw.offsets.size()));
  const uint64_t begin = raw.offsets[0];
  const uint64_t end = raw.offsets[1];
  if (begin > end) return wrong(fmt::format("data_offsets [{}, {}] run backwards", begin, end));
  if (end > data.size()) {
    return wrong(fmt::format("data_offsets [{}, {}] end beyond the {} data bytes of the file (truncated?)",
                             begin, end, data.size()));
  }
  TensorInfo tensor{.name = raw.name, .dtype = *dtype, .file = std::string(file)};
  const std::optional<uint64_t> wanted = shape_bytes(raw.shape, *dtype);
  if (!wanted) return wrong("the shape's product overflows");
  tensor.shape.assign(raw.shape.begin(), raw.shape.end());
  if (*wanted != end - begin) {
    return wrong(fmt::format("{} {} needs {} bytes, data_offsets give {}", raw.dtype, tensor.shape_text(),
                             *wanted, end - begin));
  }
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

// Every data byte belongs to exactly one tensor.
Status check_coverage(std::string_view file, const std::vector<TensorInfo>& tensors,
                      std::span<const std::byte> data) {
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    if (a->bytes.data() != b->bytes.data()) return a->bytes.data() < b->bytes.data();
    return a->bytes.size() < b->bytes.size();
  });
  const std::byte* reached = data.data();
  const TensorInfo* previous = nullptr;
  for (const TensorInfo* tensor : order) {
    const std::byte* begin = tensor->bytes.data();
    if (begin < reached) {
      return torn(file,
                  fmt::format("{}: overlaps {}", quoted_name(tensor->name), quoted_name(previous->name)));
    }
    if (begin > reached) {
      return torn(file, fmt::format("{}: {} bytes before it belong to no tensor", quoted_name(tensor->name),
                                    begin - reached));
    }
    reached = begin + tensor->bytes.size();
    previous = tensor;
  }
  const auto left = data.data() + data.size() - reached;
  if (left != 0) return torn(file, fmt::format("the last {} bytes belong to no tensor", left));
  return ok_status();
}

}  // namespace

Result<std::vector<TensorInfo>> parse_safetensors(std::string_view file, std::span<const std::byte> bytes) {
  if (bytes.size() < 8)
    return torn(file, fmt::format("{} bytes are too few for a safetensors header", bytes.size()));
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < 8; ++i) header_bytes |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  if (header_bytes > kSafetensorsHeaderBytesMax) {
    return torn(file, fmt::format("header length {} is above the limit of {}: not a safetensors file?",
                                  header_bytes, kSafetensorsHeaderBytesMax));
  }
  if (header_bytes > bytes.size() - 8) {
    return torn(file, fmt::format("header length {} reaches beyond the end of the file ({} bytes)",
                                  header_bytes, bytes.size()));
  }
  const auto* header = reinterpret_cast<const char*>(bytes.data()) + 8;
  if (header_bytes == 0 || header[0] != '{') return torn(file, "the header is not a JSON object");
  // The parser takes a NUL for the end and would leave what follows unread.
  if (std::memchr(header, 0, header_bytes) != nullptr) return torn(file, "the header holds a NUL");
  HeaderReader reader;
  if (!Json::sax_parse(header, header + header_bytes, &reader)) return torn(file, reader.error());

  const std::span<const std::byte> data = bytes.subspan(8 + header_bytes);
  std::vector<TensorInfo> tensors;
  for (const HeaderTensor& raw : reader.take()) {
    ASSIGN_OR_RETURN(TensorInfo tensor, check_tensor(file, raw, data));
    tensors.push_back(std::move(tensor));
  }
  RETURN_IF_ERROR(check_coverage(file, tensors, data));
  return tensors;
}

}  // namespace fathom
