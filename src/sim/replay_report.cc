// Replays side by side: policies, their balance, hits and waits.
#include "sim/replay_report.h"

namespace fathom::sim {
namespace {

void add_figures(const BlockFleetResult& r, const TraceStats& stats, const ReplaySetting& setting,
                 Report& report) {
  const auto add = [&](const char* name, double value, std::string note = {}) {
    report.figures.push_back({name, value, Origin::kPrediction, {}, std::move(note)});
  };
  const auto add_sum = [&](const char* name, int64_t value, std::string note = {}) {
    add(name, static_cast<double>(value) / setting.share, std::move(note));
  };
  add_sum("requests", r.requests);
  add_sum("finished_requests", r.finished);
  add_sum("expired_requests", r.expired, "told so at their deadline");
  add_sum("input_tokens", r.input_tokens);
  add_sum("output_tokens", r.output_tokens);
  add("hit_share", r.hit_share());
  add("hit_share_bound", stats.hit_share_bound, "a cache that forgets nothing and that every rank shares");
  add("ttft_s_p50", r.ttft_ms.percentile(0.5) / 1e3);
  add("ttft_s_p90", r.ttft_ms.percentile(0.9) / 1e3);
  add("ttft_s_p99", r.ttft_ms.percentile(0.99) / 1e3);
  add("token_gap_ms_p50", r.gap_ms.percentile(0.5));
  add("token_gap_ms_p99", r.gap_ms.percentile(0.99));
  add("decode_tokens_per_s_per_user", r.tokens_per_s_per_user);
  add("prefill_tokens_max_over_mean", r.prefill_tokens_ratio, "over ranks, busy forwards");
  add("prefill_cost_max_over_mean", r.prefill_cost_ratio);
  add("kv_max_over_mean", r.decode_kv_ratio, "over decode ranks");
  add("requests_max_over_mean", r.decode_requests_ratio);
  add_sum("replays", r.replays);
  add_sum("retractions", r.retractions);
  add_sum("refused_offers", r.refused_offers);
  add_sum("stale_tokens_dropped", r.stale_tokens);
  add("node_hours", r.node_seconds / 3600 / setting.share, "serving and starting, until the last arrival");
  add("drain_node_hours", r.drain_node_seconds / 3600, "beside node_hours, not scaled");
  add("nodes_peak", r.nodes_peak, "at one instant: serving, starting and draining");
  if (setting.fraction < 1) {
    const auto bias = [&](double part, double whole) {
      return whole > 0 ? 100 * (part / setting.share / whole - 1) : 0;
    };
    add("bias_requests_percent",
        bias(static_cast<double>(r.requests), static_cast<double>(setting.whole_requests)),
        "this run's requests, scaled, against the whole trace's");
    add("bias_output_tokens_percent",
        bias(static_cast<double>(r.output_tokens), setting.whole_output_tokens));
  }
  add("violations", static_cast<double>(r.violations.size()), "of the safety and liveness rules; must be 0");
  add("simulated_s", r.ended_s);
}

}  // namespace

Report replay_report(const HardwareProfile& hw, const Trace& trace, const std::vector<ReplayRun>& runs,
                     const ReplaySetting& setting) {
  const TraceStats stats = trace_stats(trace);
  Report report;
  report.title = fmt::format("Replay of {}", trace.name);
  report.lead = fmt::format(
      "{} requests over {:.0f} s, {:.0f} tokens in (at most {}), {:.0f} out on average. Block-exact: the "
      "servers' "
      "balancers, step plans, KV books and hand-over; time, network and the forward pass are models.",
      trace.requests.size(), stats.duration_s, stats.input_mean, stats.input_max, stats.output_mean);
  const BlockFleetOptions& o = runs.front().options;
  report.facts = {{"trace", trace.name},
                  {"profile", hw.name},
                  {"profile_kind", hw.kind},
                  {"profile_hash", hw.hash},
                  {"prefill_policy", std::string(prefill_policy_name(o.prefill_policy))},
                  {"decode_policy", std::string(decode_policy_name(o.decode_policy))},
                  {"fleet", fmt::format("{} x {} prefill, {} x {} decode ranks", o.prefill_units,
                                        o.prefill_ranks, o.decode_units, o.decode_ranks)},
                  {"report_delay_ms", fmt::format("{}", o.report_delay_ms)},
                  {"rate_scale", fmt::format("{}", o.rate_scale)},
                  {"scale_policy", setting.scale},
                  {"fraction", fmt::format("{}", setting.fraction)},
                  {"seed", fmt::format("{}", o.seed)}};
  add_figures(runs.front().result, stats, setting, report);
  Table table{"Policies side by side",
              fmt::format("No policy can hit more than {:.1f} %: prompt tokens in whole blocks seen before.",
                          stats.hit_share_bound * 100),
              {"policies", "hit share", "of the bound", "prefill tokens max/mean", "prefill cost max/mean",
               "decode KV max/mean", "requests max/mean", "first token p50 s", "p99 s", "tokens/s per user"},
              {}};
  std::string csv =
      "policies,hit_share,hit_share_bound,prefill_tokens_max_over_mean,prefill_cost_max_over_mean,kv_max_"
      "over_mean,"
      "requests_max_over_mean,ttft_s_p50,ttft_s_p99,decode_tokens_per_s_per_user\n";
  for (const ReplayRun& run : runs) {
    const BlockFleetResult& r = run.result;
    const double of_bound = stats.hit_share_bound > 0 ? r.hit_share() / stats.hit_share_bound : 1;
    table.rows.push_back(
        {run.name, fmt::format("{:.1f} %", r.hit_share() * 100), fmt::format("{:.0f} %", of_bound * 100),
         fmt::format("{:.3f}", r.prefill_tokens_ratio), fmt::format("{:.3f}", r.prefill_cost_ratio),
         fmt::format("{:.3f}", r.decode_kv_ratio), fmt::format("{:.3f}", r.decode_requests_ratio),
         fmt::format("{:.2f}", r.ttft_ms.percentile(0.5) / 1e3),
         fmt::format("{:.2f}", r.ttft_ms.percentile(0.99) / 1e3),
         fmt::format("{:.1f}", r.tokens_per_s_per_user)});
    csv += fmt::format("{},{},{},{},{},{},{},{},{},{}\n", run.name, r.hit_share(), stats.hit_share_bound,
                       r.prefill_tokens_ratio, r.prefill_cost_ratio, r.decode_kv_ratio,
                       r.decode_requests_ratio, r.ttft_ms.percentile(0.5) / 1e3,
                       r.ttft_ms.percentile(0.99) / 1e3, r.tokens_per_s_per_user);
  }
  report.tables.push_back(std::move(table));
  report.csv_files.push_back({"policies.csv", std::move(csv)});
  if (!setting.scale_log.empty()) {
    Table log{"What the autoscaler did", "", {"decision"}, {}};
    for (const std::string& line : setting.scale_log) log.rows.push_back({line});
    report.tables.push_back(std::move(log));
  }
  if (!runs.front().result.violations.empty()) {
    Table broken{"Broken rules", "", {"what"}, {}};
    for (const std::string& text : runs.front().result.violations) broken.rows.push_back({text});
    report.tables.push_back(std::move(broken));
  }
  return report;
}

}  // namespace fathom::sim
