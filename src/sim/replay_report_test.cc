// The report of a block-exact replay: its figures, charts, files and bytes; and the first part of Mooncake's
// conversations under every prefill policy.
#include "sim/replay_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "sim/day_report.h"
#include "sim/fleet_file.h"
#include "sim/synthetic.h"
#include "sim/test_fleet.h"
#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

BlockFleetOptions small_fleet() {
  BlockFleetOptions options = two_by_sixteen_ranks();
  options.unit_nodes = {2, 2};
  return options;
}

Trace small_load(uint64_t seed) {
  SyntheticOptions options;
  options.seconds = 10;
  options.requests_per_s = 40;
  options.lengths.input_mean_tokens = 900;
  options.lengths.input_tokens_max = 8000;
  options.lengths.output_mean_tokens = 60;
  return synthetic_trace(options, seed);
}

ReplayRun run_of(const Trace& trace, const BlockFleetOptions& options) {
  ReplayRun run{fmt::format("{} / {}", prefill_policy_name(options.prefill_policy),
                            decode_policy_name(options.decode_policy)),
                options,
                {}};
  run.result = run_block_fleet(test_profile("h800"), {}, trace, options);
  return run;
}

double value(const Report& report, const char* name) {
  const Figure* figure = report.find(name);
  EXPECT_NE(figure, nullptr) << name;
  return figure != nullptr ? figure->value : std::nan("");
}

// TOML allows no DEL between its quotes, JSON either spelling.
TEST(Report, EscapesEveryControlCharacter) { EXPECT_EQ(json_escape("a\x7f\n\"é"), "a\\u007f\\u000a\\\"é"); }

// Units lost, deadlines, retractions: what the cells say is what the run's own sums say.
TEST(Replay, CellsAddUpToTheRun) {
  BlockFleetOptions options = small_fleet();
  options.decode_blocks_per_rank = 140;
  options.deadline_s = 8;
  options.faults.push_back({FaultKind::kUnitLoss, 3, 20, true, 1, 0, 2});
  options.faults.push_back({FaultKind::kFlashCrowd, 4, 4, true, 0, 0, 3});
  const BlockFleetResult r = run_of(small_load(5), options).result;
  const FleetCell t = r.metrics.total();
  EXPECT_GT(r.expired, 0);
  EXPECT_GT(r.replays, 0);
  EXPECT_GT(t.admission_waits, 0);
  EXPECT_EQ(t.arrived_requests, r.requests);
  EXPECT_EQ(t.finished_requests, r.finished);
  EXPECT_EQ(t.expired_requests, r.expired);
  EXPECT_EQ(t.cached_tokens, r.cached_tokens);
  EXPECT_EQ(t.replays, r.replays);
  EXPECT_EQ(t.retractions, r.retractions);
  EXPECT_EQ(t.refused_offers, r.refused_offers);
  EXPECT_EQ(t.ttft_ms.total(), r.ttft_ms.total());
  EXPECT_EQ(t.ttft_ms.percentile(0.9), r.ttft_ms.percentile(0.9));
  EXPECT_EQ(t.ttft_ms.total() + static_cast<uint64_t>(t.expired_without_token),
            static_cast<uint64_t>(r.requests));
  EXPECT_LE(t.queue_ms.percentile(0.9), t.ttft_ms.percentile(0.9));
  EXPECT_NEAR(t.tokens_x_speed / t.tokens, r.tokens_per_s_per_user, 1e-9);
  EXPECT_LE(t.good_output_tokens, t.finished_output_tokens);
  EXPECT_LE(r.metrics.cells.size(), GrowingCells::kCellsMax);
  EXPECT_GE(t.decode_node_seconds + t.prefill_node_seconds, r.node_seconds);
  EXPECT_LE(t.kv_milli_max / kMilli, r.kv_room_tokens);
}

TEST(Replay, ProgressMovesWithinARun) {
  const Trace trace = small_load(2);
  std::vector<double> told;
  run_block_fleet(test_profile("h800"), {}, trace, small_fleet(), [&](double done) { told.push_back(done); });
  EXPECT_GT(told.size(), 100u);
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
  EXPECT_EQ(told.back(), 1);
}

// What is named as on the published day means the same; the objectives are the run's own.
TEST(Replay, HasTheDaysFiguresAndCharts) {
  const Trace trace = small_load(3);
  BlockFleetOptions options = small_fleet();
  const ReplayRun run = run_of(trace, options);
  const HardwareProfile hw = test_profile("h800");
  const Report report = replay_report(hw, {}, trace, {run});
  const double hours = run.result.last_arrival_s / 3600;
  EXPECT_NEAR(value(report, "nodes_mean"), 8, 1e-9);
  EXPECT_NEAR(value(report, "node_hours"), 8 * hours, 1e-9);
  EXPECT_NEAR(value(report, "cost_usd"), 8 * hours * hw.gpus_per_node * hw.price_usd_per_gpu_hour, 1e-9);
  const BlockFleetResult& r = run.result;
  EXPECT_NEAR(value(report, "theoretical_income_usd"),
              (0.14 * static_cast<double>(r.cached_tokens) +
               0.55 * static_cast<double>(r.input_tokens - r.cached_tokens) +
               2.19 * static_cast<double>(r.output_tokens)) /
                  1e6,
              1e-9);
  // A token's KV is its prompt and what was said so far: between the shortest and the longest there is.
  EXPECT_GT(value(report, "kv_tokens_per_output_token"), 300);
  EXPECT_LT(value(report, "kv_tokens_per_output_token"), 9000);
  for (const char* name : {"queue_wait_s_p50", "queue_wait_s_p90", "queue_wait_s_p99"})
    EXPECT_LT(value(report, name), value(report, "ttft_s_p99")) << name;
  EXPECT_EQ(value(report, "slo_ttft_attainment"), 1);
  EXPECT_EQ(report.find("nodes_mean")->origin, Origin::kInput);
  EXPECT_EQ(report.find("hit_share")->origin, Origin::kPrediction);
  EXPECT_GE(report.charts.size(), 14u);
  ASSERT_EQ(report.timelines.size(), 1u);
  EXPECT_GE(report.timelines[0].bars.size(), 6u);
  const std::string page = report_html(report);
  EXPECT_EQ(page.find("nan"), std::string::npos);
  EXPECT_NE(page.find("<td>prediction</td>"), std::string::npos);
  options.slo_ttft_s = 0.05, options.slo_tokens_per_s_per_user = 1000;
  const Report strict = replay_report(hw, {}, trace, {run_of(trace, options)});
  EXPECT_LT(value(strict, "slo_ttft_attainment"), 0.5);
  EXPECT_EQ(value(strict, "slo_speed_attainment"), 0);
  EXPECT_LT(value(strict, "goodput_share"), value(report, "goodput_share"));
}

TEST(Replay, AScaledOneSaysWhatItFreedAndWhen) {
  const Trace trace = small_load(7);
  BlockFleetOptions options = small_fleet();
  options.scale_initial = {2, 2};
  options.scale_interval_s = 2;
  options.scale = [](const ScaleInput& in) {
    const UnitCounts units = in.day_second < 3 ? UnitCounts{1, 1} : UnitCounts{2, 2};
    return ScaleOutput{units, units};
  };
  const ReplayRun run = run_of(trace, options);
  ReplaySetting setting;
  setting.scale = "autoscale";
  setting.budget_nodes = 10;
  const Report report = replay_report(test_profile("h800"), {}, trace, {run}, setting);
  const double whole = 10 * run.result.last_arrival_s / 3600;
  EXPECT_NEAR(value(report, "node_hours_freed"),
              whole - value(report, "node_hours") - value(report, "drain_node_hours"), 1e-9);
  EXPECT_GT(value(report, "node_hours_freed"), whole * 0.2);
  EXPECT_EQ(report.find("node_hours")->origin, Origin::kPrediction);
  const auto units = std::find_if(report.csv_files.begin(), report.csv_files.end(),
                                  [](const CsvFile& file) { return file.name == "units.csv"; });
  ASSERT_NE(units, report.csv_files.end());
  EXPECT_EQ(units->text, "from,nodes,decode_units,prefill_units\n00:00,8,2,2\n00:00,4,1,1\n00:00,8,2,2\n");
}

// A part of each hour against what the whole trace tells; what it does not tell is named.
TEST(Replay, AFractionSaysItsBias) {
  const Trace whole = small_load(6);
  const Trace part = first_part_of_each_hour(whole, 0.5, 4).value();  // hours of four seconds
  const ReplayRun run = run_of(part, small_fleet());
  ReplaySetting setting;
  setting.fraction = 0.5;
  setting.share = 0.55;
  setting.whole_requests = static_cast<int64_t>(whole.requests.size());
  for (const TraceRequest& r : whole.requests) {
    setting.whole_input_tokens += r.input_tokens;
    setting.whole_output_tokens += r.output_tokens;
  }
  setting.whole_hit_share_bound = trace_stats(whole).hit_share_bound;
  setting.whole_nodes_mean = 10;
  const Report report = replay_report(test_profile("h800"), {}, part, {run}, setting);
  int64_t input = 0, output = 0;
  for (const TraceRequest& r : part.requests) input += r.input_tokens, output += r.output_tokens;
  ASSERT_EQ(run.result.finished, run.result.requests);
  EXPECT_NEAR(value(report, "bias_input_tokens_percent"),
              100 * (static_cast<double>(input) / 0.55 / setting.whole_input_tokens - 1), 1e-9);
  EXPECT_NEAR(value(report, "bias_output_tokens_percent"),
              100 * (static_cast<double>(output) / 0.55 / setting.whole_output_tokens - 1), 1e-9);
  EXPECT_LT(value(report, "bias_hit_share_bound_percent"), 0);  // conversations lose their beginnings
  EXPECT_NEAR(value(report, "bias_nodes_percent"), -20, 1e-9);
  EXPECT_EQ(report.facts.back(),
            (std::pair<std::string, std::string>{kBiasNotEstimated,
                                                 "speed, waits, hits and balance of the whole trace"}));
  setting.fraction = setting.share = 1;
  const Report all = replay_report(test_profile("h800"), {}, part, {run}, setting);
  EXPECT_EQ(all.find("bias_input_tokens_percent"), nullptr);
  EXPECT_NE(all.facts.back().first, kBiasNotEstimated);
}

TEST(Replay, PoliciesAndSeedsHaveChartsOfTheirOwn) {
  const Trace trace = small_load(3);
  std::vector<ReplayRun> runs;
  for (const DecodePolicy policy : {DecodePolicy::kFathom, DecodePolicy::kRandom}) {
    BlockFleetOptions options = small_fleet();
    options.decode_policy = policy;
    runs.push_back(run_of(trace, options));
  }
  const HardwareProfile hw = test_profile("h800");
  Report report = replay_report(hw, {}, trace, runs);
  const auto chart = [&](std::string_view title) {
    const auto found = std::find_if(report.charts.begin(), report.charts.end(),
                                    [&](const Chart& c) { return c.title == title; });
    return found != report.charts.end() ? found->series.size() : 0;
  };
  EXPECT_EQ(chart("KV over decode ranks, by balancer"), 2u);
  const Trace other = small_load(4);
  const Report second = replay_report(hw, {}, other, {run_of(other, small_fleet())});
  add_seed_spread(report, {report, second});
  EXPECT_EQ(chart("User speed over 2 seeds"), 3u);
  EXPECT_NEAR(value(report, "ttft_s_p50_seed_mean"),
              (value(report, "ttft_s_p50") + value(second, "ttft_s_p50")) / 2, 1e-9);
}

TEST(Replay, ComparisonListsWhatOnlyTheOtherRunHasSet) {
  Report report;
  report.facts = {{"seed", "1"}, {"burst", "0.5"}};
  Summary other;
  other.facts = {{"seed", "1"}, {"budget_nodes", "200"}};
  const Table table = compare_table(report, other, "other");
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[0], (std::vector<std::string>{"burst", "0.5", "-", "set differently"}));
  EXPECT_EQ(table.rows[1], (std::vector<std::string>{"budget_nodes", "-", "200", "set differently"}));
}

// The bytes themselves: another compiler, C library or machine must give the same. Changes with anything that
// changes a result or a word of the report.
TEST(Replay, SameSeedSameBytes) {
  const auto bytes = [](uint64_t seed) {
    const Trace trace = small_load(seed);
    BlockFleetOptions options = small_fleet();
    options.seed = seed;
    const Report report = replay_report(test_profile("h800"), {}, trace, {run_of(trace, options)});
    std::string text = summary_json(report) + report_html(report);
    for (const CsvFile& file : report.csv_files) text += file.text;
    return text;
  };
  const std::string first = bytes(1);
  EXPECT_EQ(first, bytes(1));
  EXPECT_NE(first, bytes(2));
  EXPECT_EQ(fmt::format("{:016x}", hash_bytes(first)), "40322df5a9a17d78");
}

// Prompt tokens of whole 64-token blocks that some earlier prompt had at the same place, but never a prompt's
// last token: no cache, however large, knows more. The trace's blocks of 512 hold eight each.
double hit_share_bound(const Trace& trace) {
  std::set<std::pair<uint32_t, int>> known;
  double hits = 0, tokens = 0;
  for (const TraceRequest& r : trace.requests) {
    const int whole = r.input_tokens / 64, matchable = (r.input_tokens - 1) / 64;
    const auto block = [&](int i) { return std::pair{r.blocks[static_cast<size_t>(i / 8)], i % 8}; };
    int matched = 0;
    while (matched < matchable && known.contains(block(matched))) ++matched;
    for (int i = 0; i < whole; ++i) known.insert(block(i));
    hits += 64.0 * matched;
    tokens += r.input_tokens;
  }
  return hits / tokens;
}

TEST(Replay, MooncakeOursHitsMostAndNobodyPassesTheInfiniteCache) {
  constexpr size_t kRequests = 800;
  Trace trace = parse_trace("mooncake_conversation.jsonl",
                            read_file_for_test(source_path("data/mooncake_conversation.jsonl")).value())
                    .value();
  trace.requests.resize(kRequests);
  const std::string fleet = "profiles/fleets/conversation.toml";
  BlockFleetOptions options;
  ASSERT_TRUE(read_fleet_file(fleet, read_file_for_test(source_path(fleet)).value(), options).ok());
  options.rate_scale = 10;
  const double bound = hit_share_bound(trace);
  double ours = 0, best_other = 0;
  for (const PrefillPolicy policy :
       {PrefillPolicy::kRandom, PrefillPolicy::kRoundRobin, PrefillPolicy::kLeastRequests,
        PrefillPolicy::kLeastTokens, PrefillPolicy::kFathom}) {
    options.prefill_policy = policy;
    const BlockFleetResult result = run_block_fleet(test_profile("h800"), {}, trace, options);
    std::printf("%-14s hits %.3f of a bound of %.3f\n", std::string(prefill_policy_name(policy)).c_str(),
                result.hit_share(), bound);
    EXPECT_EQ(result.finished, static_cast<int64_t>(kRequests));
    EXPECT_LE(result.hit_share(), bound);
    EXPECT_GT(result.hit_share(), 0);
    (policy == PrefillPolicy::kFathom ? ours : best_other) =
        std::max(policy == PrefillPolicy::kFathom ? ours : best_other, result.hit_share());
  }
  EXPECT_GT(ours, best_other);
  EXPECT_NEAR(trace_stats(trace).hit_share_bound, bound, 0.01);  // what reports print beside it
}

}  // namespace
}  // namespace fathom::sim
