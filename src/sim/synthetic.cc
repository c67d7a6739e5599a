// Arrivals, lengths and shared blocks of made-up traces.
#include "sim/synthetic.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/check.h"
#include "sim/day_files.h"

namespace fathom::sim {
namespace {

constexpr int kKnotSeconds = 1800;  // a day's load is linear between its half hours
constexpr int kConversationDraws = 8;

class Arrivals {
 public:
  explicit Arrivals(const SyntheticOptions& options)
      : options_(options), mean_gap_us_(1e6 / options.requests_per_s), gaps_(exponential_table()) {
    if (options.shape == ArrivalShape::kBursty) {
      CHECK(options.arrival_cv2 > 1);
      const double spread = (options.arrival_cv2 - 1) / (options.arrival_cv2 + 1);
      short_share_ = (1 + std::sqrt(spread)) / 2;
    }
    if (options.shape == ArrivalShape::kDiurnal) {
      day_.emplace(options.day_load);
      for (int s = 0; s <= kDaySeconds; s += kKnotSeconds)
        peak_ = std::max(peak_, day_->share_per_s(s) * kDaySeconds);
    }
  }

  double next_us(Rng& rng) {
    if (burst_left_ > 0) {
      --burst_left_;
      return at_us_;
    }
    at_us_ = after(at_us_, rng);
    // A burst stands for burst_size single arrivals; the mean rate stays.
    if (rng.next_double() * options_.burst_size < options_.burst_share) {
      burst_left_ = options_.burst_size - 1;
      at_us_ += mean_gap_us_ * burst_left_;
    }
    return at_us_;
  }

 private:
  double after(double at_us, Rng& rng) const {
    switch (options_.shape) {
      case ArrivalShape::kConstant:
        return at_us + mean_gap_us_;
      case ArrivalShape::kPoisson:
        return at_us + gaps_.sample(rng) * mean_gap_us_;
      case ArrivalShape::kBursty: {
        const double share = rng.next_double() < short_share_ ? short_share_ : 1 - short_share_;
        return at_us + gaps_.sample(rng) * mean_gap_us_ / (2 * share);
      }
      case ArrivalShape::kDiurnal:
        // Arrivals at the peak's rate, each kept with its hour's share of it.
        do {
          at_us += gaps_.sample(rng) * mean_gap_us_ / peak_;
        } while (rng.next_double() * peak_ >= rate_at(at_us));
        return at_us;
    }
    CHECK_MSG(false, "no such shape");
  }

  double rate_at(double at_us) const {  // 1: the day's mean
    const double day = at_us / 1e6 / options_.day_seconds;
    return day_->share_per_s((day - std::floor(day)) * kDaySeconds) * kDaySeconds;
  }

  const SyntheticOptions& options_;
  const double mean_gap_us_;
  const QuantileTable gaps_;
  double short_share_ = 0.5;
  std::optional<DayLoad> day_;
  double peak_ = 0;
  double at_us_ = 0;
  int burst_left_ = 0;
};

// Prompts as chains of blocks.
class Prompts {
 public:
  explicit Prompts(const SyntheticOptions& options)
      : options_(options), conversations_(static_cast<size_t>(std::max(1, options.conversations))) {}

  void fill(const RequestShape& shape, Rng& rng, TraceRequest& r) {
    if (options_.hits == HitModel::kConversations) {
      in_conversation(shape, rng, r);
    } else {
      of_class(shape, rng, r);
    }
  }

 private:
  using Chain = std::vector<uint32_t>;

  void extend(Chain& chain, size_t blocks) {
    while (chain.size() < blocks) chain.push_back(next_block_++);
  }
  size_t blocks_of(int32_t tokens) const {
    return static_cast<size_t>((tokens + options_.block_tokens - 1) / options_.block_tokens);
  }
  size_t whole_blocks_of(int32_t tokens) const { return static_cast<size_t>(tokens / options_.block_tokens); }

  // The earlier prompt of a conversation, its answer and a new turn.
  void in_conversation(const RequestShape& shape, Rng& rng, TraceRequest& r) {
    Chain* conversation = nullptr;
    if (rng.next_double() < options_.shared_share) {
      conversation = &conversations_[rng.next_below(conversations_.size())];
      r.blocks = *conversation;
    }
    const auto kept = static_cast<int32_t>(r.blocks.size()) * options_.block_tokens;
    if (kept + shape.input_tokens > options_.lengths.input_tokens_max) r.blocks.clear();
    r.input_tokens = static_cast<int32_t>(r.blocks.size()) * options_.block_tokens + shape.input_tokens;
    extend(r.blocks, blocks_of(r.input_tokens));
    if (conversation != nullptr) {
      *conversation = r.blocks;
      conversation->resize(whole_blocks_of(r.input_tokens));
    }
  }

  // As many blocks as its class hits are of an earlier prompt that is long enough, or of the start that all
  // others have in common; the rest is new.
  void of_class(const RequestShape& shape, Rng& rng, TraceRequest& r) {
    const size_t hit = whole_blocks_of(shape.cached_tokens);
    Chain* conversation = &conversations_[rng.next_below(conversations_.size())];
    for (int i = 0; shape.continuation && conversation->size() < hit && i < kConversationDraws; ++i) {
      Chain& other = conversations_[rng.next_below(conversations_.size())];
      if (other.size() > conversation->size()) conversation = &other;
    }
    if (!shape.continuation) extend(common_, hit);
    const Chain& from = shape.continuation ? *conversation : common_;
    r.blocks.assign(from.begin(), from.begin() + static_cast<ptrdiff_t>(std::min(hit, from.size())));
    r.input_tokens = shape.input_tokens;
    extend(r.blocks, blocks_of(r.input_tokens));
    if (r.blocks.size() <= conversation->size()) return;
    *conversation = r.blocks;
    conversation->resize(whole_blocks_of(r.input_tokens));
  }

  const SyntheticOptions& options_;
  std::vector<Chain> conversations_;
  Chain common_;
  uint32_t next_block_ = 0;
};

}  // namespace

Result<ArrivalShape> parse_arrival_shape(std::string_view name) {
  constexpr std::string_view kNames[] = {"constant", "poisson", "bursty", "diurnal"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) return static_cast<ArrivalShape>(i);
  }
  return invalid_argument("--arrivals: \"{}\" is none of constant, poisson, bursty, diurnal", name);
}

Result<HitModel> parse_hit_model(std::string_view name) {
  if (name == "conversations") return HitModel::kConversations;
  if (name == "two-class") return HitModel::kTwoClass;
  return invalid_argument("--hits: \"{}\" is neither conversations nor two-class", name);
}

Trace synthetic_trace(const SyntheticOptions& options, uint64_t seed) {
  Trace trace{"synthetic", options.block_tokens, {}};
  const LengthModel lengths(options.lengths);
  Arrivals arrivals(options);
  Prompts prompts(options);
  Rng rng(seed);
  double at_us = 0;
  while (at_us < options.seconds * 1e6) {
    at_us = arrivals.next_us(rng);
    const RequestShape shape = lengths.sample(rng);
    TraceRequest r;
    r.arrival_us = static_cast<int64_t>(at_us);
    r.output_tokens = shape.output_tokens;
    prompts.fill(shape, rng, r);
    trace.requests.push_back(std::move(r));
  }
  return trace;
}

}  // namespace fathom::sim
