// Dispatch and combine against a direct sum, for both modes, under faults, and their invariants by name:
//   every_choice_counts      the sum is over exactly the chosen experts
//   placement_free           expert order gives the same bits for any ranks, replicas and neighbours
//   published_wire_bytes     7,408 B per dispatched and 14,336 B per combined token-expert at hidden size
//   7168
#include "ep/exchange.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <thread>

#include "base/rng.h"
#include "kernels/elementwise.h"
#include "transport/faults.h"
#include "transport/inproc.h"

namespace fathom {
namespace {

constexpr int kExperts = 12;

// A whole batch, cut over ranks: rank r owns tokens [r, r + 1) * tokens_per_rank.
struct Batch {
  int64_t num_tokens = 0;
  int top_k = 0;
  int64_t hidden = 0;
  std::vector<float> x;          // [tokens, hidden], exact in BF16
  std::vector<int32_t> experts;  // [tokens, top_k]
  std::vector<float> weights;
};

Batch random_batch(uint64_t seed, int64_t num_tokens, int top_k, int64_t hidden) {
  Rng rng(seed);
  Batch batch{num_tokens, top_k, hidden, {}, {}, {}};
  for (int64_t i = 0; i < num_tokens * hidden; ++i) {
    batch.x.push_back(bf16_to_f32(f32_to_bf16(static_cast<float>(rng.next_double() * 2 - 1))));
  }
  for (int64_t token = 0; token < num_tokens; ++token) {
    std::vector<int32_t> chosen;
    while (static_cast<int>(chosen.size()) < top_k) {
      const auto expert = static_cast<int32_t>(rng.next_below(kExperts));
      if (std::find(chosen.begin(), chosen.end(), expert) == chosen.end()) chosen.push_back(expert);
    }
    for (int32_t expert : chosen) {
      batch.experts.push_back(expert);
      batch.weights.push_back(static_cast<float>(rng.next_double()));
    }
  }
  return batch;
}

// What expert e makes of a value: anything that depends on e, and rounds.
float expert_value(int expert, float x) { return x * (1.0f + 0.37f * static_cast<float>(expert)) + 0.11f; }

struct ExchangeRun {
  ExchangeMode mode = ExchangeMode::kLowLatency;
  bool expert_order = false;
  int num_ranks = 1;
  int num_redundant = 0;
  DType dtype = DType::kF32;  // payload and result
  uint64_t replica_seed = 0;
  FaultPlan faults;
  int repeats = 1;
};

// One rank's part of an exchange: what model/moe does, with a toy expert.
struct RankJob {
  const Batch& batch;
  const ExchangeRun& run;
  ExchangeShape shape;
  int64_t first = 0, tokens = 0;
  std::vector<int32_t> slots;
  std::vector<std::byte> payload;
  std::unique_ptr<Endpoint> endpoint;
  std::unique_ptr<ExpertExchange> exchange;
  std::vector<float> out;
  ExchangeStats stats;

  void run_experts(Flight& flight) {
    const int first_slot = endpoint->rank() * shape.slots_per_rank;
    std::vector<float> x(batch.hidden);
    for (int slot = 0; slot < shape.slots_per_rank; ++slot) {
      for (int64_t row = flight.slot_begin(slot); row < flight.slot_begin(slot + 1); ++row) {
        to_f32(run.dtype, flight.payload(row), batch.hidden, x.data());
        for (float& value : x) value = expert_value((first_slot + slot) % kExperts, value);
        from_f32(x.data(), batch.hidden, flight.expert_output_dtype(),
                 flight.expert_output() + row * batch.hidden * dtype_bytes(flight.expert_output_dtype()));
      }
    }
  }

  Status layer() {
    const auto [flight, sequence] = exchange->next();
    const Routing routing{tokens, slots.data(), batch.experts.data() + first * batch.top_k,
                          batch.weights.data() + first * batch.top_k};
    const int64_t row_bytes = shape.payload_row_bytes;
    RETURN_IF_ERROR(flight->send_dispatch(sequence, routing, {payload.data(), row_bytes, nullptr, 0},
                                          endpoint->rank() == 1 ? 2 : 0));
    RETURN_IF_ERROR(flight->receive_dispatch());
    EXPECT_EQ(flight->flags(), run.num_ranks > 1 ? 2u : 0u);
    run_experts(*flight);
    std::vector<float> scratch(batch.hidden);
    flight->reduce(0, flight->num_return_rows(), scratch.data());
    RETURN_IF_ERROR(flight->send_combine());
    RETURN_IF_ERROR(flight->receive_combine());
    for (int64_t t = 0; t < tokens; ++t) flight->combine_token(t, &out[t * batch.hidden]);
    flight->finish();
    return {};
  }
};

struct Outcome {
  std::vector<float> out;
  std::vector<Status> statuses;
  ExchangeStats stats;
};

RankJob make_job(const Batch& batch, const ExchangeRun& run, InprocGroup& group, int rank,
                 int64_t tokens_per_rank) {
  RankJob job{batch, run};
  job.shape = {.mode = run.mode,
               .expert_order = run.expert_order,
               .num_ranks = run.num_ranks,
               .slots_per_rank = (kExperts + run.num_redundant) / run.num_ranks,
               .top_k = batch.top_k,
               .hidden = batch.hidden,
               .max_tokens_per_rank = tokens_per_rank,
               .payload_row_bytes = batch.hidden * dtype_bytes(run.dtype),
               .result = run.dtype};
  job.first = std::min(batch.num_tokens, rank * tokens_per_rank);
  job.tokens = std::min(batch.num_tokens, job.first + tokens_per_rank) - job.first;
  for (int64_t i = job.first * batch.top_k; i < (job.first + job.tokens) * batch.top_k; ++i) {
    // Slots hold experts round robin; a replica is picked at random among them.
    const int replicas = 1 + (batch.experts[i] < run.num_redundant ? 1 : 0);
    job.slots.push_back(batch.experts[i] +
                        kExperts * static_cast<int>(hash_u64(run.replica_seed, i) % replicas));
  }
  job.payload.resize(job.tokens * job.shape.payload_row_bytes);
  from_f32(batch.x.data() + job.first * batch.hidden, job.tokens * batch.hidden, run.dtype,
           job.payload.data());
  job.out.resize(job.tokens * batch.hidden);
  FaultPlan faults = run.faults;
  job.endpoint = std::make_unique<FaultyEndpoint>(group.endpoint(rank), faults);
  job.exchange = std::make_unique<ExpertExchange>(*job.endpoint, job.shape);
  return job;
}

Outcome run_exchange(const Batch& batch, const ExchangeRun& run) {
  auto group = InprocGroup::create(
                   {.num_ranks = run.num_ranks, .timeout = std::chrono::seconds(60), .spin_iterations = 0})
                   .value();
  const int64_t tokens_per_rank = (batch.num_tokens + run.num_ranks - 1) / run.num_ranks;
  std::vector<RankJob> jobs;
  for (int rank = 0; rank < run.num_ranks; ++rank) {
    jobs.push_back(make_job(batch, run, *group, rank, tokens_per_rank));
  }
  Outcome outcome;
  outcome.statuses.resize(run.num_ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < run.num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      for (int i = 0; i < run.repeats && outcome.statuses[rank].ok(); ++i)
        outcome.statuses[rank] = jobs[rank].layer();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (RankJob& job : jobs) {
    outcome.out.insert(outcome.out.end(), job.out.begin(), job.out.end());
    outcome.stats += job.exchange->take_stats();
  }
  return outcome;
}

void expect_close_to_direct_sum(const Batch& batch, const ExchangeRun& run) {
  const Outcome outcome = run_exchange(batch, run);
  for (const Status& status : outcome.statuses) ASSERT_TRUE(status.ok()) << status.to_string();
  for (int64_t t = 0; t < batch.num_tokens; ++t) {
    for (int64_t i = 0; i < batch.hidden; ++i) {
      double want = 0, magnitude = 0;
      for (int k = 0; k < batch.top_k; ++k) {
        const int64_t choice = t * batch.top_k + k;
        const double part = batch.weights[choice] *
                            double{expert_value(batch.experts[choice], batch.x[t * batch.hidden + i])};
        want += part;
        magnitude += std::abs(part);
      }
      // The token, each part and, in normal mode, each rank's sum are rounded to the type.
      const int roundings = run.mode == ExchangeMode::kNormal ? 3 : 2;
      const double tolerance = magnitude * (run.dtype == DType::kF32 ? 1e-6 : roundings / 512.0);
      ASSERT_NEAR(outcome.out[t * batch.hidden + i], want, tolerance) << "token " << t << " element " << i;
    }
  }
}

TEST(Exchange, EveryChoiceCountsInBothModesAtAnyNumberOfRanks) {
  for (ExchangeMode mode : {ExchangeMode::kNormal, ExchangeMode::kLowLatency}) {
    for (DType dtype : {DType::kF32, DType::kBf16}) {
      for (int num_ranks : {1, 2, 4, 12}) {
        SCOPED_TRACE(
            fmt::format("mode {} dtype {} ranks {}", static_cast<int>(mode), dtype_name(dtype), num_ranks));
        const ExchangeRun run{.mode = mode, .num_ranks = num_ranks, .dtype = dtype, .repeats = 3};
        expect_close_to_direct_sum(random_batch(num_ranks, 23, 4, 19), run);
      }
    }
  }
}

TEST(Exchange, RanksWithoutTokensTakePart) {
  for (ExchangeMode mode : {ExchangeMode::kNormal, ExchangeMode::kLowLatency}) {
    expect_close_to_direct_sum(random_batch(7, 2, 3, 5), {.mode = mode, .num_ranks = 6});
    expect_close_to_direct_sum(random_batch(7, 0, 3, 5), {.mode = mode, .num_ranks = 6});
  }
}

TEST(Exchange, SurvivesDelayReorderAndDuplicates) {
  FaultPlan faults{.seed = 3, .reorder = true, .duplicate_share = 0.2};
  faults.delay = [](Rng& rng) {
    if (rng.next_below(4) == 0) std::this_thread::sleep_for(std::chrono::microseconds(rng.next_below(200)));
  };
  for (ExchangeMode mode : {ExchangeMode::kNormal, ExchangeMode::kLowLatency}) {
    const ExchangeRun run{
        .mode = mode, .num_ranks = 6, .num_redundant = 6, .replica_seed = 4, .faults = faults, .repeats = 5};
    expect_close_to_direct_sum(random_batch(11, 40, 4, 9), run);
  }
}

TEST(Exchange, ExpertOrderIsPlacementFree) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    const Batch batch = random_batch(5, 31, 6, 33);
    const Outcome alone = run_exchange(batch, {.expert_order = true, .dtype = dtype});
    for (int num_ranks : {2, 6, 18}) {
      for (uint64_t replica_seed : {1, 2}) {
        const ExchangeRun run{.expert_order = true,
                              .num_ranks = num_ranks,
                              .num_redundant = 6,
                              .dtype = dtype,
                              .replica_seed = replica_seed};
        const Outcome spread = run_exchange(batch, run);
        ASSERT_EQ(spread.out.size(), alone.out.size());
        EXPECT_EQ(std::memcmp(spread.out.data(), alone.out.data(), alone.out.size() * sizeof(float)), 0)
            << num_ranks << " ranks";
      }
    }
  }
}

TEST(Exchange, DroppedChoicesAreLeftOut) {
  Batch batch = random_batch(3, 4, 2, 8);
  auto group = InprocGroup::create({}).value();
  for (ExchangeMode mode : {ExchangeMode::kNormal, ExchangeMode::kLowLatency}) {
    const ExchangeRun run{.mode = mode};
    RankJob job = make_job(batch, run, *group, 0, 4);
    job.slots[0] = job.slots[1] = job.slots[3] = -1;
    ASSERT_TRUE(job.layer().ok());
    EXPECT_EQ(job.out[0], 0.0f);
    EXPECT_EQ(job.out[8], batch.weights[2] * expert_value(batch.experts[2], batch.x[8]));
    group->reconfigure(RankMask::all(1));
  }
}

TEST(Exchange, WireBytesAreThePublishedOnes) {
  auto group = InprocGroup::create({.num_ranks = 1}).value();
  auto endpoint = group->endpoint(0);
  const int64_t tokens = 3;
  for (ExchangeMode mode : {ExchangeMode::kNormal, ExchangeMode::kLowLatency}) {
    ExpertExchange exchange(*endpoint, {.mode = mode,
                                        .slots_per_rank = 256,
                                        .top_k = 8,
                                        .hidden = 7168,
                                        .max_tokens_per_rank = tokens,
                                        .payload_row_bytes = 7168,
                                        .scale_row_bytes = 7168 / 128 * 4});
    std::vector<int32_t> slots;
    for (int i = 0; i < tokens * 8; ++i) slots.push_back(i * 3);
    const std::vector<float> weights(tokens * 8, 0.125f);
    const std::vector<std::byte> payload(tokens * 7168), scales(tokens * 224);
    const auto [flight, sequence] = exchange.next();
    const Routing routing{tokens, slots.data(), slots.data(), weights.data()};
    ASSERT_TRUE(flight->send_dispatch(sequence, routing, {payload.data(), 7168, scales.data(), 224}, 0).ok());
    ASSERT_TRUE(flight->receive_dispatch().ok());
    ASSERT_TRUE(flight->send_combine().ok());
    const ExchangeStats stats = exchange.take_stats();
    const int64_t rows = mode == ExchangeMode::kNormal ? tokens : tokens * 8;
    EXPECT_EQ(stats.dispatch_rows, rows);
    EXPECT_EQ(stats.dispatch_bytes, rows * 7408);
    EXPECT_EQ(stats.combine_bytes, rows * 14336);
    EXPECT_EQ(stats.remote_dispatch_bytes, 0);
    group->reconfigure(RankMask::all(1));
    endpoint = group->endpoint(0);
  }
}

TEST(Exchange, ALostPeerFailsTheExchangeByDeadline) {
  const Batch batch = random_batch(2, 6, 2, 4);
  auto group =
      InprocGroup::create({.num_ranks = 2, .timeout = std::chrono::milliseconds(20), .spin_iterations = 0})
          .value();
  const ExchangeRun run{.num_ranks = 2};
  RankJob job = make_job(batch, run, *group, 0, 3);
  EXPECT_EQ(job.layer().code(), StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace fathom
