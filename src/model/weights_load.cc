// Carries out a WeightPlan: one buffer for everything, cut into pieces of about a megabyte of checkpoint that
// the team packs in any order. What a piece becomes depends on nothing but its source, so neither does the
// result.
#include <openssl/sha.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/elementwise.h"
#include "kernels/quantize.h"
#include "model/saved_panels.h"
#include "model/weights_pack.h"
#include "model/weights_plan.h"

namespace fathom {
namespace {

constexpr int64_t kPieceBytes = kChecksumPieceBytes;  // of the checkpoint, per tile
constexpr int64_t kBatchBytes = int64_t{64} << 20;    // of the checkpoint, per barrier and progress report
constexpr size_t kSampleBytes = 64;                   // of each piece, into the fingerprint

// Rows [begin, end) of one tensor; heads for kv_b, elements for vectors and the embedding.
struct Piece {
  enum class Kind : uint8_t { kLinear, kKvB, kVector, kEmbedding };
  Kind kind;
  size_t idx = 0;  // in the plan's list of its kind
  int64_t begin = 0;
  int64_t end = 0;
  int64_t source_bytes = 0;
  uint64_t sample = 0;
};

std::span<const std::byte> part_of(const TensorInfo& tensor, int64_t begin, int64_t end) {
  return tensor.bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

// FNV-1a; only to tell models apart, so no adversary is meant.
uint64_t sample_of(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte b : bytes.first(std::min(bytes.size(), kSampleBytes))) {
    hash = (hash ^ std::to_integer<uint64_t>(b)) * 0x100000001b3u;
  }
  return hash;
}

class Loader {
 public:
  Loader(WeightPlan& plan, const LoadOptions& options)
      : c_(plan.config),
        plan_(plan),
        w_(*plan.weights),
        in_place_(c_.fathom_panels && reads_panels(WeightFormat::kF32, plan.isa) &&
                  options.pages.nodes.empty()) {}

  Status run(const LoadOptions& options, ThreadTeam& team) {
    allocate();
    place(options.pages);
    cut_pieces();
    const int64_t total_bytes = plan_.source_bytes();
    int64_t done_bytes = 0;
    for (size_t begin = 0; begin < pieces_.size();) {
      size_t end = begin;
      int64_t batch_bytes = 0;
      while (end < pieces_.size() && batch_bytes < kBatchBytes) batch_bytes += pieces_[end++].source_bytes;
      team.run(static_cast<int64_t>(end - begin),
               [&](int64_t tile, int) { load(pieces_[begin + static_cast<size_t>(tile)]); });
      done_bytes += batch_bytes;
      if (options.progress) options.progress(std::min(done_bytes, total_bytes), total_bytes);
      begin = end;
    }
    RETURN_IF_ERROR(check_sums());
    w_.fingerprint = fingerprint();
    return {};
  }

 private:
  void allocate() {
    w_.mapped_bytes = in_place_ ? mappable_bytes() : 0;
    if (in_place_) w_.files = plan_.files;
    w_.memory.emplace_back(static_cast<size_t>(w_.bytes.total() - w_.mapped_bytes));
    if (in_place_) {
      w_.embed_tokens = plan_.embed_tokens->bytes.data();
    } else {
      embed_tokens_ = take(static_cast<int64_t>(plan_.embed_tokens->bytes.size()));
      w_.embed_tokens = embed_tokens_;
    }
    for (const LinearPlan& linear : plan_.linears) {
      const std::byte* mapped = in_place_ ? linear.weight->bytes.data() : nullptr;
      *linear.target = packed(linear.format, linear.n, linear.k, mapped);
    }
    for (const KvBPlan& kv_b : plan_.kv_bs) allocate_kv_b(kv_b);
    for (const VectorPlan& vector : plan_.vectors) {
      vectors_.push_back(reinterpret_cast<float*>(take(vector.tensor->num_elements() * 4)));
      *vector.target = vectors_.back();
    }
    CHECK(used_bytes_ == w_.bytes.total() - w_.mapped_bytes);
  }

  void allocate_kv_b(const KvBPlan& kv_b) {
    const std::byte* mapped = in_place_ ? kv_b.weight->bytes.data() : nullptr;
    const auto add = [&](std::vector<PackedWeight>& heads, int64_t n, int64_t k) {
      heads.push_back(packed(kv_b.format, n, k, mapped));
      if (mapped != nullptr) mapped += heads.back().bytes();
    };
    for (int64_t head = 0; head < c_.num_attention_heads; ++head) {
      add(kv_b.target->w_uk, c_.qk_nope_head_dim, c_.kv_lora_rank);
      add(kv_b.target->w_uk_t, c_.kv_lora_rank, c_.qk_nope_head_dim);
      add(kv_b.target->w_uv, c_.v_head_dim, c_.kv_lora_rank);
    }
  }

  // What count_bytes counted for tensors that can stay in their files: all but vectors.
  int64_t mappable_bytes() const {
    int64_t bytes = round_up(static_cast<int64_t>(plan_.embed_tokens->bytes.size()), kBufferAlignmentBytes);
    for (const LinearPlan& linear : plan_.linears) bytes += static_cast<int64_t>(linear.weight->bytes.size());
    for (const KvBPlan& kv_b : plan_.kv_bs) bytes += static_cast<int64_t>(kv_b.weight->bytes.size());
    return bytes;
  }

  // Before anything is written: pages get their node when they are first touched.
  void place(const WeightPages& pages) {
    if (pages.nodes.empty()) return;
    interleave_pages(w_.memory[0].bytes(), pages.nodes);
    for (LayerWeights& layer : w_.layers) {
      for (size_t e = 0; e < std::min(layer.moe.experts.size(), pages.expert_nodes.size()); ++e) {
        if (pages.expert_nodes[e] == kAnyNode) continue;
        for (const PackedWeight* w :
             {&layer.moe.experts[e].gate, &layer.moe.experts[e].up, &layer.moe.experts[e].down})
          bind_pages({w->data, static_cast<size_t>(w->bytes())}, pages.expert_nodes[e]);
      }
    }
  }

  std::byte* take(int64_t bytes) {
    std::byte* memory = w_.memory[0].data() + used_bytes_;
    used_bytes_ += round_up(bytes, kBufferAlignmentBytes);
    return memory;
  }
  // In place where it is mapped: such weights are only ever read.
  PackedWeight packed(WeightFormat format, int64_t n, int64_t k, const std::byte* mapped) {
    std::byte* memory = mapped != nullptr ? const_cast<std::byte*>(mapped)
                                          : take(packed_weight_bytes(format, n, k, plan_.isa));
    return make_packed_weight(format, n, k, memory, plan_.isa);
  }

  void cut_pieces() {
    cut(Piece::Kind::kEmbedding, 0, static_cast<int64_t>(plan_.embed_tokens->bytes.size()), 1, 1);
    for (size_t i = 0; i < plan_.linears.size(); ++i) {
      const LinearPlan& linear = plan_.linears[i];
      if (linear.panels) {
        cut(Piece::Kind::kLinear, i, static_cast<int64_t>(linear.weight->bytes.size()), 1, 1);
        continue;
      }
      // Whole blocks of 128 rows: what quantising to FP8 looks at together.
      cut(Piece::Kind::kLinear, i, linear.n, linear.source().row_bytes(), kScaleBlock);
    }
    for (size_t i = 0; i < plan_.kv_bs.size(); ++i) {
      if (plan_.kv_bs[i].panels) {
        cut(Piece::Kind::kKvB, i, static_cast<int64_t>(plan_.kv_bs[i].weight->bytes.size()), 1, 1);
        continue;
      }
      const int64_t head_bytes = (c_.qk_nope_head_dim + c_.v_head_dim) * plan_.kv_bs[i].source().row_bytes();
      cut(Piece::Kind::kKvB, i, c_.num_attention_heads, head_bytes, 1);
    }
    for (size_t i = 0; i < plan_.vectors.size(); ++i) {
      const TensorInfo& tensor = *plan_.vectors[i].tensor;
      cut(Piece::Kind::kVector, i, tensor.num_elements(), dtype_bytes(tensor.dtype), 1);
    }
  }
  void cut(Piece::Kind kind, size_t idx, int64_t count, int64_t unit_bytes, int64_t multiple) {
    const int64_t step = std::max(multiple, kPieceBytes / unit_bytes / multiple * multiple);
    for (int64_t begin = 0; begin < count; begin += step) {
      const int64_t end = std::min(begin + step, count);
      pieces_.push_back({kind, idx, begin, end, (end - begin) * unit_bytes});
    }
  }

  void load(Piece& piece) {
    switch (piece.kind) {
      case Piece::Kind::kLinear:
        return load_linear(piece);
      case Piece::Kind::kKvB:
        return load_kv_b(piece);
      case Piece::Kind::kVector:
        return load_vector(piece);
      case Piece::Kind::kEmbedding: {
        const auto source = part_of(*plan_.embed_tokens, piece.begin, piece.end);
        if (embed_tokens_ != nullptr) std::memcpy(embed_tokens_ + piece.begin, source.data(), source.size());
        return used_up(piece, *plan_.embed_tokens, source);
      }
    }
  }

  void load_linear(Piece& piece) {
    const LinearPlan& linear = plan_.linears[piece.idx];
    if (linear.panels) return load_panels(piece, *linear.weight, {{linear.target, 0}});
    const WeightSource source = linear.source();
    pack_rows(*linear.target, piece.begin, piece.end - piece.begin, source, piece.begin);
    used_up(piece, *linear.weight,
            part_of(*linear.weight, piece.begin * source.row_bytes(), piece.end * source.row_bytes()));
  }

  void load_kv_b(Piece& piece) {
    const KvBPlan& kv_b = plan_.kv_bs[piece.idx];
    if (kv_b.panels) return load_panels(piece, *kv_b.weight, kv_b_targets(kv_b));
    const WeightSource source = kv_b.source();
    for (int64_t head = piece.begin; head < piece.end; ++head) {
      const auto i = static_cast<size_t>(head);
      pack_kv_b_head({kv_b.target->w_uk[i], kv_b.target->w_uk_t[i], kv_b.target->w_uv[i]}, source, c_, head);
    }
    const int64_t head_bytes = (c_.qk_nope_head_dim + c_.v_head_dim) * source.row_bytes();
    used_up(piece, *kv_b.weight, part_of(*kv_b.weight, piece.begin * head_bytes, piece.end * head_bytes));
  }

  // Saved panels: their checksum, which also brings their pages in, and where they are not used in place, a
  // copy of them. A layout of its own is made whole with a tensor's first piece.
  struct PanelTarget {
    const PackedWeight* weight;
    int64_t begin;  // in the tensor
  };
  void load_panels(Piece& piece, const TensorInfo& tensor, const std::vector<PanelTarget>& targets) {
    const auto source = part_of(tensor, piece.begin, piece.end);
    piece.sample = piece_checksum(source);
    if (in_place_) return;
    for (const PanelTarget& target : targets) {
      const PackedWeight& w = *target.weight;
      if (!reads_panels(w.format, plan_.isa)) {
        if (piece.begin == 0) pack_from_panels(w, tensor.bytes.data() + target.begin);
        continue;
      }
      const int64_t begin = std::max(piece.begin, target.begin);
      const int64_t end = std::min(piece.end, target.begin + w.bytes());
      if (begin < end) {
        const auto part = part_of(tensor, begin, end);
        std::memcpy(w.data + (begin - target.begin), part.data(), part.size());
      }
    }
    // Kept where other pieces still read the whole tensor.
    if (reads_panels(targets.front().weight->format, plan_.isa)) SafeTensors::drop_pages(tensor, source);
  }

  std::vector<PanelTarget> kv_b_targets(const KvBPlan& kv_b) const {
    std::vector<PanelTarget> targets;
    const KvBHeadPanels sizes(c_, kv_b.format);
    int64_t begin = 0;
    for (size_t head = 0; head < kv_b.target->w_uk.size(); ++head) {
      targets.push_back({&kv_b.target->w_uk[head], begin});
      targets.push_back({&kv_b.target->w_uk_t[head], begin + sizes.w_uk_bytes});
      targets.push_back({&kv_b.target->w_uv[head], begin + sizes.w_uk_bytes + sizes.w_uk_t_bytes});
      begin += sizes.bytes();
    }
    return targets;
  }

  void load_vector(Piece& piece) {
    const TensorInfo& tensor = *plan_.vectors[piece.idx].tensor;
    const auto source =
        part_of(tensor, dtype_bytes(tensor.dtype, piece.begin), dtype_bytes(tensor.dtype, piece.end));
    to_f32(tensor.dtype, source.data(), piece.end - piece.begin, vectors_[piece.idx] + piece.begin);
    used_up(piece, tensor, source);
  }

  void used_up(Piece& piece, const TensorInfo& tensor, std::span<const std::byte> source) const {
    piece.sample = plan_.checksums.empty() ? sample_of(source) : piece_checksum(source);
    const bool stays = &tensor == plan_.embed_tokens && embed_tokens_ == nullptr;
    if (!stays) SafeTensors::drop_pages(tensor, source);
  }

  // Where the files state checksums, pieces are what those are made of, and a tensor's follow one another.
  Status check_sums() const {
    if (plan_.checksums.empty()) return {};
    for (size_t begin = 0; begin < pieces_.size();) {
      const TensorInfo* tensor = origin(pieces_[begin]).first;
      std::vector<uint64_t> sums;
      while (begin < pieces_.size() && origin(pieces_[begin]).first == tensor)
        sums.push_back(pieces_[begin++].sample);
      if (tensor_checksum(sums) != plan_.checksums.at(tensor)) {
        return make_status(StatusCode::kDataLoss,
                           "{}: {}: its bytes do not have the checksum they were saved with", tensor->file,
                           quoted_name(tensor->name));
      }
    }
    return {};
  }

  // The tensor and the format a piece's weights are held in.
  std::pair<const TensorInfo*, std::string_view> origin(const Piece& piece) const {
    switch (piece.kind) {
      case Piece::Kind::kLinear: {
        const LinearPlan& linear = plan_.linears[piece.idx];
        return {linear.weight, weight_format_name(linear.format)};
      }
      case Piece::Kind::kKvB: {
        const KvBPlan& kv_b = plan_.kv_bs[piece.idx];
        return {kv_b.weight, weight_format_name(kv_b.format)};
      }
      case Piece::Kind::kVector:
        return {plan_.vectors[piece.idx].tensor, "vector"};
      case Piece::Kind::kEmbedding:
        return {plan_.embed_tokens, "embedding"};
    }
    return {nullptr, ""};
  }

  std::string fingerprint() const {
    std::string text = fmt::format(
        "fathom model 1\n{} heads {} nope {} rope {} v {} latent {} experts {} of {} groups {} of {} {} {} "
        "{} {:a} eps {:a} "
        "scale {:a} factor {:a} ue8m0 {} freqs",
        architecture_name(c_.architecture), c_.num_attention_heads, c_.qk_nope_head_dim, c_.qk_rope_head_dim,
        c_.v_head_dim, c_.kv_lora_rank, c_.num_experts_per_tok, c_.n_routed_experts, c_.topk_group,
        c_.n_group, topk_method_name(c_.topk_method), scoring_func_name(c_.scoring_func), c_.norm_topk_prob,
        c_.routed_scaling_factor, c_.rms_norm_eps, attention_softmax_scale(c_), rope_attention_factor(c_),
        c_.scale_fmt_ue8m0);
    for (const double freq : rope_inv_freq(c_)) text += fmt::format(" {:a}", freq);
    for (const Piece& piece : pieces_) {
      const auto [tensor, format] = origin(piece);
      text += fmt::format("\n{} {} {} {:016x}", tensor->name, tensor->shape_text(), format, piece.sample);
    }
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
    std::string hex;
    for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
    return hex;
  }

  const ModelConfig& c_;
  WeightPlan& plan_;
  ModelWeights& w_;
  const bool in_place_;  // panels and embedding are used where they are mapped
  std::byte* embed_tokens_ = nullptr;
  std::vector<float*> vectors_;
  std::vector<Piece> pieces_;
  int64_t used_bytes_ = 0;
};

// Refuses what does not fit, and says which --weights would.
Status check_fits(const WeightPlan& plan, const SafeTensors& tensors, LoadOptions options) {
  MemoryDemand demand = *options.demand;
  demand.weights_bytes = plan.weights->bytes.total();
  const auto memory = plan_memory(demand, options.available);
  if (memory.ok()) return ok_status();
  for (const WeightFormat format : {WeightFormat::kFp8, WeightFormat::kInt8, WeightFormat::kInt4}) {
    options.weights = format;
    const auto smaller = plan_weights(plan.config, tensors, options);
    if (!smaller.ok()) continue;
    demand.weights_bytes = smaller->weights->bytes.total();
    if (!plan_memory(demand, options.available).ok()) continue;
    return Status(memory.status().code(),
                  fmt::format("{}; --weights {} would take {} for weights and fit", memory.status().message(),
                              weight_format_name(format), bytes_text(demand.weights_bytes)));
  }
  return memory.status();
}

}  // namespace

Result<ModelWeights> load_weights(WeightPlan plan, const LoadOptions& options, ThreadTeam& team) {
  RETURN_IF_ERROR(Loader(plan, options).run(options, team));
  return std::move(*plan.weights);
}

Result<std::optional<WeightFormat>> parse_weights_option(std::string_view text) {
  if (text == "native") return std::optional<WeightFormat>();
  const std::optional<WeightFormat> format = parse_weight_format(text);
  if (!format) {
    return invalid_argument("--weights: {} is not one of native, bf16, fp8, int8, int4", quoted_name(text));
  }
  return format;
}

Result<std::unique_ptr<Model>> Model::load(const ModelSource& source, const LoadOptions& options,
                                           ThreadTeam& team) {
  ASSIGN_OR_RETURN(ModelConfig config, load_model_config(source));
  ASSIGN_OR_RETURN(const SafeTensors tensors, SafeTensors::open(source));
  auto plan = plan_weights(config, tensors, options);
  if (!plan.ok()) return plan.status().with_context(source.label());
  if (options.demand) RETURN_IF_ERROR(check_fits(*plan, tensors, options).with_context(source.label()));
  auto weights = load_weights(std::move(plan).value(), options, team);
  if (!weights.ok()) return weights.status().with_context(source.label());
  return std::make_unique<Model>(std::move(config), std::move(weights).value());
}

}  // namespace fathom
