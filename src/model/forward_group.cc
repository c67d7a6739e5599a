// The ForwardGroup of one process: ranks over the in-process transport, checked batches, added-up statistics.
#include "base/check.h"
#include "base/thread_team.h"
#include "model/forward.h"
#include "model/rank_forward.h"
#include "transport/inproc.h"

namespace fathom {
namespace {

// Ranks are not tied to threads: whichever thread runs one moves to where the rank's own threads are.
void keep_on(const std::vector<int>& cpus) {
  thread_local std::vector<int> here;
  if (here == cpus) return;
  run_on_cpus(cpus);
  here = cpus;
}

// Runs the ranks in this process, each on a thread of its own (the caller's is one of them), asleep between
// steps.
class InprocForwardGroup final : public ForwardGroup {
 public:
  InprocForwardGroup(const Model& model, KvStorage& storage, const ForwardOptions& options,
                     const PlacementShape& placement_shape, ActFormat dispatch_format,
                     std::unique_ptr<InprocGroup> transport)
      : model_(model),
        options_(options),
        placement_(placement_shape),
        transport_(std::move(transport)),
        logits_(options.max_logit_rows * model.config().vocab_size * sizeof(float)),
        ranks_team_({.num_threads = options.num_ranks, .spin_iterations = 0}) {
    const RankSetup setup{.model = model_,
                          .storage = storage,
                          .options = options_,
                          .placement_shape = placement_shape,
                          .dispatch_format = dispatch_format,
                          .threads = std::max(1, options.threads / options.num_ranks),
                          .max_context = options.max_context,
                          .stop = stop_,
                          .last_progress = last_progress_};
    for (int rank = 0; rank < options_.num_ranks; ++rank) {
      endpoints_.push_back(transport_->endpoint(rank));
      const PreferNode near(options_.rank_cpus.empty() ? kAnyNode : options_.rank_cpus[rank].node);
      ranks_.push_back(std::make_unique<RankForward>(setup, *endpoints_.back()));
    }
    rank_logits_.resize(options_.num_ranks);
    statuses_.resize(options_.num_ranks);
    stats_.expert_tokens.resize(ranks_[0]->stats().expert_tokens.size());
  }

  int num_ranks() const override { return options_.num_ranks; }
  const StepStats& last_stats() const override { return stats_; }
  PlacementTable& placement() override { return placement_; }
  void request_stop() override { stop_.store(true, std::memory_order_relaxed); }
  TimePoint last_progress() const override { return last_progress_.load(std::memory_order_relaxed); }

  Status step(std::span<const RankBatch> ranks, MatrixView<const float>* logits) override {
    RETURN_IF_ERROR(failure_);
    RETURN_IF_ERROR(check_batches(ranks));
    batches_ = ranks;
    placement_.update(snapshot_);
    choose_overlap();
    assign_logits();
    // Ranks wait for one another, and as many threads as ranks take one each.
    ranks_team_.run(options_.num_ranks, [this](int64_t rank, int) { run_rank(static_cast<int>(rank)); });
    stop_.store(false,
                std::memory_order_relaxed);  // not before: a stop may come before the step for which it is
    *logits = {logits_.as<float>(), num_logit_rows_, model_.config().vocab_size};
    add_up_stats();
    return outcome();
  }

 private:
  Status check_batches(std::span<const RankBatch> ranks) const;
  Status check_chunk(int rank, size_t i, const SequenceChunk& chunk) const;
  void choose_overlap();
  void assign_logits();
  void run_rank(int rank);
  Status outcome();
  void add_up_stats();

  const Model& model_;
  const ForwardOptions options_;
  PlacementTable placement_;
  std::unique_ptr<InprocGroup> transport_;
  std::atomic<bool> stop_{false};
  std::atomic<TimePoint> last_progress_{};
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::vector<std::unique_ptr<RankForward>> ranks_;
  AlignedBuffer logits_;

  // The step in progress: written by step() while all ranks sleep.
  std::span<const RankBatch> batches_;
  PlacementSnapshot snapshot_;
  std::vector<MatrixView<float>> rank_logits_;
  std::vector<Status> statuses_;  // [ranks] each written by its rank
  int64_t num_logit_rows_ = 0;
  StepStats stats_;
  Status failure_;  // once set, the group answers nothing else

  ThreadTeam ranks_team_;
};

Status InprocForwardGroup::check_batches(std::span<const RankBatch> ranks) const {
  if (static_cast<int>(ranks.size()) != options_.num_ranks) {
    return invalid_argument("step: {} batches for {} ranks", ranks.size(), options_.num_ranks);
  }
  int64_t logit_rows = 0;
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    if (ranks[rank].num_tokens() > options_.max_tokens_per_rank) {
      return invalid_argument("step: rank {} has {} tokens, the limit is {}", rank, ranks[rank].num_tokens(),
                              options_.max_tokens_per_rank);
    }
    for (size_t i = 0; i < ranks[rank].chunks.size(); ++i)
      RETURN_IF_ERROR(check_chunk(rank, i, ranks[rank].chunks[i]));
    logit_rows += ranks[rank].num_logit_rows();
  }
  if (logit_rows > options_.max_logit_rows) {
    return invalid_argument("step: {} rows of logits, the limit is {}", logit_rows, options_.max_logit_rows);
  }
  return {};
}

Status InprocForwardGroup::check_chunk(int rank, size_t i, const SequenceChunk& chunk) const {
  const int64_t context = chunk.start + static_cast<int64_t>(chunk.tokens.size());
  if (chunk.tokens.empty() || chunk.start < 0 || context > options_.max_context) {
    return invalid_argument("step: rank {}, chunk {}: {} tokens after {}; a sequence has 1 to {}", rank, i,
                            chunk.tokens.size(), chunk.start, options_.max_context);
  }
  if (static_cast<int64_t>(chunk.blocks.size()) * kBlockTokens < context) {
    return invalid_argument("step: rank {}, chunk {}: {} blocks for {} tokens", rank, i, chunk.blocks.size(),
                            context);
  }
  for (int32_t token : chunk.tokens) {
    if (token < 0 || token >= model_.config().vocab_size) {
      return invalid_argument("step: rank {}, chunk {}: token {} is not in a vocabulary of {}", rank, i,
                              token, model_.config().vocab_size);
    }
  }
  return {};
}

void InprocForwardGroup::choose_overlap() {
  int64_t tokens = 0;
  for (const RankBatch& batch : batches_) tokens += batch.num_tokens();
  stats_.overlapped =
      options_.overlap_min_tokens.has_value() && tokens >= *options_.overlap_min_tokens * options_.num_ranks;
}

void InprocForwardGroup::assign_logits() {
  const int64_t vocab = model_.config().vocab_size;
  num_logit_rows_ = 0;
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    const int64_t rows = batches_[rank].num_logit_rows();
    rank_logits_[rank] = {logits_.as<float>() + num_logit_rows_ * vocab, rows, vocab};
    num_logit_rows_ += rows;
  }
}

void InprocForwardGroup::run_rank(int rank) {
  if (!options_.rank_cpus.empty()) keep_on(options_.rank_cpus[rank].cpus);
  statuses_[rank] = ranks_[rank]->step(batches_[rank], snapshot_, stats_.overlapped, rank_logits_[rank]);
  const StatusCode code = statuses_[rank].code();
  // The others must not wait for a rank that has failed until their deadline.
  if (code != StatusCode::kOk && code != StatusCode::kCancelled) transport_->abort(statuses_[rank].message());
}

Status InprocForwardGroup::outcome() {
  Status cancelled, failed;
  for (const Status& status : statuses_) {
    if (status.code() == StatusCode::kCancelled) {
      cancelled = status;
    } else if (!status.ok() && (failed.ok() || failed.code() == StatusCode::kUnavailable)) {
      failed = status;  // kUnavailable only passes on that another rank has failed
    }
  }
  if (failed.ok()) return cancelled;
  failure_ = Status(StatusCode::kFailedPrecondition, "the group has failed: " + failed.message());
  return failed;
}

void InprocForwardGroup::add_up_stats() {
  stats_.tokens = 0;
  stats_.exchange = {};
  std::fill(stats_.expert_tokens.begin(), stats_.expert_tokens.end(), 0);
  std::fill(std::begin(stats_.stage_time), std::end(stats_.stage_time), Duration{});
  stats_.exposed_communication = {};
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    const RankStats& from = ranks_[rank]->stats();
    stats_.tokens += batches_[rank].num_tokens();
    stats_.exchange += from.exchange;
    for (size_t i = 0; i < from.expert_tokens.size(); ++i) stats_.expert_tokens[i] += from.expert_tokens[i];
    stats_.exposed_communication = std::max(stats_.exposed_communication, from.exposed_communication);
    for (int i = 0; i < kNumStages; ++i)
      stats_.stage_time[i] = std::max(stats_.stage_time[i], from.stage_time[i]);
  }
}

// The options with everything that follows from model and storage filled in.
Result<ForwardOptions> complete_options(const Model& model, const KvStorage& storage,
                                        ForwardOptions options) {
  if (options.threads < 1 || options.max_tokens_per_rank < 1 || options.max_logit_rows < 1 ||
      options.max_context < 0) {
    return invalid_argument(
        "forward group: {} threads, {} tokens per rank, {} rows of logits, context {}: too small",
        options.threads, options.max_tokens_per_rank, options.max_logit_rows, options.max_context);
  }
  if (!options.rank_cpus.empty() && static_cast<int>(options.rank_cpus.size()) != options.num_ranks) {
    return invalid_argument("forward group: processors for {} ranks, there are {}", options.rank_cpus.size(),
                            options.num_ranks);
  }
  const ModelConfig& config = model.config();
  const KvLayout want{.num_layers = static_cast<int32_t>(config.num_hidden_layers),
                      .latent_dim = static_cast<int32_t>(config.kv_lora_rank),
                      .rope_dim = static_cast<int32_t>(config.qk_rope_head_dim),
                      .dtype = model.weights().core_dtype};
  if (storage.layout() != want) {
    return invalid_argument("forward group: the KV storage is {}, the model needs {}",
                            storage.layout().to_string(), want.to_string());
  }
  const int64_t storage_tokens = int64_t{storage.num_blocks()} * kBlockTokens;
  if (options.max_context == 0 || options.max_context > storage_tokens) options.max_context = storage_tokens;
  return options;
}

}  // namespace

Result<std::unique_ptr<ForwardGroup>> ForwardGroup::create(const Model& model, KvStorage& storage,
                                                           const ForwardOptions& options) {
  ASSIGN_OR_RETURN(const ForwardOptions complete, complete_options(model, storage, options));
  const ModelConfig& config = model.config();
  const PlacementShape placement{.num_layers = static_cast<int>(config.num_moe_layers()),
                                 .num_experts = std::max(1, static_cast<int>(config.n_routed_experts)),
                                 .num_redundant = options.redundant_experts,
                                 .num_ranks = options.num_ranks};
  RETURN_IF_ERROR(placement.validate());
  const ActFormat native = model.weights().ffn_act;
  const ActFormat dispatch_format = options.dispatch_format.value_or(native);
  if (dispatch_format != native && dispatch_format != ActFormat::kFp8) {
    return invalid_argument("dispatch carries {} here, or fp8; not {}", act_format_name(native),
                            act_format_name(dispatch_format));
  }
  ASSIGN_OR_RETURN(auto transport, InprocGroup::create({.num_ranks = options.num_ranks,
                                                        .timeout = options.peer_timeout,
                                                        .spin_iterations = options.num_ranks == 1 ? 1 : 0}));
  return std::unique_ptr<ForwardGroup>(std::make_unique<InprocForwardGroup>(
      model, storage, complete, placement, dispatch_format, std::move(transport)));
}

}  // namespace fathom
