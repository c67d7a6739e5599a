// The engine's core on a scripted model and a clock set by hand: answers, limits, hand-overs, failures, and
// no block lost under random loads.
#include "engine/core.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "engine/test_scripted.h"

namespace fathom {
namespace {

constexpr int32_t kEos = 7;

EngineOptions small_options() {
  return {.max_context = 1024, .max_running = 8, .prefill_chunk_tokens = 128, .eos_token_ids = {kEos}};
}

// A core, its clock, and the requests given to it.
struct Bench {
  explicit Bench(const EngineOptions& engine_options, int32_t num_blocks = 64, ScriptedOptions prefill = {},
                 ScriptedOptions decode = {})
      : options(engine_options) {
    for (ScriptedOptions* scripted : {&prefill, &decode}) {
      scripted->clock = &clock;
      if (scripted->step_seconds == 0) scripted->step_seconds = 0.001;
    }
    core = std::make_unique<EngineCore>(options, scripted_parts(num_blocks, prefill, decode), clock);
    EXPECT_TRUE(core->warm_up().ok());
  }
  RequestId add(GenerationRequest request) {
    requests.push_back(request);
    listeners.push_back(std::make_shared<RecordingListener>());
    listeners.back()->clock = &clock;
    const RequestId id{requests.size()};
    core->add(id, std::move(request), listeners.back(), clock.now());
    return id;
  }
  void run_to_end(int rounds_max = 20000) {
    for (int round = 0; !core->empty(); ++round) {
      ASSERT_LT(round, rounds_max) << "the engine does not come to an end";
      if (!core->run_once()) clock.advance(from_seconds(0.01));
      check();
    }
  }
  void check() const {
    const Status status = core->check_books();
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  void expect_answer(size_t i) const {
    const std::vector<int32_t> want = scripted_answer(requests[i], options.eos_token_ids);
    EXPECT_EQ(listeners[i]->tokens, want) << "request " << i;
    const bool may_stop = !options.eos_token_ids.empty() && !requests[i].ignore_eos;
    const bool stopped = may_stop && want.back() == kEos;
    EXPECT_EQ(listeners[i]->info.reason, stopped ? FinishReason::kStop : FinishReason::kLength);
    expect_prompt_counts(i);
  }
  void expect_prompt_counts(size_t i) const {
    const FinishInfo& info = listeners[i]->info;
    EXPECT_EQ(info.prompt_tokens, static_cast<int32_t>(requests[i].prompt.size()));
    EXPECT_TRUE(info.hit_tokens % kBlockTokens == 0 && info.hit_tokens < info.prompt_tokens)
        << info.hit_tokens;
  }
  void expect_no_leak() const {
    const EngineStats stats = core->stats();
    EXPECT_EQ(stats.kv_blocks_free + stats.kv_blocks_cached, stats.kv_blocks_total);
    EXPECT_EQ(stats.num_queued + stats.num_prefilling + stats.num_decoding, 0);
  }

  const EngineOptions options;
  ManualClock clock;
  std::unique_ptr<EngineCore> core;
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<RecordingListener>> listeners;
};

GenerationRequest make_request(Rng& rng, int64_t prompt_tokens, int32_t max_new_tokens) {
  GenerationRequest request{.prompt = random_tokens(rng, prompt_tokens), .max_new_tokens = max_new_tokens};
  request.sampling.seed = rng.next_u64();
  return request;
}

TEST(EngineCore, answers_as_the_model_defines) {
  Rng rng(1);
  Bench bench(small_options());
  for (const int prompt_tokens : {1, 63, 64, 65, 128, 129, 500})
    bench.add(make_request(rng, prompt_tokens, 100));
  bench.run_to_end();
  for (size_t i = 0; i < bench.requests.size(); ++i) bench.expect_answer(i);
  bench.expect_no_leak();
}

TEST(EngineCore, one_token_needs_no_decode_leg) {
  Rng rng(2);
  EngineOptions options = small_options();
  options.eos_token_ids = {};
  Bench bench(options);
  bench.add(make_request(rng, 100, 1));
  bench.run_to_end();
  EXPECT_EQ(bench.listeners[0]->tokens.size(), 1u);
  EXPECT_EQ(bench.listeners[0]->info.reason, FinishReason::kLength);
  EXPECT_EQ(bench.core->stats().handovers, 0);
  EXPECT_EQ(bench.core->stats().decode_steps, 0);
}

TEST(EngineCore, the_context_ends_an_answer) {
  Rng rng(3);
  EngineOptions options = small_options();
  options.max_context = 100;
  options.eos_token_ids = {};
  Bench bench(options);
  bench.add(make_request(rng, 90, 1000));
  bench.run_to_end();
  EXPECT_EQ(bench.listeners[0]->tokens.size(), 10u);
  EXPECT_EQ(bench.listeners[0]->info.reason, FinishReason::kLength);
}

TEST(EngineCore, stop_tokens_and_ignored_ends) {
  Rng rng(4);
  Bench bench(small_options());
  GenerationRequest request = make_request(rng, 40, 300);
  request.ignore_eos = true;
  bench.add(request);
  request.stop_token_ids = {11, 12};
  bench.add(request);
  bench.run_to_end();
  EXPECT_EQ(bench.listeners[0]->tokens.size(), 300u);
  EXPECT_GT(std::count(bench.listeners[0]->tokens.begin(), bench.listeners[0]->tokens.end(), kEos), 0);
  bench.expect_answer(0);
  EXPECT_EQ(bench.listeners[1]->info.reason, FinishReason::kStop);
  EXPECT_EQ(bench.listeners[1]->tokens, scripted_answer(request, {}));
}

TEST(EngineCore, a_second_turn_hits_prompt_and_output) {
  Rng rng(5);
  EngineOptions options = small_options();
  options.eos_token_ids = {};
  Bench bench(options);
  GenerationRequest request = make_request(rng, 150, 100);
  bench.add(request);
  bench.run_to_end();
  EXPECT_EQ(bench.listeners[0]->info.hit_tokens, 0);
  bench.add(request);  // the same prompt: two whole blocks
  GenerationRequest next = request;
  next.prompt.insert(next.prompt.end(), bench.listeners[0]->tokens.begin(), bench.listeners[0]->tokens.end());
  next.prompt.push_back(1);
  bench.add(next);  // 251 tokens; KV of 249 was stored: three whole blocks
  GenerationRequest stranger = request;
  stranger.tenant = "another";
  bench.add(stranger);
  bench.run_to_end();
  EXPECT_EQ(bench.listeners[1]->info.hit_tokens, 128);
  EXPECT_EQ(bench.listeners[2]->info.hit_tokens, 192);
  EXPECT_EQ(bench.listeners[3]->info.hit_tokens, 0);
  for (size_t i = 0; i < 4; ++i) bench.expect_answer(i);
  EXPECT_EQ(bench.listeners[0]->tokens, bench.listeners[1]->tokens) << "warm equals cold";
  const EngineStats stats = bench.core->stats();
  EXPECT_EQ(stats.hit_tokens, 320);
  EXPECT_EQ(stats.hit_tokens + stats.miss_tokens, 150 * 3 + 251);
}

TEST(EngineCore, a_hit_never_covers_the_whole_prompt) {
  Rng rng(6);
  Bench bench(small_options());
  const GenerationRequest request = make_request(rng, 128, 5);
  bench.add(request);
  bench.run_to_end();
  bench.add(request);
  bench.run_to_end();
  EXPECT_EQ(bench.listeners[1]->info.hit_tokens, 64);
  bench.expect_answer(1);
}

TEST(EngineCore, choices_of_one_prompt_compute_it_once) {
  Rng rng(7);
  EngineOptions options = small_options();
  options.prefill_ep = 2;
  Bench bench(options, 64, {.num_ranks = 2});
  GenerationRequest request = make_request(rng, 640, 30);
  for (uint32_t choice = 0; choice < 6; ++choice) {
    request.choice = choice;
    bench.add(request);
  }
  bench.run_to_end();
  for (size_t i = 0; i < 6; ++i) bench.expect_answer(i);
  // Nine whole blocks once, and the last 64 tokens for each.
  EXPECT_EQ(bench.core->stats().prefill_tokens, 576 + 6 * 64);
  EXPECT_EQ(bench.core->stats().hit_tokens, 5 * 576);
}

TEST(EngineCore, the_oldest_finishes_under_memory_pressure) {
  Rng rng(8);
  EngineOptions options = small_options();
  options.eos_token_ids = {};
  options.max_context = 640;
  Bench bench(options, 12);
  for (int i = 0; i < 6; ++i) bench.add(make_request(rng, 200, 380));
  for (int round = 0; !bench.core->empty(); ++round) {
    ASSERT_LT(round, 20000);
    bench.core->run_once();
    bench.check();
    for (size_t i = 1; i < 6; ++i) {
      if (bench.listeners[i]->finished) {
        EXPECT_TRUE(bench.listeners[0]->finished) << "equal work: the oldest is first";
      }
    }
  }
  for (size_t i = 0; i < 6; ++i) bench.expect_answer(i);
  EXPECT_GE(bench.core->stats().retractions, 2);
  bench.expect_no_leak();
}

TEST(EngineCore, deadlines_and_the_queue_have_their_own_timer) {
  Rng rng(9);
  EngineOptions options = small_options();
  options.max_running = 1;
  options.queue_seconds_max = 0.5;
  options.eos_token_ids = {};
  Bench bench(options);
  GenerationRequest timed = make_request(rng, 10, 1000);
  timed.deadline = bench.clock.now() + from_seconds(0.8);
  bench.add(timed);
  bench.add(make_request(rng, 10, 1000));  // never gets a turn in time
  bench.run_to_end();
  EXPECT_EQ(bench.listeners[0]->info.reason, FinishReason::kDeadline);
  EXPECT_GT(bench.listeners[0]->tokens.size(), 100u);
  EXPECT_EQ(bench.listeners[1]->info.reason, FinishReason::kInsufficientResources);
  EXPECT_EQ(bench.listeners[1]->info.prompt_tokens, 10);
  EXPECT_LE(to_seconds(bench.clock.now() - TimePoint()), 1.0);
  bench.expect_no_leak();
}

// The younger one gives its memory to the older one, which goes on for long.
TEST(EngineCore, a_request_that_is_not_stepped_does_not_wait_for_ever) {
  Rng rng(15);
  EngineOptions options = small_options();
  options.queue_seconds_max = 2;
  options.eos_token_ids = {};
  Bench bench(options, 16, {}, {.step_seconds = 0.01});
  bench.add(make_request(rng, 200, 800));
  bench.add(make_request(rng, 200, 400));
  const RecordingListener& starved = *bench.listeners[1];
  for (int round = 0; !starved.finished; ++round) {
    ASSERT_LT(round, 20000);
    bench.core->run_once();
    bench.check();
  }
  EXPECT_GT(bench.core->stats().retractions, 0);
  EXPECT_EQ(starved.info.reason, FinishReason::kInsufficientResources);
  EXPECT_EQ(starved.info.status.message(), "the request waited 2 s for its next step");
  EXPECT_LT(starved.tokens.size(), 400u);
  EXPECT_NEAR(to_seconds(bench.clock.now() - starved.times.back()), 2.0, 0.1);
  EXPECT_FALSE(bench.listeners[0]->finished);
  bench.run_to_end();
  bench.expect_answer(0);
  bench.expect_no_leak();
}

TEST(EngineCore, an_offer_waits_for_a_slot_until_its_lease_ends) {
  Rng rng(10);
  EngineOptions options = small_options();
  options.decode_max_per_rank = 1;
  options.handover_lease_seconds = 0.2;
  options.eos_token_ids = {};
  Bench bench(options);
  bench.add(make_request(rng, 100, 500));
  bench.add(make_request(rng, 100, 50));
  bench.run_to_end();
  for (size_t i = 0; i < 2; ++i) bench.expect_answer(i);
  const EngineStats stats = bench.core->stats();
  EXPECT_GT(stats.handovers_expired, 0);
  EXPECT_EQ(stats.requests_finished[static_cast<size_t>(FinishReason::kLength)], 2);
  bench.expect_no_leak();
}

TEST(EngineCore, a_row_of_nan_ends_its_own_request_only) {
  Rng rng(11);
  const GenerationRequest sick = make_request(rng, 70, 50);
  uint64_t hash = 1;
  for (const int32_t token : sick.prompt) hash = scripted_hash(hash, token);
  Bench bench(small_options(), 64, {.nan_hashes = {hash}});
  bench.add(sick);
  bench.add(make_request(rng, 70, 50));
  bench.run_to_end();
  EXPECT_EQ(bench.listeners[0]->info.reason, FinishReason::kError);
  EXPECT_EQ(bench.listeners[0]->info.status.code(), StatusCode::kDataLoss);
  bench.expect_answer(1);
  bench.expect_no_leak();
}

TEST(EngineCore, damaged_weights_fail_the_warm_up) {
  ManualClock clock;
  uint64_t hash = 1;
  for (int32_t i = 0; i < kBlockTokens; ++i) hash = scripted_hash(hash, i * 97 % kScriptedVocab);
  ScriptedOptions prefill{.clock = &clock, .step_seconds = 0.001, .nan_hashes = {hash}};
  EngineCore core(small_options(), scripted_parts(64, prefill, {.clock = &clock, .step_seconds = 0.001}),
                  clock);
  const Status status = core.warm_up();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("NaN"), std::string::npos) << status.message();
  EXPECT_TRUE(core.check_books().ok());
}

TEST(EngineCore, a_failed_step_ends_those_in_it_and_a_stopped_one_is_repeated) {
  Rng rng(12);
  int countdown = 4;  // two of them warm up
  ScriptedOptions prefill;
  prefill.on_step = [&](std::span<const RankBatch>) {
    --countdown;
    if (countdown == 1) return Status(StatusCode::kCancelled, "stopped");
    return countdown == 0 ? Status(StatusCode::kInternal, "rank 0 is gone") : ok_status();
  };
  EngineOptions options = small_options();
  options.max_running = 1;
  Bench bench(options, 64, prefill);
  bench.add(make_request(rng, 60, 20));
  bench.add(make_request(rng, 60, 20));
  bench.run_to_end();
  EXPECT_EQ(bench.listeners[0]->info.reason, FinishReason::kError);
  EXPECT_EQ(bench.listeners[0]->info.status.message(), "rank 0 is gone");
  bench.expect_answer(1);
  bench.expect_no_leak();
}

TEST(EngineCore, an_engine_that_only_fails_makes_no_progress) {
  Rng rng(14);
  bool broken = false;
  ScriptedOptions prefill;
  prefill.on_step = [&](std::span<const RankBatch>) {
    return broken ? Status(StatusCode::kFailedPrecondition, "the group has failed") : ok_status();
  };
  Bench bench(small_options(), 64, prefill);
  broken = true;
  const TimePoint before = bench.clock.now();
  for (int i = 0; i < 5; ++i) {
    bench.add(make_request(rng, 10, 5));
    bench.run_to_end();
    bench.clock.advance(from_seconds(1));
    bench.core->run_once();
  }
  EXPECT_LE(bench.core->stats().last_progress, before);
  EXPECT_TRUE(bench.core->stats().failing);
  EXPECT_EQ(bench.core->stats().failed_steps, 5);
  broken = false;
  bench.add(make_request(rng, 10, 5));
  bench.run_to_end();
  EXPECT_GT(bench.core->stats().last_progress, before);
  EXPECT_FALSE(bench.core->stats().failing);
}

TEST(EngineCore, a_failed_group_is_not_hidden_by_the_other_one) {
  Rng rng(16);
  bool broken = false;
  ScriptedOptions decode;
  decode.on_step = [&](std::span<const RankBatch>) {
    return broken ? Status(StatusCode::kFailedPrecondition, "the group has failed") : ok_status();
  };
  Bench bench(small_options(), 64, {}, decode);
  broken = true;
  bench.add(make_request(rng, 10, 5));
  bench.run_to_end();
  EXPECT_TRUE(bench.core->stats().failing);
  const TimePoint progress = bench.core->stats().last_progress;
  bench.clock.advance(from_seconds(1));
  bench.add(make_request(rng, 10, 1));  // for prefill alone
  bench.run_to_end();
  EXPECT_EQ(bench.listeners[1]->info.reason, FinishReason::kLength);
  EXPECT_TRUE(bench.core->stats().failing);
  EXPECT_EQ(bench.core->stats().last_progress, progress);
  broken = false;
  bench.add(make_request(rng, 10, 5));
  bench.run_to_end();
  EXPECT_FALSE(bench.core->stats().failing);
}

// 32 clients that each send a new prompt when their answer ends, some prompts long. What a decoding client
// sees between two tokens is bounded, although somebody is being prefilled nearly all the time.
TEST(EngineCore, gaps_stay_within_three_times_the_median) {
  Rng rng(13);
  EngineOptions options = small_options();
  options.max_context = 4096;
  options.max_running = 32;
  options.prefill_chunk_tokens = 512;
  options.eos_token_ids = {};
  Bench bench(options, 4000, {.step_seconds = 0.001, .token_seconds = 2e-5},
              {.step_seconds = 0.003, .token_seconds = 1e-4});
  const auto send = [&] {
    bench.add(make_request(rng, rng.next_below(8) == 0 ? 3000 : 50 + rng.next_below(200), 100));
  };
  for (int client = 0; client < 32; ++client) send();
  size_t num_ended = 0;
  while (bench.requests.size() < 150) {
    bench.core->run_once();
    size_t ended = 0;
    for (const auto& listener : bench.listeners) ended += listener->finished ? 1 : 0;
    for (; num_ended < ended; ++num_ended) send();
  }
  bench.run_to_end();
  std::vector<double> gaps;
  for (const auto& listener : bench.listeners) {
    for (size_t i = 1; i < listener->times.size(); ++i) {
      gaps.push_back(to_seconds(listener->times[i] - listener->times[i - 1]));
    }
  }
  std::sort(gaps.begin(), gaps.end());
  const double median = gaps[gaps.size() / 2];
  const double p99 = gaps[gaps.size() * 99 / 100];
  EXPECT_LE(p99, 3 * median) << "median " << median;
  // A long prompt alone would take 61 ms in one piece.
  EXPECT_LE(gaps.back(), 0.05);
}

// Random requests from a few families of prompts, random cancels, little memory, several ranks: every answer
// is the model's, cut short only where it was cancelled, and no block is lost.
void random_load(uint64_t seed, int prefill_ranks, int decode_ranks, int64_t* retractions, int64_t* hits) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Rng rng(seed);
  EngineOptions options = small_options();
  options.prefill_ep = prefill_ranks;
  options.decode_ep = decode_ranks;
  options.max_context = 512;
  options.handover_lease_seconds = 0.05;
  options.decode_max_per_rank = seed % 3 == 0 ? 1 : 0;
  Bench bench(options, 9 + static_cast<int32_t>(rng.next_below(8)), {.num_ranks = prefill_ranks},
              {.num_ranks = decode_ranks});
  std::vector<std::vector<int32_t>> families;
  for (int i = 0; i < 3; ++i) families.push_back(random_tokens(rng, 300));
  std::vector<bool> cancelled;
  for (int round = 0; round < 400; ++round) {
    if (rng.next_below(4) == 0) {
      GenerationRequest request = make_request(rng, 1 + rng.next_below(100), 1 + rng.next_below(300));
      const auto& family = families[rng.next_below(families.size())];
      const auto shared = static_cast<int64_t>(rng.next_below(200));
      request.prompt.insert(request.prompt.begin(), family.begin(), family.begin() + shared);
      request.sampling.temperature = rng.next_below(3) == 0 ? 0 : 1;
      request.ignore_eos = rng.next_below(2) == 0;
      if (rng.next_below(4) == 0) request.sampling.frequency_penalty = 0.5f;
      bench.add(std::move(request));
      cancelled.push_back(false);
    }
    if (rng.next_below(12) == 0 && !cancelled.empty()) {
      const size_t victim = rng.next_below(cancelled.size());
      cancelled[victim] = true;
      bench.core->cancel(RequestId{victim + 1});
    }
    bench.core->run_once();
    bench.check();
    if (testing::Test::HasFailure()) return;
  }
  bench.run_to_end();
  for (size_t i = 0; i < bench.requests.size(); ++i) {
    bench.requests[i].max_new_tokens = std::min(bench.requests[i].max_new_tokens,
                                                512 - static_cast<int32_t>(bench.requests[i].prompt.size()));
    const RecordingListener& listener = *bench.listeners[i];
    if (listener.info.reason == FinishReason::kCancelled) {
      EXPECT_TRUE(cancelled[i]);
      const std::vector<int32_t> want = scripted_answer(bench.requests[i], options.eos_token_ids);
      ASSERT_LE(listener.tokens.size(), want.size());
      EXPECT_TRUE(std::equal(listener.tokens.begin(), listener.tokens.end(), want.begin()));
      bench.expect_prompt_counts(i);
    } else {
      bench.expect_answer(i);
    }
  }
  bench.expect_no_leak();
  *retractions += bench.core->stats().retractions;
  *hits += bench.core->stats().hit_tokens;
}

TEST(EngineCore, random_loads_answer_rightly_and_leak_nothing) {
  int64_t retractions = 0;
  int64_t hits = 0;
  for (uint64_t seed = 1; seed <= 6 && !HasFailure(); ++seed) {
    random_load(seed, 1, 1, &retractions, &hits);
    random_load(100 + seed, 4, 4, &retractions, &hits);
    random_load(200 + seed, 2, 3, &retractions, &hits);
  }
  EXPECT_GT(retractions, 20);
  EXPECT_GT(hits, 10000);
}

}  // namespace
}  // namespace fathom
