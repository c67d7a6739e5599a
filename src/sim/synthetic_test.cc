// Made-up traces: rate, spread and sharing are those asked for, whatever the seed.
#include "sim/synthetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <unordered_set>

#include "sim/day_files.h"
#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

TEST(Synthetic, IsSeededAndShares) {
  SyntheticOptions options;
  options.seconds = 60;
  const Trace a = synthetic_trace(options, 1);
  const Trace b = synthetic_trace(options, 1);
  ASSERT_EQ(a.requests.size(), b.requests.size());
  EXPECT_EQ(a.requests.back().arrival_us, b.requests.back().arrival_us);
  EXPECT_NEAR(static_cast<double>(a.requests.size()), 1200, 150);
  EXPECT_GT(trace_stats(a).hit_share_bound, 0.2);
  options.shared_share = 0;
  EXPECT_EQ(trace_stats(synthetic_trace(options, 1)).hit_share_bound, 0);
}

// Short prompts, so that a trace of many requests is cheap.
SyntheticOptions many(ArrivalShape shape) {
  SyntheticOptions options;
  options.shape = shape;
  options.seconds = 1000;
  options.lengths.input_mean_tokens = 200;
  options.lengths.output_mean_tokens = 10;
  options.shared_share = 0;
  return options;
}

struct Gaps {
  double rate_per_s = 0, cv2 = 0;
};
Gaps gaps_of(const Trace& trace) {
  double sum = 0, squares = 0;
  int64_t last = 0;
  for (const TraceRequest& r : trace.requests) {
    const double gap = static_cast<double>(r.arrival_us - last) / 1e6;
    sum += gap, squares += gap * gap;
    last = r.arrival_us;
  }
  const auto n = static_cast<double>(trace.requests.size());
  return {n / sum, squares * n / (sum * sum) - 1};
}

// The mean of n gaps has a relative deviation of sqrt(cv2 / n); five of them are allowed. The spread of a
// hyperexponential's cv2 is wider: with 20,000 gaps of cv2 8 it is 8 %.
TEST(Synthetic, GapsHaveTheRateAndTheSpreadAskedFor) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    Rng rng(seed);
    for (const ArrivalShape shape :
         {ArrivalShape::kConstant, ArrivalShape::kPoisson, ArrivalShape::kBursty}) {
      SyntheticOptions options = many(shape);
      options.requests_per_s = 20 + static_cast<double>(rng.next_below(30));
      options.arrival_cv2 = 2 + static_cast<double>(rng.next_below(7));
      const Gaps gaps = gaps_of(synthetic_trace(options, seed));
      const double cv2 = shape == ArrivalShape::kConstant  ? 0
                         : shape == ArrivalShape::kPoisson ? 1
                                                           : options.arrival_cv2;
      const double n = options.seconds * options.requests_per_s;
      EXPECT_NEAR(gaps.rate_per_s / options.requests_per_s, 1, 5 * std::sqrt(cv2 / n) + 1e-3) << seed;
      EXPECT_NEAR(gaps.cv2, cv2, 0.3 * cv2 + 1e-3) << seed;
    }
  }
}

TEST(Synthetic, TheDiurnalCurveIsTheFiles) {
  SyntheticOptions options = many(ArrivalShape::kDiurnal);
  const HourlyLoad hourly =
      parse_hourly_load("day_load.csv", read_file_for_test(source_path("data/day_load.csv")).value()).value();
  options.day_load = hourly.load;
  options.day_seconds = 480;  // an hour in twenty seconds
  options.seconds = 2 * options.day_seconds;
  options.requests_per_s = 100;
  const Trace trace = synthetic_trace(options, 3);
  const double n = options.seconds * options.requests_per_s;
  EXPECT_NEAR(static_cast<double>(trace.requests.size()), n, 5 * std::sqrt(n));
  const DayLoad day(hourly.load);
  std::array<int, 24> count{};
  for (const TraceRequest& r : trace.requests)
    ++count[static_cast<size_t>(static_cast<double>(r.arrival_us) / 1e6 / 20) % 24];
  for (int h = 0; h < 24; ++h) {
    const double expected = n * day.hour_share(h);
    EXPECT_NEAR(count[static_cast<size_t>(h)], expected, 5 * std::sqrt(expected)) << h;
  }
}

TEST(Synthetic, BurstsKeepTheRate) {
  SyntheticOptions options = many(ArrivalShape::kPoisson);
  options.burst_share = 0.5;
  const Gaps gaps = gaps_of(synthetic_trace(options, 5));
  EXPECT_NEAR(gaps.rate_per_s, options.requests_per_s, 1.5);
  EXPECT_GT(gaps.cv2, 4);
}

// Two classes: the stated share of requests hits its stated share of whole blocks, the rest the common start.
TEST(Synthetic, TwoClassesHitAsStated) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    Rng rng(seed);
    const auto percent = [&](uint64_t from, uint64_t to) {
      return static_cast<double>(from + rng.next_below(to - from)) / 100;
    };
    SyntheticOptions options = many(ArrivalShape::kPoisson);
    options.seconds = 200;
    options.requests_per_s = 50;
    options.hits = HitModel::kTwoClass;
    options.lengths.input_mean_tokens = 2000;
    options.lengths.input_cv2 = 0.5;
    options.lengths.continuation_share = percent(20, 90);
    options.lengths.continuation_hit = percent(60, 96);
    options.lengths.other_hit = percent(0, 20);
    const Trace trace = synthetic_trace(options, seed);
    std::unordered_set<uint32_t> seen;
    double hits = 0, wanted = 0, continuations = 0;
    for (const TraceRequest& r : trace.requests) {
      size_t matched = 0;
      while (matched < r.blocks.size() && seen.contains(r.blocks[matched])) ++matched;
      ASSERT_EQ(r.blocks.size(), static_cast<size_t>((r.input_tokens + 63) / 64));
      const bool most = static_cast<double>(matched) * 64 > 0.4 * r.input_tokens;
      const double hit = most ? options.lengths.continuation_hit : options.lengths.other_hit;
      continuations += most;
      hits += static_cast<double>(matched);
      wanted += std::floor(r.input_tokens * hit / 64);
      seen.insert(r.blocks.begin(), r.blocks.end());
    }
    const auto n = static_cast<double>(trace.requests.size());
    const double share = options.lengths.continuation_share;
    // The first hundred or so find no prompt long enough yet, and in one or two blocks nobody hits 60 %.
    EXPECT_NEAR(continuations / n, share, 5 * std::sqrt(share * (1 - share) / n) + 0.02) << seed;
    EXPECT_NEAR(hits / wanted, 1, 0.03) << seed;
  }
}

// Committed: another compiler, C library or machine must give the same.
TEST(Synthetic, SameSeedSameBytes) {
  const auto digest = [](const SyntheticOptions& options, uint64_t seed) {
    uint64_t hash = 0xcbf29ce484222325;
    const auto add = [&](int64_t value) { hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3; };
    for (const TraceRequest& r : synthetic_trace(options, seed).requests) {
      add(r.arrival_us), add(r.input_tokens), add(r.output_tokens);
      for (const uint32_t block : r.blocks) add(block);
    }
    return fmt::format("{:016x}", hash);
  };
  SyntheticOptions options = many(ArrivalShape::kBursty);
  options.hits = HitModel::kTwoClass;
  EXPECT_EQ(digest(options, 7), digest(options, 7));
  EXPECT_NE(digest(options, 7), digest(options, 8));
  EXPECT_EQ(digest(options, 7), "cfceec87c21e6e4c");
  options.shape = ArrivalShape::kDiurnal;
  options.day_load.fill(1);
  options.day_load[3] = 5;
  EXPECT_EQ(digest(options, 7), "27d0bfaa7169e264");
}

TEST(Synthetic, NamesWhatItDoesNotKnow) {
  EXPECT_EQ(parse_arrival_shape("weekly").status().message(),
            "--arrivals: \"weekly\" is none of constant, poisson, bursty, diurnal");
  EXPECT_EQ(parse_arrival_shape("diurnal").value(), ArrivalShape::kDiurnal);
  EXPECT_EQ(parse_hit_model("all").status().message(),
            "--hits: \"all\" is neither conversations nor two-class");
}

}  // namespace
}  // namespace fathom::sim
