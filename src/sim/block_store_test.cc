// The external KV store: its blocks, its links, and what it does to a replay.
#include "sim/block_store.h"

#include <gtest/gtest.h>

#include "sim/block_fleet.h"
#include "sim/fleet_file.h"
#include "sim/synthetic.h"
#include "sim/test_fleet.h"
#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

std::vector<uint64_t> chain(uint64_t of, uint64_t length) {
  std::vector<uint64_t> blocks;
  for (uint64_t i = 0; i < length; ++i) blocks.push_back(of * 1000 + i);
  return blocks;
}

TEST(BlockStore, HoldsWhatWasPutAndDropsWhatWasUsedLongestAgoFromItsEnd) {
  BlockStore store({.blocks_max = 10});
  store.put(chain(1, 4));
  store.put(chain(2, 4));
  EXPECT_EQ(store.num_held(chain(1, 6)), 4);
  EXPECT_EQ(store.num_held(chain(3, 2)), 0);
  store.read(0, 0, chain(1, 4));  // in use: the other one leaves first
  store.put(chain(3, 4));
  EXPECT_EQ(store.num_held(chain(1, 4)), 4);
  EXPECT_EQ(store.num_held(chain(2, 4)), 2);
  EXPECT_EQ(store.num_held(chain(3, 4)), 4);
  EXPECT_EQ(store.num_evicted(), 2);
  EXPECT_EQ(store.num_blocks(), 10);
}

TEST(BlockStore, ReadsOfANodeShareItsLink) {
  BlockStore store({.blocks_max = 100, .num_nodes = 2, .ns_per_block = 10, .latency_ns = 1000});
  EXPECT_EQ(store.read(0, 0, chain(1, 50)), 1500);
  EXPECT_EQ(store.read_end_ns(0, 100, 10), 1600);
  EXPECT_EQ(store.read(0, 100, chain(2, 10)), 1600);  // behind the first, its latency meanwhile
  EXPECT_EQ(store.read(1, 100, chain(2, 10)), 1200);  // another node's link
  EXPECT_EQ(store.read(0, 5000, chain(1, 1)), 6010);
  EXPECT_EQ(store.num_read(), 71);
}

// Two prompts of the same 20 blocks, far apart; between them others take the only rank's memory.
BlockFleetResult run_twice(double store_tb, double gb_per_s) {
  HardwareProfile hw = test_profile("h800");
  EXPECT_TRUE(set_profile_constant(hw, "kv.read_gb_per_s_per_node", gb_per_s).ok());
  EXPECT_TRUE(set_profile_constant(hw, "kv.read_latency_ms", 50).ok());
  BlockFleetOptions options = two_by_sixteen_ranks();
  options.prefill_units = options.prefill_ranks = 1;
  options.expert_slots = 256;
  options.prefill_blocks_per_rank = 200;
  options.store_tb = store_tb;
  Trace trace{"twice", 64, {}};
  const auto prompt = [](int64_t arrival_us, uint32_t first_block) {
    TraceRequest r{arrival_us, 20 * 64 + 10, 2, {}};
    for (uint32_t b = 0; b < 21; ++b) r.blocks.push_back(first_block + b);
    return r;
  };
  trace.requests.push_back(prompt(0, 0));
  for (uint32_t i = 1; i <= 12; ++i) trace.requests.push_back(prompt(i * 5'000'000, i * 100));
  trace.requests.push_back(prompt(100'000'000, 0));
  return run_block_fleet(hw, {}, trace, options);
}

TEST(BlockStore, APromptThatMemoryForgotIsReadAndItsReadIsWaitedFor) {
  const BlockFleetResult without = run_twice(0, 40);
  EXPECT_TRUE(without.violations.empty());
  EXPECT_EQ(without.cached_tokens, 0);
  const BlockFleetResult fast = run_twice(1, 40), slow = run_twice(1, 4);
  for (const BlockFleetResult* r : {&fast, &slow}) {
    EXPECT_TRUE(r->violations.empty());
    EXPECT_EQ(r->finished, 14);
    EXPECT_EQ(r->cached_tokens, 20 * 64);
    EXPECT_EQ(r->read_tokens, 20 * 64);
    EXPECT_EQ(r->read_us.total(), 1u);
  }
  // 20 blocks of 64 x 70,272 bytes and the latency.
  const double bytes = 20 * 64 * 70272.0;
  EXPECT_NEAR(fast.read_us.percentile(1), 50e3 + bytes / 40e3, 1000);
  EXPECT_NEAR(slow.read_us.percentile(1), 50e3 + bytes / 4e3, 1000);
  // A store that would take longer than computing is not asked.
  const BlockFleetResult crawling = run_twice(1, 0.01);
  EXPECT_EQ(crawling.read_tokens, 0);
  EXPECT_EQ(crawling.reads_left_out, 1);
  // One too small for the prompt has forgotten it.
  EXPECT_EQ(run_twice(100 * 64 * 70272 / 1e12, 40).read_tokens, 0);
}

// Whatever is lost on the way, the rules hold; and a store that every rank shares finds more than memories
// do.
TEST(BlockStore, TheRulesHoldUnderFaults) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SyntheticOptions load;
    load.seconds = 10;
    load.requests_per_s = 30;
    load.shared_share = 0.7;
    load.lengths.input_mean_tokens = 900;
    load.lengths.input_tokens_max = 8000;
    load.lengths.output_mean_tokens = 40;
    const Trace trace = synthetic_trace(load, seed);
    BlockFleetOptions options = two_by_sixteen_ranks();
    options.seed = seed;
    options.check_books_often = true;
    options.prefill_blocks_per_rank = 200;
    options.faults = {parse_fault("unit-loss@00:00:03,for=3,phase=prefill,unit=1").value(),
                      parse_fault("unit-loss@00:00:05,for=2,phase=decode,unit=0").value()};
    HardwareProfile hw = test_profile("h800");
    ASSERT_TRUE(set_profile_constant(hw, "kv.read_latency_ms", 30).ok());  // many reads in flight
    const BlockFleetResult without = run_block_fleet(hw, {}, trace, options);
    options.store_tb = 10;
    const BlockFleetResult with = run_block_fleet(hw, {}, trace, options);
    EXPECT_TRUE(with.violations.empty()) << "seed " << seed << ": " << with.violations.front();
    EXPECT_EQ(with.finished + with.expired, with.requests);
    EXPECT_GT(with.read_tokens, 0);
    EXPECT_GT(with.cached_tokens, without.cached_tokens);
    EXPECT_LE(with.hit_share(), trace_stats(trace).hit_share_bound);
    EXPECT_GT(with.store_tb_used, 0);
  }
}

}  // namespace
}  // namespace fathom::sim
