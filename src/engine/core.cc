// One round of the engine: what to do comes from plan.h and arbiter.h, here it is done.
#include "engine/core.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace fathom {
namespace {

// Books: the cache's, then one account per prefill rank, then one per decode rank.
constexpr int32_t kFirstPrefillAccount = 1;

int32_t first_decode_account(const EngineParts& parts) {
  return kFirstPrefillAccount + parts.prefill->num_ranks();
}

int32_t num_accounts(const EngineParts& parts) {
  return first_decode_account(parts) + parts.decode->num_ranks();
}

}  // namespace

EngineCore::EngineCore(const EngineOptions& options, EngineParts parts, const Clock& clock,
                       StepObserver* observer)
    : options_(options),
      clock_(clock),
      observer_(observer),
      parts_(std::move(parts)),
      cache_(parts_.storage->num_blocks(), num_accounts(parts_), parts_.fingerprint,
             parts_.storage->layout().to_string()),
      prefill_(*parts_.prefill, cache_, kFirstPrefillAccount, parts_.costs.prefill),
      decode_(*parts_.decode, cache_, first_decode_account(parts_),
              make_decode_choice({parts_.decode->num_ranks(), options.decode_slots_per_rank(),
                                  parts_.costs.request_kv_tokens})),
      link_(prefill_, decode_),
      sampling_team_(ThreadTeamOptions{.num_threads = options.threads, .spin_iterations = 0}),
      sampling_work_(static_cast<size_t>(options.threads)) {
  CHECK(blocks_for_tokens(options.max_context) <= cache_.num_total());
  stats_.last_progress = clock_.now();
}

void EngineCore::add(RequestId id, GenerationRequest request, std::shared_ptr<GenerationListener> listener,
                     TimePoint submitted) {
  ++stats_.requests_submitted;
  const auto prompt_tokens = static_cast<int32_t>(request.prompt.size());
  CHECK(prompt_tokens > 0 && prompt_tokens < options_.max_context && request.max_new_tokens > 0);
  request.max_new_tokens = std::min(request.max_new_tokens, options_.max_context - prompt_tokens);
  KeyChain keys = cache_.key_chain(request.tenant);
  auto sequence = std::make_unique<Sequence>(id, std::move(request), std::move(listener), std::move(keys));
  sequence->submitted = submitted;
  sequence->last_moved = submitted;
  sequences_.push_back(std::move(sequence));
}

void EngineCore::cancel(RequestId id) {
  for (const auto& sequence : sequences_) {
    if (sequence->id == id) return finish(*sequence, FinishReason::kCancelled);
  }
}

void EngineCore::finish_all(FinishReason reason, const Status& status) {
  while (!sequences_.empty()) finish(*sequences_.back(), reason, status);
}

bool EngineCore::run_once() {
  sweep();
  accept_offers();
  admit();
  const StepKind kind = step();
  if (!stats_.failing) stats_.last_progress = clock_.now();
  return kind != StepKind::kNone;
}

void EngineCore::sweep() {
  const TimePoint now = clock_.now();
  if (now < next_sweep_) return;
  next_sweep_ = now + from_seconds(options_.sweep_seconds);
  std::vector<Sequence*> all;
  for (const auto& sequence : sequences_) all.push_back(sequence.get());
  for (Sequence* s : all) {
    if (s->deadline && *s->deadline <= now) {
      finish(*s, FinishReason::kDeadline,
             Status(StatusCode::kDeadlineExceeded, "the request's deadline has passed"));
    } else if (now - s->last_moved >= from_seconds(options_.queue_seconds_max)) {
      // Waiting to start, or for its next turn: other requests' progress is none of its own.
      finish(*s, FinishReason::kInsufficientResources,
             make_status(StatusCode::kUnavailable, "the request waited {} s {}", options_.queue_seconds_max,
                         s->started ? "for its next step" : "without being started"));
    } else if (s->stage == SequenceStage::kHandover && s->lease_end <= now) {
      ++stats_.handovers_expired;
      link_.expire(*s);
      queue_again(*s);
    }
  }
}

void EngineCore::accept_offers() {
  for (Sequence* s : in_stage(SequenceStage::kHandover)) {
    if (!link_.try_accept(*s)) return;
    ++stats_.handovers;
  }
}

void EngineCore::admit() {
  int32_t num_running = 0;
  for (const auto& s : sequences_) num_running += s->stage != SequenceStage::kQueued ? 1 : 0;
  if (num_running == static_cast<int32_t>(sequences_.size()) || num_running >= options_.max_running) return;
  const TimePoint now = clock_.now();
  for (const int32_t index : plan_admission(snapshot(true))) {
    Sequence& s = *sequences_[static_cast<size_t>(index)];
    prefill_.start(s);
    if (s.started) continue;
    s.started = true;
    stats_.queue_wait.observe(to_seconds(now - s.submitted));
    s.listener->on_prefill(s.hit_tokens);
  }
}

StepKind EngineCore::step() {
  const bool can_prefill = !in_stage(SequenceStage::kPrefill).empty();
  const bool can_decode = !in_stage(SequenceStage::kDecode).empty();
  StepKind kind = choose_step(can_prefill, can_decode, last_step_);
  // Prefill may have to wait for memory that decoding sequences will free.
  if (kind == StepKind::kPrefill && !prefill_step()) kind = StepKind::kDecode;
  if (kind == StepKind::kDecode && !decode_step()) kind = StepKind::kNone;
  last_step_ = kind;
  return kind;
}

std::vector<StepShare> EngineCore::plan_prefill_shares() {
  for (;;) {
    prefill_.follow_neighbours(in_stage(SequenceStage::kPrefill));
    PlanSnapshot now = snapshot();
    const bool decoding = !in_stage(SequenceStage::kDecode).empty();
    now.rank_chunk_tokens = choose_chunk_tokens(options_, costs_, decoding, prefill_.num_busy_ranks());
    const PrefillPlan plan = plan_prefill(now);
    if (plan.retract != kNoSequence) {
      retract(*sequences_[static_cast<size_t>(plan.retract)]);
      continue;
    }
    std::vector<StepShare> shares;
    for (const PlannedChunk& chunk : plan.chunks) {
      shares.push_back({sequences_[static_cast<size_t>(chunk.sequence)].get(), chunk.num_tokens});
    }
    return shares;
  }
}

std::vector<StepShare> EngineCore::plan_decode_shares() {
  for (;;) {
    const DecodePlan plan = plan_decode(snapshot());
    if (plan.retract != kNoSequence) {
      retract(*sequences_[static_cast<size_t>(plan.retract)]);
      continue;
    }
    std::vector<StepShare> shares;
    for (const int32_t index : plan.sequences)
      shares.push_back({sequences_[static_cast<size_t>(index)].get(), 1});
    return shares;
  }
}

Status EngineCore::run_timed(StepKind kind, std::span<StepShare> shares) {
  const bool is_prefill = kind == StepKind::kPrefill;
  if (observer_ != nullptr) {
    std::vector<RequestId> requests;
    int64_t num_tokens = 0;
    for (const StepShare& share : shares) {
      requests.push_back(share.sequence->id);
      num_tokens += share.num_tokens;
    }
    const double expected = is_prefill ? costs_.prefill_seconds(num_tokens) : costs_.decode_seconds();
    observer_->on_step_begin(is_prefill ? *parts_.prefill : *parts_.decode, requests, from_seconds(expected));
  }
  const TimePoint begin = clock_.now();
  const Status status = is_prefill ? prefill_.run(shares) : decode_.run(shares);
  const double seconds = to_seconds(clock_.now() - begin);
  if (observer_ != nullptr) observer_->on_step_end();
  // A step that was stopped says nothing of its group, and one group's success nothing of the other.
  if (status.code() != StatusCode::kCancelled)
    (is_prefill ? prefill_failing_ : decode_failing_) = !status.ok();
  stats_.failing = prefill_failing_ || decode_failing_;
  stats_.failed_steps += !status.ok() && status.code() != StatusCode::kCancelled ? 1 : 0;
  if (!status.ok()) return status;
  stats_.expert_layers_placed = parts_.prefill->layers_placed() + parts_.decode->layers_placed();

  int64_t num_tokens = 0;
  for (const StepShare& share : shares) {
    num_tokens += share.num_tokens;
    share.sequence->last_moved = begin + from_seconds(seconds);
  }
  if (is_prefill) {
    ++stats_.prefill_steps;
    stats_.prefill_tokens += num_tokens;
    stats_.prefill_seconds += seconds;
    stats_.prefill_exchange += parts_.prefill->last_exchange();
    costs_.observe_prefill(num_tokens, seconds);
  } else {
    ++stats_.decode_steps;
    stats_.decode_seconds += seconds;
    stats_.decode_exchange += parts_.decode->last_exchange();
    costs_.observe_decode(seconds);
    growth_.on_decode_step();
  }
  return status;
}

bool EngineCore::prefill_step() {
  std::vector<StepShare> shares = plan_prefill_shares();
  if (shares.empty()) return false;
  const Status status = run_timed(StepKind::kPrefill, shares);
  if (status.code() == StatusCode::kCancelled) return true;  // stopped for a cancel; the rest is done again
  if (!status.ok()) {
    for (const StepShare& share : shares) finish(*share.sequence, FinishReason::kError, status);
    return true;
  }
  sample_and_deliver(shares);
  return true;
}

bool EngineCore::decode_step() {
  std::vector<StepShare> shares = plan_decode_shares();
  if (shares.empty()) return false;
  const Status status = run_timed(StepKind::kDecode, shares);
  if (status.code() == StatusCode::kCancelled) return true;
  if (!status.ok()) {
    for (const StepShare& share : shares) finish(*share.sequence, FinishReason::kError, status);
    return true;
  }
  sample_and_deliver(shares);
  return true;
}

void EngineCore::sample_and_deliver(std::span<StepShare> shares) {
  std::vector<std::optional<Result<SampledToken>>> sampled(shares.size());
  sampling_team_.run(static_cast<int64_t>(shares.size()), [&](int64_t i, int thread) {
    const StepShare& share = shares[static_cast<size_t>(i)];
    if (share.logits.empty()) return;
    const Sequence& s = *share.sequence;
    sampled[static_cast<size_t>(i)] =
        s.sampler.sample(share.logits, s.num_tokens(), sampling_work_[static_cast<size_t>(thread)]);
  });
  for (size_t i = 0; i < shares.size(); ++i) {
    if (!sampled[i]) continue;
    Sequence& s = *shares[i].sequence;
    if (!sampled[i]->ok()) {
      finish(s, FinishReason::kError, sampled[i]->status());
    } else {
      deliver(s, std::move(*sampled[i]).value());
    }
  }
}

void EngineCore::deliver(Sequence& s, SampledToken sampled) {
  const TimePoint now = clock_.now();
  if (s.num_generated() == 0) {
    stats_.ttft.observe(to_seconds(now - s.submitted));
    report_prompt(s);
  } else {
    stats_.itl.observe(to_seconds(now - s.last_token));
  }
  s.last_token = now;
  ++stats_.generated_tokens;
  s.tokens.push_back(sampled.token);
  s.sampler.record(sampled.token);
  const TokenEvent event{.token = sampled.token, .logprobs = std::move(sampled.logprobs)};
  s.listener->on_tokens(std::span(&event, 1));

  const auto is_in = [&](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), event.token) != ids.end();
  };
  if (is_in(s.stop_token_ids) || (!s.ignore_eos && is_in(options_.eos_token_ids))) {
    return finish(s, FinishReason::kStop);
  }
  if (s.num_generated() >= s.max_new_tokens) return finish(s, FinishReason::kLength);
  if (s.stage != SequenceStage::kPrefill) return;
  link_.offer(s, now + from_seconds(options_.handover_lease_seconds));
  if (link_.try_accept(s)) ++stats_.handovers;
}

PlanSnapshot EngineCore::snapshot(bool for_admission) const {
  PlanSnapshot snapshot{.blocks_available = cache_.num_available(),
                        .num_prefill_ranks = prefill_.num_ranks(),
                        .max_running = options_.max_running,
                        .growth_fraction = growth_.fraction()};
  // Looking up shared prefixes is only worth it for those who may start now.
  constexpr int kQueuedLookedUp = 16;
  int num_looked_up = 0;
  snapshot.sequences.reserve(sequences_.size());
  for (const auto& s : sequences_) {
    int32_t num_blocks = s->num_blocks();
    if (for_admission && s->stage == SequenceStage::kQueued && num_looked_up++ < kQueuedLookedUp) {
      num_blocks = cache_.peek_used(s->keys, (s->num_tokens() - 1) / kBlockTokens);
    }
    snapshot.sequences.push_back({.stage = s->stage,
                                  .rank = s->rank,
                                  .num_tokens = s->num_tokens(),
                                  .num_stored = s->num_stored,
                                  .num_blocks = num_blocks,
                                  .max_growth = s->max_new_tokens - s->num_generated(),
                                  .waits = s->waits});
  }
  return snapshot;
}

std::vector<Sequence*> EngineCore::in_stage(SequenceStage stage) const {
  std::vector<Sequence*> found;
  for (const auto& s : sequences_) {
    if (s->stage == stage) found.push_back(s.get());
  }
  return found;
}

void EngineCore::retract(Sequence& s) {
  ++stats_.retractions;
  growth_.on_retraction();
  let_go(s);
  queue_again(s);
}

// What it published may still be there when it comes back; the rest is computed again from its tokens.
void EngineCore::queue_again(Sequence& s) {
  CHECK(s.blocks.empty());
  s.stage = SequenceStage::kQueued;
  s.num_stored = 0;
  s.waits = false;
  s.keys.extend(s.tokens);
}

void EngineCore::let_go(Sequence& s) {
  switch (s.stage) {
    case SequenceStage::kQueued:
      break;
    case SequenceStage::kPrefill:
      prefill_.release(s);
      break;
    case SequenceStage::kHandover:
    case SequenceStage::kDecode:
      link_.abort(s);
      break;
  }
}

void EngineCore::report_prompt(Sequence& s) {
  if (!s.started || s.reported) return;
  s.reported = true;
  stats_.hit_tokens += s.hit_tokens;
  stats_.miss_tokens += s.num_prompt - s.hit_tokens;
}

void EngineCore::finish(Sequence& s, FinishReason reason, const Status& status) {
  const bool decoded =
      s.stage == SequenceStage::kDecode && (reason == FinishReason::kStop || reason == FinishReason::kLength);
  if (decoded) {
    link_.decode_ended(s);
  } else {
    let_go(s);
  }
  report_prompt(s);
  ++stats_.requests_finished[static_cast<size_t>(reason)];
  stats_.request.observe(to_seconds(clock_.now() - s.submitted));
  const FinishInfo info{.reason = reason,
                        .status = status,
                        .prompt_tokens = s.num_prompt,
                        .hit_tokens = s.hit_tokens,
                        .completion_tokens = s.num_generated()};
  const std::shared_ptr<GenerationListener> listener = s.listener;
  std::erase_if(sequences_, [&](const auto& other) { return other.get() == &s; });
  listener->on_finished(info);
}

TimePoint EngineCore::step_progress() const {
  return std::max(parts_.prefill->last_progress(), parts_.decode->last_progress());
}

EngineStats EngineCore::stats() const {
  EngineStats stats = stats_;
  for (const auto& s : sequences_) {
    switch (s->stage) {
      case SequenceStage::kQueued:
        ++stats.num_queued;
        break;
      case SequenceStage::kPrefill:
        ++stats.num_prefilling;
        break;
      case SequenceStage::kHandover:
      case SequenceStage::kDecode:
        ++stats.num_decoding;
        break;
    }
  }
  stats.kv_blocks_total = cache_.num_total();
  stats.kv_blocks_free = cache_.num_free();
  stats.kv_blocks_cached = cache_.num_cached_unused();
  stats.evicted_blocks = cache_.num_evicted();
  return stats;
}

Status EngineCore::check_books() const {
  RETURN_IF_ERROR(cache_.check());
  int64_t held = 0;
  for (const auto& s : sequences_) held += s->num_blocks() + static_cast<int64_t>(s->decode_blocks.size());
  int64_t booked = 0;
  for (int32_t account = kFirstPrefillAccount; account < num_accounts(parts_); ++account) {
    booked += cache_.references_of(KvAccount{account});
  }
  if (held != booked) {
    return make_status(StatusCode::kInternal, "sequences_hold_what_is_booked: {} held, {} booked", held,
                       booked);
  }
  return ok_status();
}

Status EngineCore::warm_up() {
  for (int pass = 0; pass < 2; ++pass) {
    costs_ = StepCosts();  // the first pass pays for first touches; only the second says what steps cost
    RETURN_IF_ERROR(warm_up_engine(StepKind::kPrefill));
    RETURN_IF_ERROR(warm_up_engine(StepKind::kDecode));
  }
  parts_.prefill->warmed_up();
  parts_.decode->warmed_up();
  return ok_status();
}

Status EngineCore::warm_up_engine(StepKind kind) {
  const bool is_prefill = kind == StepKind::kPrefill;
  Executor& executor = is_prefill ? *parts_.prefill : *parts_.decode;
  const auto num_tokens = static_cast<size_t>(is_prefill ? kBlockTokens : 1);
  std::vector<int32_t> tokens(num_tokens);
  for (size_t i = 0; i < num_tokens; ++i) {
    tokens[i] = static_cast<int32_t>((i * 97) % static_cast<size_t>(parts_.vocab_size));
  }
  constexpr KvAccount kBooks{kFirstPrefillAccount};
  std::vector<BlockId> blocks;
  const int32_t num_active = std::min(executor.num_ranks(), cache_.num_available());
  CHECK(cache_.reserve(num_active, kBooks, blocks));
  std::vector<RankBatch> batches(static_cast<size_t>(executor.num_ranks()));
  for (size_t rank = 0; rank < blocks.size(); ++rank) {
    batches[rank].chunks.push_back(
        {.tokens = tokens, .start = 0, .blocks = std::span(&blocks[rank], 1), .want_logits = rank == 0});
  }
  const TimePoint begin = clock_.now();
  MatrixView<const float> logits;
  const Status status = executor.step(batches, &logits);
  const double seconds = to_seconds(clock_.now() - begin);
  cache_.release(kBooks, blocks);
  RETURN_IF_ERROR(status.with_context("warm-up"));
  for (int64_t row = 0; row < logits.rows; ++row) {
    const std::span<const float> values = logits.row_span(row);
    if (std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) continue;
    return Status(StatusCode::kDataLoss,
                  "warm-up: the model's logits hold NaN or infinity, so its weights are damaged");
  }
  if (is_prefill) {
    costs_.observe_prefill(static_cast<int64_t>(num_tokens) * num_active, seconds);
  } else {
    costs_.observe_decode(seconds);
  }
  return ok_status();
}

}  // namespace fathom
