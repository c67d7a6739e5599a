// Block-exact replays, and faults on small fleets under the checkers of safety and liveness.
#include "sim/block_fleet.h"

#include <gtest/gtest.h>

#include "sim/fleet_file.h"
#include "sim/synthetic.h"
#include "sim/test_fleet.h"
#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

TEST(BlockFleet, WithoutFaultsEveryRequestIsAnsweredOnceAndNothingLeaks) {
  const BlockFleetResult result = run_block_fleet(test_profile("h800"), {}, small_load(1), small_fleet());
  expect_clean(result, "no faults");
  EXPECT_EQ(result.expired, 0);
  EXPECT_EQ(result.replays, 0);
  EXPECT_GT(result.hit_share(), 0.05);
}

TEST(BlockFleet, SameSeedSameResult) {
  BlockFleetOptions options = small_fleet();
  options.seed = 3;
  options.message_loss = 0.05;
  options.message_delay_ms_max = 200;
  options.faults.push_back({FaultKind::kUnitLoss, 2, 3, true, 1, 0, 2});
  options.faults.push_back({FaultKind::kFlashCrowd, 3, 2, true, 0, 0, 2});
  const BlockFleetResult a = run_block_fleet(test_profile("h800"), {}, small_load(3), options);
  const BlockFleetResult b = run_block_fleet(test_profile("h800"), {}, small_load(3), options);
  EXPECT_EQ(a.output_tokens, b.output_tokens);
  EXPECT_EQ(a.ended_s, b.ended_s);
  EXPECT_EQ(a.replays, b.replays);
  const auto text = [](const BlockFleetResult& r) {
    return fmt::format("{} {} {} {} {} {} {} {} {}", r.ended_s, r.output_tokens, r.cached_tokens, r.replays,
                       r.tokens_per_s_per_user, r.decode_kv_ratio, r.prefill_cost_ratio,
                       r.ttft_ms.percentile(0.99), r.gap_ms.percentile(0.99));
  };
  EXPECT_EQ(text(a), text(b));
  // Committed: another compiler, C library or machine must give the same.
  EXPECT_EQ(text(a),
            "66.030929 17749 20352 99 49.50290329430086 1.882188499546607 3.3426942367837302 947.5 571.5");
}

TEST(BlockFleet, AUnitLostAtThePeakCostsNobodyATokenTwice) {
  for (const bool decode : {false, true}) {
    BlockFleetOptions options = small_fleet();
    options.faults.push_back({FaultKind::kUnitLoss, 3, 8, decode, 1, 0, 2});
    const BlockFleetResult result = run_block_fleet(test_profile("h800"), {}, small_load(5), options);
    expect_clean(result, decode ? "decode unit" : "prefill unit");
    EXPECT_GT(result.replays, 0);
    EXPECT_EQ(result.expired, 0);
  }
}

// Each fault alone, on top of a full load: nobody loses or waits for ever.
TEST(BlockFleet, EachFaultAloneIsSurvived) {
  for (const char* text :
       {"unit-loss@00:00:01,for=3,unit=1", "unit-loss@00:00:01,for=3,unit=0,phase=prefill",
        "slow-rank@00:00:01,for=3,rank=5,factor=8", "slow-rank@00:00:01,for=3,rank=5,factor=8,phase=prefill",
        "stale-reports@00:00:01,for=3,factor=2", "flash-crowd@00:00:01,for=3,factor=2",
        "lost-registry@00:00:01,for=3"}) {
    BlockFleetOptions options = small_fleet();
    options.faults.push_back(parse_fault(text).value());
    const BlockFleetResult result = run_block_fleet(test_profile("h800"), {}, small_load(6), options);
    expect_clean(result, text);
    EXPECT_EQ(result.expired, 0) << text;
  }
}

// A unit that comes back while the registry is away gets no work before the registry is back; the rest serve
// on with the view they have.
TEST(BlockFleet, WithoutTheRegistryAReturningUnitStaysUnknown) {
  BlockFleetOptions options = small_fleet();
  options.prefill_units = 1;
  const auto run = [&](double registry_back_s) {
    BlockFleetOptions faulty = options;
    faulty.faults.push_back({FaultKind::kUnitLoss, 1, 2, true, 1, 0, 2});
    faulty.faults.push_back({FaultKind::kLostRegistry, 0.5, registry_back_s - 0.5, true, 0, 0, 2});
    return run_block_fleet(test_profile("h800"), {}, small_load(8, 40, 20), faulty);
  };
  const BlockFleetResult early = run(3), late = run(18);
  expect_clean(early, "registry back with the unit");
  expect_clean(late, "registry back much later");
  EXPECT_EQ(early.expired + late.expired, 0);
  const auto second = [](const BlockFleetResult& r) { return r.decode_dispatches[1]; };
  EXPECT_GT(second(early), 200);
  EXPECT_LT(second(late), second(early) / 2);
  // Alone, a lost registry changes nothing: nobody came or went.
  BlockFleetOptions alone = options;
  alone.faults.push_back({FaultKind::kLostRegistry, 1, 10, true, 0, 0, 2});
  const BlockFleetResult with = run_block_fleet(test_profile("h800"), {}, small_load(8), alone);
  const BlockFleetResult without = run_block_fleet(test_profile("h800"), {}, small_load(8), options);
  EXPECT_EQ(with.ended_s, without.ended_s);
  EXPECT_EQ(with.output_tokens, without.output_tokens);
}

// Admission counts tokens, ranks hold blocks: answers that all cross into a second block run a rank out of
// them, and the youngest must go and come back.
TEST(BlockFleet, TightMemoryRetractsAndStillEnds) {
  BlockFleetOptions options = small_fleet();
  options.decode_units = 1;
  options.decode_blocks_per_rank = 60;
  options.liveness_s = 0;
  SyntheticOptions load;
  load.seconds = 3;
  load.requests_per_s = 400;
  load.shared_share = 0;
  load.lengths.input_mean_tokens = 50;
  load.lengths.input_cv2 = 0.01;
  load.lengths.output_mean_tokens = 60;
  load.lengths.output_cv2 = 0.01;
  const BlockFleetResult result =
      run_block_fleet(test_profile("h800"), {}, synthetic_trace(load, 9), options);
  expect_clean(result, "tight memory");
  std::printf("tight memory: %lld retractions of %lld requests, %lld expired\n",
              static_cast<long long>(result.retractions), static_cast<long long>(result.requests),
              static_cast<long long>(result.expired));
  EXPECT_GT(result.retractions, 0);
}

// What no rank can ever hold is refused at once, by prefill's memory or by decode's, and counted; what just
// fits is served.
TEST(BlockFleet, APromptLongerThanAnyRankIsRefusedAtOnce) {
  const BlockFleetOptions options = small_fleet();  // 400 blocks to prefill in, 300 to decode in
  Trace trace{"t", 512, {}};
  constexpr int kPrefillTokens = 400 * 64, kDecodeTokens = 300 * 64;
  for (const auto& [input, output] : {std::pair{kPrefillTokens + 1, 1},
                                      {10'000'000, 5},
                                      {kDecodeTokens, 5},
                                      {100, kDecodeTokens},
                                      {kPrefillTokens, 1},
                                      {kDecodeTokens - 64, 5}}) {
    trace.requests.push_back({static_cast<int64_t>(trace.requests.size()) * 30'000'000, input, output, {}});
  }
  const BlockFleetResult result = run_block_fleet(test_profile("h800"), {}, trace, options);
  expect_clean(result, "too long");
  EXPECT_EQ(result.refused_too_long, 4);
  EXPECT_EQ(result.finished, 2);
  EXPECT_EQ(result.expired, 0);
  EXPECT_EQ(result.input_tokens, kPrefillTokens + kDecodeTokens - 64);
  EXPECT_EQ(result.metrics.total().refused_requests, 4);
  EXPECT_NEAR(result.metrics.total().ttft_attainment(10), 2.0 / 6, 1e-9);
}

// The checkers find what they are there to find: each deliberate error is reported under its rule's name.
TEST(BlockFleet, TheCheckersCanFail) {
  constexpr std::pair<BlockSabotage, const char*> kErrors[] = {
      {BlockSabotage::kLoseToken, "tokens_in_order"},
      {BlockSabotage::kRepeatToken, "tokens_once"},
      {BlockSabotage::kSecondWriter, "no_block_with_two_writers"},
      {BlockSabotage::kSkewBooks, "books_balance"},
      {BlockSabotage::kLeakBlock, "nothing_leaks"},
      {BlockSabotage::kKeepSequence, "everything_ends"},
      {BlockSabotage::kForgetRequest, "answered_by_deadline"},
      {BlockSabotage::kAnswerLate, "answered_by_deadline"},
      {BlockSabotage::kStayUnknown, "served_after_healing"},
  };
  for (const auto& [sabotage, rule] : kErrors) {
    BlockFleetOptions options = small_fleet();
    if (sabotage == BlockSabotage::kStayUnknown) {  // a lone unit, so that not being known matters
      options.prefill_units = options.decode_units = 1;
      options.faults.push_back({FaultKind::kUnitLoss, 1, 2, true, 0, 0, 2});
      options.faults.push_back({FaultKind::kLostRegistry, 0.5, 3, true, 0, 0, 2});
    }
    expect_clean(run_block_fleet(test_profile("h800"), {}, small_load(2), options), rule);
    options.sabotage = sabotage;
    const BlockFleetResult result = run_block_fleet(test_profile("h800"), {}, small_load(2), options);
    const bool found =
        std::any_of(result.violations.begin(), result.violations.end(),
                    [&](const std::string& text) { return text.find(rule) != std::string::npos; });
    EXPECT_TRUE(found) << rule << ": " << result.violations.size() << " violations, first: "
                       << (result.violations.empty() ? "none" : result.violations.front());
  }
}

// Units that a scale closes finish what they have, get nothing more, and their drain is counted.
TEST(BlockFleet, AScaledFleetDrainsBeforeItsNodesAreFree) {
  BlockFleetOptions options = small_fleet();
  options.unit_nodes = {2, 2};
  options.scale_initial = {2, 2};
  options.scale_interval_s = 2;
  std::vector<UnitCounts> drains;
  options.scale = [&](const ScaleInput& in) {
    drains.push_back(in.draining);
    EXPECT_GT(in.arrived_output_tokens_per_s, 0);
    const UnitCounts units = in.day_second < 3 ? UnitCounts{1, 1} : UnitCounts{2, 2};
    return ScaleOutput{units, units};
  };
  const BlockFleetResult scaled = run_block_fleet(test_profile("h800"), {}, small_load(7, 40, 10), options);
  expect_clean(scaled, "scaled");
  EXPECT_EQ(scaled.expired, 0);
  ASSERT_GE(drains.size(), 4u);  // at 2, 4, 6 and 8 s
  EXPECT_EQ(drains[0], (UnitCounts{0, 0}));
  ASSERT_EQ(scaled.units.size(), 3u);
  EXPECT_EQ(scaled.units[1].second, 2);
  EXPECT_EQ(scaled.units[1].units, (UnitCounts{1, 1}));
  EXPECT_EQ(scaled.units[2].units, (UnitCounts{2, 2}));
  EXPECT_GT(scaled.drain_node_seconds, 0.5);
  EXPECT_LE(scaled.nodes_peak, 8);
  options.scale = {};
  const BlockFleetResult fixed = run_block_fleet(test_profile("h800"), {}, small_load(7, 40, 10), options);
  EXPECT_LT(scaled.decode_dispatches[1], fixed.decode_dispatches[1]);
  EXPECT_NEAR(fixed.node_seconds - scaled.node_seconds, 4 * 2, 1e-6);  // one unit of each for two seconds
}

// Case B11: load data a second old, under the servers' policy and the one of the published day.
void expect_no_pile_up(DecodePolicy policy) {
  BlockFleetOptions options = small_fleet();
  options.report_delay_ms = 1000;
  options.decode_policy = policy;
  options.decode_blocks_per_rank = 4000;
  options.prefill_units = options.decode_units = 1;
  SyntheticOptions load;
  load.seconds = 10;
  load.requests_per_s = 180;
  load.shared_share = 0;
  load.lengths.input_mean_tokens = 300;
  load.lengths.input_cv2 = 0.01;
  load.lengths.output_mean_tokens = 120;
  load.lengths.output_cv2 = 0.01;
  const BlockFleetResult result =
      run_block_fleet(test_profile("h800"), {}, synthetic_trace(load, 4), options);
  expect_clean(result, "stale reports");
  std::printf("one second old reports, %s: decode requests max/mean %.3f\n",
              std::string(decode_policy_name(policy)).c_str(), result.decode_requests_ratio);
  EXPECT_LE(result.decode_requests_ratio, 1.2);
}

TEST(BlockFleet, StaleLoadDataDoesNotPileUpRequests) {
  expect_no_pile_up(DecodePolicy::kFathom);
  expect_no_pile_up(DecodePolicy::kKvCapped);
}

// A fifth of the tokens has been seen before, on ranks too small to keep what they have cached.
Trace evicting_load(uint64_t seed) {
  SyntheticOptions load;
  load.seconds = 20;
  load.requests_per_s = 30;
  load.burst_share = 0.3;
  load.lengths.input_mean_tokens = 900;
  load.lengths.input_tokens_max = 8000;
  load.lengths.output_mean_tokens = 10;
  return synthetic_trace(load, seed);
}

BlockFleetOptions evicting_fleet(int32_t blocks_per_rank) {
  BlockFleetOptions options = small_fleet();
  options.prefill_blocks_per_rank = blocks_per_rank;
  options.check_books_often = false;
  return options;
}

// A router hears of evictions, so it counts on what ranks still hold: without that it would expect 1.1 to 1.5
// times the hits. What is left: prompts that share blocks and start at once, and evictions not yet reported.
TEST(BlockFleet, RoutersExpectTheHitsThatRanksHave) {
  for (const int32_t blocks : {130, 200}) {
    for (const double delay_ms : {0.0, 50.0, 2000.0}) {
      BlockFleetOptions options = evicting_fleet(blocks);
      options.report_delay_ms = delay_ms;
      const BlockFleetResult result = run_block_fleet(test_profile("h800"), {}, evicting_load(21), options);
      expect_clean(result, "few blocks");
      const double ratio =
          static_cast<double>(result.expected_cached_tokens) / static_cast<double>(result.cached_tokens);
      std::printf("%d blocks, reports %.0f ms late: %lld evicted, hits expected over had %.3f\n", blocks,
                  delay_ms, static_cast<long long>(result.evicted_blocks), ratio);
      EXPECT_GT(result.evicted_blocks, 1000);
      EXPECT_GT(result.hit_share(), 0.1);
      EXPECT_NEAR(ratio, 1, delay_ms > 50 ? 0.08 : 0.03);
    }
  }
}

// Case C11: two routers hear the same events of the ranks, so sharing the work costs no hits, though blocks
// are evicted all the time. Over seeds: one run's hits move by some percent with any change of order.
TEST(BlockFleet, TwoRoutersHitAsOftenAsOne) {
  constexpr int kSeeds = 8;
  for (const int32_t blocks : {200, 300}) {
    double one = 0, two = 0;
    for (uint64_t seed = 21; seed < 21 + kSeeds; ++seed) {
      BlockFleetOptions options = evicting_fleet(blocks);
      const Trace load = evicting_load(seed);
      const BlockFleetResult alone = run_block_fleet(test_profile("h800"), {}, load, options);
      EXPECT_GT(alone.evicted_blocks, 500);
      one += alone.hit_share() / kSeeds;
      options.num_routers = 2;
      two += run_block_fleet(test_profile("h800"), {}, load, options).hit_share() / kSeeds;
    }
    std::printf("%d blocks, hit share: one router %.4f, two %.4f, %.4f of it\n", blocks, one, two, two / one);
    EXPECT_GT(two, 0.98 * one) << blocks << " blocks";
  }
}

// Case C3: a burst of 32k prompts with one-token answers, all before anything finishes: tokens are charged at
// dispatch, so each rank gets one.
TEST(BlockFleet, ABurstOfLongPromptsSpreadsOverTheRanks) {
  BlockFleetOptions options = small_fleet();
  options.prefill_blocks_per_rank = 1200;
  options.prefill_units = options.decode_units = 1;
  options.report_delay_ms = 5000;
  Trace burst{"burst", 512, {}};
  for (int i = 0; i < options.prefill_ranks; ++i) burst.requests.push_back({i * int64_t{1000}, 32768, 1, {}});
  const BlockFleetResult result = run_block_fleet(test_profile("h800"), {}, burst, options);
  expect_clean(result, "burst");
  const double alone_ms = [&] {
    Trace one = burst;
    one.requests.resize(1);
    return run_block_fleet(test_profile("h800"), {}, one, options).ttft_ms.percentile(1);
  }();
  EXPECT_LT(result.ttft_ms.percentile(1), alone_ms * 1.2);
}

// Case C5: 99 % of a prompt lies on one of 32 idle ranks, 0 % on the others. The 99 % wins.
TEST(BlockFleet, TheLongerPrefixWinsOnIdleRanks) {
  BlockFleetOptions options = small_fleet();
  options.prefill_blocks_per_rank = options.decode_blocks_per_rank = 2000;
  Trace trace{"prefix", 512, {}};
  for (int turn = 0; turn < 2; ++turn) {
    TraceRequest request{turn * int64_t{30'000'000}, 100 * 512, 4, {}};
    for (uint32_t b = 0; b < 100; ++b)
      request.blocks.push_back(b < 99 ? b : 1000 + static_cast<uint32_t>(turn));
    trace.requests.push_back(request);
  }
  const BlockFleetResult result = run_block_fleet(test_profile("h800"), {}, trace, options);
  expect_clean(result, "prefix");
  EXPECT_EQ(result.cached_tokens, 99 * 512);
}

// 64 % of what 16 ranks prefill, no prompt seen before.
Trace distinct_prompts() {
  SyntheticOptions load;
  load.seconds = 30;
  load.requests_per_s = 40;
  load.shared_share = 0;
  load.lengths.input_mean_tokens = 2000;
  load.lengths.input_cv2 = 0.2;
  load.lengths.output_mean_tokens = 10;
  return synthetic_trace(load, 2);
}

// Case C1: prompts nobody has seen go by load, not by what a rank has cached. The least loaded rank is never
// more than a prompt behind, and loads fall by what a forward computes: over any time two ranks get the same
// tokens but for one forward and a prompt on either side.
TEST(BlockFleet, C1_DistinctPromptsSpreadEvenly) {
  BlockFleetOptions options = small_fleet();
  options.prefill_units = options.decode_units = 1;
  const Trace load = distinct_prompts();
  const BlockFleetResult result = run_block_fleet(test_profile("h800"), {}, load, options);
  expect_clean(result, "distinct prompts");
  const std::vector<int64_t>& tokens = result.prefill_tokens;
  const auto [least, most] = std::minmax_element(tokens.begin(), tokens.end());
  int32_t longest = 0;
  for (const TraceRequest& r : load.requests) longest = std::max(longest, r.input_tokens);
  std::printf("distinct prompts: %lld to %lld tokens a rank, the longest prompt has %d\n",
              static_cast<long long>(*least), static_cast<long long>(*most), longest);
  EXPECT_LE(*most - *least, options.chunk_tokens + 2 * longest);
  options.prefill_policy = PrefillPolicy::kLeastTokens;  // looks at load only
  const BlockFleetResult by_load = run_block_fleet(test_profile("h800"), {}, load, options);
  EXPECT_LE(result.prefill_tokens_ratio, by_load.prefill_tokens_ratio * 1.05);  // it evens cost, not tokens
}

// The other half of C1: a unit that comes back with an empty cache is the newest worker, and gets its share,
// not the stream.
TEST(BlockFleet, C1_TheNewestWorkerGetsItsShare) {
  BlockFleetOptions options = small_fleet();
  options.decode_units = 1;
  options.faults.push_back({FaultKind::kUnitLoss, 5, 5, false, 1, 0, 2});
  const BlockFleetResult result = run_block_fleet(test_profile("h800"), {}, distinct_prompts(), options);
  expect_clean(result, "newest worker");
  int64_t of_unit[2] = {};
  for (size_t i = 0; i < result.prefill_tokens.size(); ++i) of_unit[i / 16] += result.prefill_tokens[i];
  const double share = static_cast<double>(of_unit[1]) / static_cast<double>(of_unit[0] + of_unit[1]);
  std::printf("the unit that was away for a sixth of the time gets %.3f of the tokens\n", share);
  EXPECT_LE(share, 0.5);
  EXPECT_GE(share, 0.5 * (1 - 7.0 / 30));  // away, and a second or two until that and the return are known
}

TEST(FleetFile, ReadsAndNamesWhatIsWrong) {
  BlockFleetOptions options;
  EXPECT_TRUE(
      read_fleet_file("f.toml", "expert_slots = 288\n[prefill]\nunits = 2\nranks = 16\n[decode]\n", options)
          .ok());
  EXPECT_EQ(options.prefill_units, 2);
  EXPECT_EQ(read_fleet_file("f.toml", "[decode]\nranks = 100\n[prefill]\n", options).message(),
            "f.toml:1: decode.ranks: 288 expert slots do not divide over 100 ranks");
  EXPECT_EQ(read_fleet_file("f.toml", "[decode]\nunits = 0\n", options).message(),
            "f.toml:2: decode.units: 0 is outside 1..1000");
  EXPECT_EQ(read_fleet_file("f.toml", "expert_slots = 100\n", options).message(),
            "f.toml:1: expert_slots: 100 is outside 256..4096");
  EXPECT_EQ(read_fleet_file("f.toml", "[decode]\nranks = 1\nranks = 2\n", options).message().substr(0, 15),
            "f.toml:3: toml:");
  EXPECT_EQ(read_fleet_file("f.toml", "\n[decode]\nrank = 1\n", options).message(),
            "f.toml:3: decode.rank: unknown key");
  EXPECT_EQ(read_fleet_file("f.toml", "", options).message(),
            "f.toml:1: prefill: missing, a fleet has sections [prefill] and [decode]");
  EXPECT_EQ(read_fleet_file("f.toml", "[prefill]\nunits = 2\n", options).message(),
            "f.toml:1: decode: missing, a fleet has sections [prefill] and [decode]");
}

TEST(BlockFleet, NamesAProfileWithoutRoomAndAFleetTooLarge) {
  HardwareProfile hw = test_profile("h800");
  BlockFleetOptions options;
  EXPECT_TRUE(validate_block_fleet(hw, {}, options).ok());
  options.decode_blocks_per_rank = options.prefill_blocks_per_rank = 1 << 24;
  EXPECT_NE(validate_block_fleet(hw, {}, options).message().find("blocks_per_rank"), std::string::npos);
  options = {};
  hw.hbm_gb = 30;
  EXPECT_NE(validate_block_fleet(hw, {}, options).message().find("hardware.hbm_gb: 30 GB leave room for"),
            std::string::npos);
}

TEST(FleetFile, APlaceIsTheLineOfAKeyOrOfItsSection) {
  const std::string text = "\n[decode]\nunits = 2\nblocks_per_rank = 9\n[prefill]\n";
  EXPECT_EQ(fleet_place("f.toml", text, "decode.blocks_per_rank"), "f.toml:4: decode.blocks_per_rank");
  EXPECT_EQ(fleet_place("f.toml", text, "prefill.ranks"), "f.toml:5: prefill.ranks");
  EXPECT_EQ(fleet_place("f.toml", "", "prefill.ranks"), "f.toml:1: prefill.ranks");
  BlockFleetOptions options;
  const std::string large = "[decode]\nunits = 1000\nranks = 288\nblocks_per_rank = 16777216\n[prefill]\n";
  ASSERT_TRUE(read_fleet_file("f.toml", large, options).ok());
  EXPECT_TRUE(validate_block_fleet(test_profile("h800"), {}, options)
                  .message()
                  .starts_with("f.toml:4: decode.blocks_per_rank: "));
  ASSERT_TRUE(read_fleet_file(
                  "f.toml", "[prefill]\nranks = 288\nunits = 1000\nblocks_per_rank = 8\n[decode]\n", options)
                  .ok());
  EXPECT_EQ(validate_block_fleet(test_profile("h800"), {}, options).message(),
            "f.toml:3: prefill.units: 288000 prefill ranks in all, a router knows at most 65520");
}

TEST(FleetFile, FaultsAsText) {
  const Fault fault = parse_fault("unit-loss@00:05:30,for=60,phase=prefill,unit=1").value();
  EXPECT_EQ(fault.kind, FaultKind::kUnitLoss);
  EXPECT_EQ(fault.at_s, 330);
  EXPECT_EQ(fault.for_s, 60);
  EXPECT_FALSE(fault.decode);
  EXPECT_EQ(fault.unit, 1);
  EXPECT_FALSE(parse_fault("unit-loss").ok());
  EXPECT_FALSE(parse_fault("flood@00:10").ok());
  EXPECT_EQ(parse_fault("unit-loss@120:00").value().at_s, 120 * 3600);
  const auto error = [](const char* text) { return parse_fault(text).status().message(); };
  for (const char* text : {"unit-loss@", "unit-loss@10", "unit-loss@10:", "unit-loss@:10", "unit-loss@00:60",
                           "unit-loss@1:2:3:4", "unit-loss@00:0.5", "unit-loss@1e1:00", "unit-loss@-1:00"}) {
    EXPECT_EQ(error(text), fmt::format("--fault: \"{}\": expected KIND@HH:MM[:SS]", text));
  }
  const std::string head = "--fault: \"slow-rank@00:10,";
  EXPECT_EQ(error("slow-rank@00:10,factor=x"), head + "factor=x\": factor: \"x\" is not a number");
  EXPECT_EQ(error("slow-rank@00:10,factor=nan"), head + "factor=nan\": factor: nan is outside 1..1000");
  EXPECT_EQ(error("slow-rank@00:10,unit=1.5"),
            head + "unit=1.5\": unit: \"1.5\" is not a whole number from 0");
  EXPECT_EQ(error("slow-rank@00:10,unit=1,unit=2"), head + "unit=1,unit=2\": unit: given twice");
  EXPECT_EQ(error("slow-rank@00:10,for=0"), head + "for=0\": for: not within 0..1e6 seconds");
  EXPECT_EQ(error("lost-registry@00:10,unit=1"),
            "--fault: \"lost-registry@00:10,unit=1\": unit: not a key of this fault, which takes for");
}

}  // namespace
}  // namespace fathom::sim
