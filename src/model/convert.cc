// A WeightPlan written to shards instead of packed into memory, tensor by tensor.
#include "model/convert.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/elementwise.h"
#include "kernels/quantize.h"
#include "model/output_folder.h"
#include "model/saved_panels.h"
#include "model/weights_pack.h"
#include "model/weights_plan.h"
#include "tensor/safetensors_writer.h"

namespace fathom {
namespace {

// Rows quantised by one tile; whole FP8 blocks.
constexpr int64_t kTileRows = kScaleBlock;

// One tensor to write: copied from the checkpoint, packed by `pack` into memory of its size, or made from a
// matrix of it (codes first, then their scales).
struct OutputTensor {
  TensorSpec spec;
  const TensorInfo* copied = nullptr;
  std::function<void(std::byte*)> pack;
  size_t matrix = 0;  // in Converter::matrices_, where neither
  bool is_scales = false;
};

// A matrix that changes its format.
struct Matrix {
  WeightSource source;
  const TensorInfo* tensor = nullptr;
  WeightFormat format = WeightFormat::kBf16;
};

DType codes_dtype(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return DType::kF32;
    case WeightFormat::kF16:
      return DType::kF16;
    case WeightFormat::kBf16:
      return DType::kBf16;
    case WeightFormat::kFp8:
      return DType::kFp8E4m3;
    case WeightFormat::kInt8:
      return DType::kInt8;
    case WeightFormat::kInt4:
      return DType::kUint8;
  }
  return DType::kF32;
}

class Converter {
 public:
  Converter(const WeightPlan& plan, const ConvertOptions& options, std::string out_folder, ThreadTeam& team)
      : plan_(plan), options_(options), out_folder_(std::move(out_folder)), team_(team) {}

  void list_outputs() { panels() ? list_panels() : list_rows(); }

  Status write_shards(ConvertReport& report) {
    cut_shards();
    for (const OutputTensor& output : outputs_) report.weight_bytes += output.spec.size_bytes();
    report.num_shards = static_cast<int>(shard_ends_.size());
    size_t begin = 0;
    nlohmann::ordered_json weight_map;
    for (size_t shard = 0; shard < shard_ends_.size(); ++shard) {
      const std::string name = shard_name(shard);
      RETURN_IF_ERROR(write_shard(name, begin, shard_ends_[shard], report.weight_bytes));
      if (panels()) weight_map[checksums_name(name)] = name;
      for (; begin < shard_ends_[shard]; ++begin) weight_map[outputs_[begin].spec.name] = name;
    }
    if (shard_ends_.size() < 2) return ok_status();
    const nlohmann::ordered_json index = {{"metadata", {{"total_size", report.weight_bytes}}},
                                          {"weight_map", weight_map}};
    return write_text("model.safetensors.index.json", index.dump(1) + "\n");
  }

  // The original's config.json with our quantization_config.
  Status write_config(std::string_view original) {
    nlohmann::ordered_json config = nlohmann::ordered_json::parse(original, nullptr, false);
    CHECK_MSG(config.is_object(), "the config was read before");
    config.erase("quantization_config");
    if (head_untied_) config["tie_word_embeddings"] = false;
    nlohmann::ordered_json quant = {{"quant_method", "fathom"}, {"format_version", panels() ? 2 : 1}};
    if (panels()) quant["layout"] = kPanelLayout;
    quant["weights"] = weight_format_name(options_.weights);
    if (plan_.config.scale_fmt_ue8m0) quant["scale_fmt"] = "ue8m0";
    config["quantization_config"] = std::move(quant);
    return write_text("config.json", config.dump(2) + "\n");
  }

  Status write_text(const std::string& name, std::string_view text) {
    ASSIGN_OR_RETURN(FileWriter file, FileWriter::create(out_folder_ + "/" + name));
    RETURN_IF_ERROR(file.append(text));
    return file.finish();
  }

 private:
  bool panels() const { return options_.layout == ConvertLayout::kPanels; }

  // In the plan's order. The head's own tensor is written when it no longer is the embedding.
  void list_rows() {
    copy(*plan_.embed_tokens);
    for (const LinearPlan& linear : plan_.linears) {
      const bool kept = linear.group == ActGroup::kGate || codes_dtype(linear.format) == linear.weight->dtype;
      const bool tied = linear.group == ActGroup::kHead && plan_.config.tie_word_embeddings;
      if (kept && tied) continue;
      if (tied) head_untied_ = true;
      if (!kept) {
        make(linear.name, linear.source(), *linear.weight, linear.format);
        continue;
      }
      copy(*linear.weight);
      if (linear.scales != nullptr) copy(*linear.scales);
    }
    for (const KvBPlan& kv_b : plan_.kv_bs) {
      if (codes_dtype(kv_b.format) == kv_b.weight->dtype) {
        copy(*kv_b.weight);
      } else {
        make(kv_b.name, kv_b.source(), *kv_b.weight, kv_b.format);
      }
    }
    for (const VectorPlan& vector : plan_.vectors) copy(*vector.tensor);
  }

  // Whatever begins at a multiple of 64 bytes first, so that everything in place does.
  void list_panels() {
    head_untied_ = plan_.config.tie_word_embeddings;
    for (const LinearPlan& linear : plan_.linears) {
      add_panels(linear.name, linear.format, panels_bytes(linear.format, linear.n, linear.k),
                 [this, &linear](std::byte* memory) { pack_linear(linear, memory); });
    }
    for (const KvBPlan& kv_b : plan_.kv_bs) {
      const int64_t heads = plan_.config.num_attention_heads;
      add_panels(kv_b.name, kv_b.format, heads * KvBHeadPanels(plan_.config, kv_b.format).bytes(),
                 [this, &kv_b](std::byte* memory) { pack_kv_b(kv_b, memory); });
    }
    copy(*plan_.embed_tokens);
    for (const VectorPlan& vector : plan_.vectors) copy(*vector.tensor);
  }
  void add_panels(const std::string& name, WeightFormat format, int64_t bytes,
                  std::function<void(std::byte*)> pack) {
    outputs_.push_back(
        {.spec = {panels_name(name, format), DType::kUint8, {bytes}}, .pack = std::move(pack)});
  }

  void pack_linear(const LinearPlan& linear, std::byte* memory) {
    const PackedWeight w = make_packed_weight(linear.format, linear.n, linear.k, memory, kPanelIsa);
    const WeightSource source = linear.source();
    team_.run(ceil_div(linear.n, kTileRows), [&](int64_t tile, int) {
      const int64_t first = tile * kTileRows;
      pack_rows(w, first, std::min(kTileRows, linear.n - first), source, first);
    });
    SafeTensors::drop_pages(*linear.weight, linear.weight->bytes);
  }
  void pack_kv_b(const KvBPlan& kv_b, std::byte* memory) {
    const ModelConfig& c = plan_.config;
    const KvBHeadPanels sizes(c, kv_b.format);
    const WeightSource source = kv_b.source();
    const auto packed = [&](int64_t n, int64_t k, std::byte* at) {
      return make_packed_weight(kv_b.format, n, k, at, kPanelIsa);
    };
    team_.run(c.num_attention_heads, [&](int64_t head, int) {
      std::byte* at = memory + head * sizes.bytes();
      pack_kv_b_head({packed(c.qk_nope_head_dim, c.kv_lora_rank, at),
                      packed(c.kv_lora_rank, c.qk_nope_head_dim, at + sizes.w_uk_bytes),
                      packed(c.v_head_dim, c.kv_lora_rank, at + sizes.w_uk_bytes + sizes.w_uk_t_bytes)},
                     source, c, head);
    });
    SafeTensors::drop_pages(*kv_b.weight, kv_b.weight->bytes);
  }

  void copy(const TensorInfo& tensor) {
    outputs_.push_back({.spec = {tensor.name, tensor.dtype, tensor.shape}, .copied = &tensor});
  }
  void make(const std::string& name, const WeightSource& source, const TensorInfo& tensor,
            WeightFormat format) {
    matrices_.push_back({source, &tensor, format});
    const size_t idx = matrices_.size() - 1;
    const int64_t code_cols =
        format == WeightFormat::kInt4 ? ceil_div(source.k, kInt4Group) * (kInt4Group / 2) : source.k;
    outputs_.push_back(
        {.spec = {name + ".weight", codes_dtype(format), {source.n, code_cols}}, .matrix = idx});
    TensorSpec scales;
    switch (format) {
      case WeightFormat::kFp8:
        scales = {name + ".weight_scale_inv",
                  DType::kF32,
                  {ceil_div(source.n, kScaleBlock), ceil_div(source.k, kScaleBlock)}};
        break;
      case WeightFormat::kInt8:
        scales = {name + ".weight_scale", DType::kF32, {source.n, ceil_div(source.k, kScaleBlock)}};
        break;
      case WeightFormat::kInt4:
        scales = {name + ".weight_scale", DType::kF16, {source.n, ceil_div(source.k, kInt4Group)}};
        break;
      default:
        return;
    }
    outputs_.push_back({.spec = std::move(scales), .matrix = idx, .is_scales = true});
  }

  // A matrix's codes and scales stay in one shard.
  void cut_shards() {
    int64_t shard_bytes = 0;
    for (size_t i = 0; i < outputs_.size();) {
      size_t next = i + 1;
      int64_t bytes = outputs_[i].spec.size_bytes();
      while (next < outputs_.size() && outputs_[next].is_scales) bytes += outputs_[next++].spec.size_bytes();
      if (shard_bytes > 0 && shard_bytes + bytes > options_.shard_bytes_max) {
        shard_ends_.push_back(i);
        shard_bytes = 0;
      }
      shard_bytes += bytes;
      i = next;
    }
    shard_ends_.push_back(outputs_.size());
  }

  std::string shard_name(size_t shard) const {
    if (shard_ends_.size() == 1) return "model.safetensors";
    return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shard_ends_.size());
  }

  Status write_shard(const std::string& name, size_t begin, size_t end, int64_t total_bytes) {
    std::vector<TensorSpec> specs;
    for (size_t i = begin; i < end; ++i) specs.push_back(outputs_[i].spec);
    if (panels())
      specs.push_back({checksums_name(name), DType::kUint64, {static_cast<int64_t>(end - begin)}});
    std::vector<uint64_t> checksums;
    ASSIGN_OR_RETURN(FileWriter file, FileWriter::create(out_folder_ + "/" + name));
    RETURN_IF_ERROR(file.append(safetensors_header(specs)));
    for (size_t i = begin; i < end; ++i) {
      const OutputTensor& output = outputs_[i];
      if (output.copied != nullptr) {
        RETURN_IF_ERROR(file.append(output.copied->bytes));
        if (panels()) checksums.push_back(checksum_of(output.copied->bytes));
        SafeTensors::drop_pages(*output.copied, output.copied->bytes);
      } else if (output.pack) {
        codes_ = AlignedBuffer(static_cast<size_t>(output.spec.size_bytes()));
        output.pack(codes_.data());
        checksums.push_back(checksum_of(codes_.bytes()));
        RETURN_IF_ERROR(file.append(codes_.bytes()));
      } else if (output.is_scales) {
        RETURN_IF_ERROR(file.append(scales_.bytes()));
      } else {
        const OutputTensor* scales = i + 1 < end && outputs_[i + 1].is_scales ? &outputs_[i + 1] : nullptr;
        codes_ = AlignedBuffer(static_cast<size_t>(output.spec.size_bytes()));
        scales_ = AlignedBuffer(scales == nullptr ? 0 : static_cast<size_t>(scales->spec.size_bytes()));
        quantize(matrices_[output.matrix]);
        RETURN_IF_ERROR(file.append(codes_.bytes()));
      }
      done_bytes_ += output.spec.size_bytes();
      if (options_.progress) options_.progress(done_bytes_, total_bytes);
    }
    RETURN_IF_ERROR(file.append(std::as_bytes(std::span(checksums))));
    return file.finish();
  }

  // "fathom.checksums.model.safetensors".
  static std::string checksums_name(const std::string& shard) {
    return std::string(kChecksumsPrefix) + shard;
  }

  uint64_t checksum_of(std::span<const std::byte> bytes) {
    const auto size = static_cast<int64_t>(bytes.size());
    std::vector<uint64_t> pieces(static_cast<size_t>(ceil_div(size, kChecksumPieceBytes)));
    team_.run(static_cast<int64_t>(pieces.size()), [&](int64_t i, int) {
      const int64_t begin = i * kChecksumPieceBytes;
      const int64_t count = std::min(kChecksumPieceBytes, size - begin);
      pieces[static_cast<size_t>(i)] =
          piece_checksum(bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)));
    });
    return tensor_checksum(pieces);
  }

  // All of one matrix into codes_ and scales_.
  void quantize(const Matrix& matrix) {
    team_.run(ceil_div(matrix.source.n, kTileRows), [&](int64_t tile, int) {
      const int64_t first = tile * kTileRows;
      quantize_rows_of(matrix, first, std::min(kTileRows, matrix.source.n - first));
      const auto row_bytes = static_cast<size_t>(matrix.source.row_bytes());
      const size_t rows = static_cast<size_t>(std::min(kTileRows, matrix.source.n - first));
      SafeTensors::drop_pages(*matrix.tensor, matrix.tensor->bytes.subspan(
                                                  static_cast<size_t>(first) * row_bytes, rows * row_bytes));
    });
  }
  void quantize_rows_of(const Matrix& matrix, int64_t first, int64_t rows) {
    const WeightSource& source = matrix.source;
    const int64_t blocks = ceil_div(source.k, kScaleBlock);
    const int64_t groups = ceil_div(source.k, kInt4Group);
    switch (matrix.format) {
      case WeightFormat::kFp8:
        return quantize_weight_fp8(source, first, rows, codes_.as<Fp8E4m3>() + first * source.k,
                                   scales_.as<float>() + first / kScaleBlock * blocks);
      case WeightFormat::kInt8:
        return quantize_weight_int8(source, first, rows, codes_.as<int8_t>() + first * source.k,
                                    scales_.as<float>() + first * blocks);
      case WeightFormat::kInt4:
        return quantize_weight_int4(source, first, rows,
                                    codes_.as<uint8_t>() + first * groups * (kInt4Group / 2),
                                    scales_.as<F16>() + first * groups);
      default: {
        const DType dtype = codes_dtype(matrix.format);
        std::vector<float> row(static_cast<size_t>(source.k));
        for (int64_t i = first; i < first + rows; ++i) {
          dequantize_weight(source, i, 0, source.k, row.data());
          from_f32(row.data(), source.k, dtype, codes_.data() + dtype_bytes(dtype, i * source.k));
        }
      }
    }
  }

  const WeightPlan& plan_;
  const ConvertOptions& options_;
  const std::string out_folder_;
  ThreadTeam& team_;
  std::vector<OutputTensor> outputs_;
  std::vector<Matrix> matrices_;
  std::vector<size_t> shard_ends_;
  AlignedBuffer codes_, scales_;  // of the matrix being written
  int64_t done_bytes_ = 0;
  bool head_untied_ = false;
};

// Tokenizer, chat template, generation config, licence …: whatever is not weights or the config itself.
bool is_side_file(std::string_view name) {
  if (name == "config.json" || name.ends_with(".index.json")) return false;
  for (const std::string_view suffix : {".json", ".jinja", ".txt", ".md", ".model", ".tiktoken", ".py"}) {
    if (name.ends_with(suffix)) return true;
  }
  return name == "LICENSE" || name.starts_with("LICENSE-");
}

}  // namespace

Result<ConvertReport> convert_model(const ModelSource& source, const std::string& out_folder,
                                    const ConvertOptions& options, ThreadTeam& team) {
  if (options.weights == WeightFormat::kF32 || options.weights == WeightFormat::kF16) {
    return invalid_argument("--weights: converting to {} is not supported (known: bf16, fp8, int8, int4)",
                            weight_format_name(options.weights));
  }
  ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(source));
  ASSIGN_OR_RETURN(const SafeTensors tensors, SafeTensors::open(source));
  if (config.fathom_panels) {
    return invalid_argument("{}: its weights are packed already; convert the model it was made from",
                            source.label());
  }
  LoadOptions load;
  load.weights = options.weights;
  auto plan = plan_weights(config, tensors, load);
  if (!plan.ok()) return plan.status().with_context(source.label());
  ASSIGN_OR_RETURN(const std::string config_text, source.read_text("config.json"));
  ASSIGN_OR_RETURN(OutputFolder folder, OutputFolder::create(out_folder));

  ConvertReport report;
  report.warnings = plan->weights->warnings;
  Converter converter(*plan, options, folder.work_path(), team);
  converter.list_outputs();
  // The long part last: a file that cannot be read is known before.
  for (const std::string& name : source.file_names()) {
    if (!is_side_file(name)) continue;
    ASSIGN_OR_RETURN(const std::string text, source.read_text(name));
    RETURN_IF_ERROR(converter.write_text(name, text));
    report.copied_files.push_back(name);
  }
  RETURN_IF_ERROR(converter.write_shards(report));
  RETURN_IF_ERROR(converter.write_config(config_text));
  RETURN_IF_ERROR(folder.finish());
  return report;
}

}  // namespace fathom
