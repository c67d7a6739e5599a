// Forward groups as executors.
#include "engine/model_parts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/cpu.h"
#include "engine/engine.h"
#include "engine/expert_rebalancer.h"
#include "engine/memory_estimate.h"
#include "engine/rank_costs.h"
#include "model/forward.h"

namespace fathom {
namespace {

class ForwardExecutor final : public Executor {
 public:
  // `rebalance`: expert replicas go where tokens ask for them.
  ForwardExecutor(std::unique_ptr<ForwardGroup> group, bool rebalance) : group_(std::move(group)) {
    if (rebalance) rebalancer_.emplace(group_->placement());
  }
  int num_ranks() const override { return group_->num_ranks(); }
  Status step(std::span<const RankBatch> ranks, MatrixView<const float>* logits) override {
    RETURN_IF_ERROR(group_->step(ranks, logits));
    if (rebalancer_ && warm_) rebalancer_->after_step(group_->last_stats().expert_tokens);
    return {};
  }
  void request_stop() override { group_->request_stop(); }
  TimePoint last_progress() const override { return group_->last_progress(); }
  ExchangeStats last_exchange() const override { return group_->last_stats().exchange; }
  void warmed_up() override { warm_ = true; }
  int64_t layers_placed() const override { return rebalancer_ ? rebalancer_->num_replaced() : 0; }

 private:
  const std::unique_ptr<ForwardGroup> group_;
  std::optional<ExpertRebalancer> rebalancer_;
  bool warm_ = false;
};

Result<std::unique_ptr<Executor>> make_executor(const Model& model, KvStorage& storage,
                                                const ForwardOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<ForwardGroup> group, ForwardGroup::create(model, storage, options));
  const bool rebalance = options.num_ranks > 1 && options.redundant_experts > 0;
  return std::unique_ptr<Executor>(new ForwardExecutor(std::move(group), rebalance));
}

std::vector<RankCpus> rank_cpus(const EngineOptions& options, int32_t num_ranks) {
  return place_ranks(options.numa_nodes, num_ranks, std::max(1, options.threads / num_ranks));
}

}  // namespace

KvLayout kv_layout_of(const Model& model) {
  const ModelConfig& config = model.config();
  return {.num_layers = static_cast<int32_t>(config.num_hidden_layers),
          .latent_dim = static_cast<int32_t>(config.kv_lora_rank),
          .rope_dim = static_cast<int32_t>(config.qk_rope_head_dim),
          .dtype = model.weights().core_dtype};
}

Result<EngineParts> make_model_parts(const EngineOptions& options, const Model& model, const Clock& clock) {
  const KvLayout layout = kv_layout_of(model);
  const int64_t num_blocks = options.kv_memory_bytes / layout.block_bytes();
  const int32_t needed = blocks_for_tokens(options.max_context);
  if (num_blocks < needed) {
    return make_status(StatusCode::kResourceExhausted,
                       "--kv-memory: {} bytes hold {} blocks of {} bytes, one request of {} tokens needs {}",
                       options.kv_memory_bytes, num_blocks, layout.block_bytes(), options.max_context,
                       needed);
  }
  EngineParts parts;
  constexpr int64_t kManyBlocks = int64_t{1} << 30;
  parts.storage =
      std::make_unique<KvStorage>(layout, static_cast<int32_t>(std::min(num_blocks, kManyBlocks)));
  ForwardOptions forward{
      .phase = Phase::kPrefill,
      .num_ranks = options.prefill_ep,
      .redundant_experts = options.redundant_experts,
      .deterministic = options.deterministic,
      .threads = options.threads,
      .dispatch_format = options.dispatch_format,
      .max_tokens_per_rank = options.prefill_tokens_per_rank(),
      .max_logit_rows = options.max_running,
      .max_context = options.max_context,
      .expanded_bytes = expanded_bytes(options.kv_memory_bytes, model.weights().bytes.total()),
      .clock = &clock};
  const bool numa = options.numa_nodes.size() > 1;
  // Any rank's thread may read any block: the pool belongs to all of them.
  if (numa) interleave_pages(parts.storage->bytes(), options.numa_nodes);
  if (numa) forward.rank_cpus = rank_cpus(options, options.prefill_ep);
  ASSIGN_OR_RETURN(parts.prefill, make_executor(model, *parts.storage, forward));
  forward.phase = Phase::kDecode;
  forward.num_ranks = options.decode_ep;
  forward.max_tokens_per_rank = options.decode_slots_per_rank();
  if (numa) forward.rank_cpus = rank_cpus(options, options.decode_ep);
  ASSIGN_OR_RETURN(parts.decode, make_executor(model, *parts.storage, forward));
  parts.fingerprint = fmt::format("{}:{}:{}", model.weights().fingerprint, isa_name(active_isa()),
                                  options.deterministic ? "deterministic" : "fast");
  parts.vocab_size = static_cast<int32_t>(model.config().vocab_size);
  parts.costs = rank_costs_of(model.config(), options.deterministic);
  return parts;
}

WeightPages weight_pages(const EngineOptions& options, int64_t num_experts) {
  if (options.numa_nodes.size() < 2) return {};
  WeightPages pages{.nodes = options.numa_nodes};
  const std::vector<RankCpus> ranks = rank_cpus(options, options.decode_ep);
  const int64_t slots_per_rank = (num_experts + options.redundant_experts) / options.decode_ep;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    pages.expert_nodes.push_back(
        ranks[static_cast<size_t>(expert / std::max<int64_t>(1, slots_per_rank)) % ranks.size()].node);
  }
  return pages;
}

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options, const Model& model,
                                               const Clock& clock) {
  RETURN_IF_ERROR(options.validate());
  ASSIGN_OR_RETURN(EngineParts parts, make_model_parts(options, model, clock));
  return create(options, std::move(parts), clock);
}

}  // namespace fathom
