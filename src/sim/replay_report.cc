// Figures, charts, tables and CSV files of replays, each figure with its mark of input or prediction.
#include "sim/replay_report.h"

#include <algorithm>
#include <cmath>

namespace fathom::sim {
namespace {

constexpr double kHourSeconds = 3600;

double ratio(double a, double b) { return b != 0 ? a / b : 0; }

class ReplayFigures {
 public:
  ReplayFigures(const HardwareProfile& hw, const TraceStats& stats, const ReplayRun& run,
                const ReplaySetting& setting, const TokenPrices& prices, Report& report)
      : hw_(hw),
        stats_(stats),
        options_(run.options),
        r_(run.result),
        t_(run.result.metrics.total()),
        setting_(setting),
        prices_(prices),
        report_(report) {}

  void add_all() {
    requests_and_tokens();
    if (options_.store_tb > 0) store();
    nodes_and_money();
    what_users_feel();
    balance();
    what_went_wrong();
    bias();
    add("violations", static_cast<double>(r_.violations.size()),
        "of the safety and liveness rules; must be 0");
    add("simulated_s", r_.ended_s);
  }

 private:
  void add(const char* name, double value, std::string note = {}, Origin origin = Origin::kPrediction) {
    report_.figures.push_back({name, value, origin, {}, std::move(note)});
  }
  // Of what is counted until the last arrival. Requests that all arrive at once leave no time to count over.
  double over_arrivals(double value) const { return r_.last_arrival_s > 0 ? value : std::nan(""); }
  double nodes_mean() const { return over_arrivals(ratio(r_.node_seconds, r_.last_arrival_s)); }
  void add_sum(const char* name, int64_t value, std::string note = {}, Origin origin = Origin::kPrediction) {
    add(name, static_cast<double>(value) / setting_.share, std::move(note), origin);
  }

  void requests_and_tokens() {
    add_sum("requests", r_.requests, "the load", Origin::kInput);
    add_sum("finished_requests", r_.finished);
    add_sum("expired_requests", r_.expired, "told so at their deadline");
    add_sum(
        "refused_requests", r_.refused_too_long,
        "told so at once: with their answer longer than any rank's memory; their tokens are counted nowhere");
    add_sum("input_tokens", r_.input_tokens, "the load", Origin::kInput);
    add_sum("output_tokens", r_.output_tokens, "of all answers, also those that ran into their deadline");
    add("hit_share", r_.hit_share());
    add("hit_share_bound", stats_.hit_share_bound,
        "a cache that forgets nothing and that every rank shares; follows from the load", Origin::kInput);
  }

  void store() {
    add("store_hit_share", ratio(static_cast<double>(r_.read_tokens), static_cast<double>(r_.input_tokens)),
        "of hit_share: read from the external KV store, the rest was in a rank's memory");
    const double gb = static_cast<double>(r_.read_tokens) * ModelShape{}.kv_bytes_per_token() / 1e9;
    add("store_read_gb_per_s", over_arrivals(ratio(gb, r_.last_arrival_s)), "mean, of all prefill ranks");
    for (const auto& [name, p] : {std::pair{"store_read_ms_p50", 0.5}, {"store_read_ms_p99", 0.99}})
      add(name, r_.read_us.percentile(p) / 1e3,
          "until a prompt's blocks are there; its rank computes others meanwhile");
    add_sum("store_reads_left_out", r_.reads_left_out, "computing was sooner");
    add("store_used_tb", r_.store_tb_used, "at the end");
    add_sum("store_evicted_blocks", r_.store_evicted_blocks);
  }

  void nodes_and_money() {
    const bool autoscaled = setting_.scale == "autoscale";
    const Origin origin = autoscaled ? Origin::kPrediction : Origin::kInput;
    const std::string note = autoscaled                     ? "the autoscaler's choice"
                             : setting_.scale == "schedule" ? "the schedule"
                                                            : "all units of the fleet";
    const double hours = r_.last_arrival_s / kHourSeconds / setting_.share;
    const double node_hours = over_arrivals(r_.node_seconds / kHourSeconds / setting_.share);
    const double drains = r_.drain_node_seconds / kHourSeconds;
    add("nodes_mean", nodes_mean(), note, origin);
    add("node_hours", node_hours, "serving and starting, until the last arrival", origin);
    add("drain_node_hours", drains, "beside node_hours, not scaled");
    add("nodes_peak", r_.nodes_peak, "at one instant: serving, starting and draining", origin);
    if (autoscaled) {
      add("node_hours_freed", hours * setting_.budget_nodes - node_hours - drains,
          fmt::format("of a budget of {} nodes, left to others: neither serving, starting nor draining",
                      setting_.budget_nodes));
    }
    const double cost = node_hours * hw_.gpus_per_node * hw_.price_usd_per_gpu_hour;
    const double output = static_cast<double>(r_.output_tokens) / setting_.share;
    add("cost_usd", cost, fmt::format("{} USD per GPU hour", hw_.price_usd_per_gpu_hour), origin);
    add("theoretical_income_usd",
        prices_.usd(static_cast<double>(r_.cached_tokens) / setting_.share,
                    static_cast<double>(r_.input_tokens) / setting_.share, output),
        "tokens times R1's prices; the hits are a prediction");
    add("cost_usd_per_million_output_tokens", ratio(cost, output / 1e6));
  }

  void what_users_feel() {
    add("decode_tokens_per_s_per_user", r_.tokens_per_s_per_user, "token-weighted");
    add_speed_figures(t_, options_.decode_ranks, false, report_);
    add("token_gap_ms_p50", r_.gap_ms.percentile(0.5));
    add("token_gap_ms_p99", r_.gap_ms.percentile(0.99));
    add_wait_figures(t_, report_);
    add_objective_figures(t_, options_.slo_ttft_s, options_.slo_tokens_per_s_per_user, report_);
    add_sum("decode_admission_waits", t_.admission_waits, "found no decode rank with room at first");
    add("decode_admission_wait_s_mean", ratio(t_.admission_wait_s, static_cast<double>(t_.admission_waits)));
  }

  void balance() {
    add("prefill_tokens_max_over_mean", r_.prefill_tokens_ratio, "over ranks, busy forwards");
    add("prefill_cost_max_over_mean", r_.prefill_cost_ratio);
    add("kv_max_over_mean", r_.decode_kv_ratio, "over decode ranks");
    add("requests_max_over_mean", r_.decode_requests_ratio);
    add("kv_room_tokens_per_rank", r_.kv_room_tokens, "of a decode rank", Origin::kInput);
    add("kv_use_share_max", t_.kv_milli_max / kMilli / r_.kv_room_tokens, "fullest decode rank");
  }

  void what_went_wrong() {
    add_sum("replays", r_.replays);
    add_sum("retractions", r_.retractions);
    add_sum("refused_offers", r_.refused_offers);
    add_sum("stale_tokens_dropped", r_.stale_tokens);
  }

  // What the whole trace tells. Speed and waits over it are known to nobody who has not run it.
  void bias() {
    if (setting_.fraction >= 1) return;
    const auto of_whole = [&](const char* name, double here, double whole, std::string note) {
      if (whole > 0) add(name, 100 * (here / whole - 1), std::move(note), Origin::kInput);
    };
    const auto of_sum = [&](const char* name, int64_t part, double whole, const char* what) {
      of_whole(name, static_cast<double>(part) / setting_.share, whole,
               fmt::format("this run's {}, scaled, against the whole trace's", what));
    };
    of_sum("bias_requests_percent", r_.requests, static_cast<double>(setting_.whole_requests), "requests");
    of_sum("bias_input_tokens_percent", r_.input_tokens, setting_.whole_input_tokens, "input tokens");
    of_sum("bias_output_tokens_percent", r_.output_tokens, setting_.whole_output_tokens, "output tokens");
    of_whole("bias_hit_share_bound_percent", stats_.hit_share_bound, setting_.whole_hit_share_bound,
             "prompts that this run leaves out would have been found by later ones");
    of_whole("bias_nodes_percent", nodes_mean(), setting_.whole_nodes_mean,
             "mean nodes of the simulated parts against the whole trace's");
    report_.facts.emplace_back(kBiasNotEstimated, "speed, waits, hits and balance of the whole trace");
  }

  const HardwareProfile& hw_;
  const TraceStats& stats_;
  const BlockFleetOptions& options_;
  const BlockFleetResult& r_;
  const FleetCell t_;
  const ReplaySetting& setting_;
  const TokenPrices& prices_;
  Report& report_;
};

TimeAxis axis_of(const BlockFleetResult& r) {
  return axis_since_start(r.cell_s, r.metrics.cells.size(), r.last_arrival_s);
}

void add_charts(const HardwareProfile& hw, const ReplayRun& run, const TokenPrices& prices, Report& report) {
  const BlockFleetResult& r = run.result;
  FleetPage page{r.metrics, axis_of(r)};
  page.usd_per_node_hour = hw.gpus_per_node * hw.price_usd_per_gpu_hour;
  page.prices = prices;
  page.slo_ttft_s = run.options.slo_ttft_s;
  page.slo_tokens_per_s_per_user = run.options.slo_tokens_per_s_per_user;
  page.kv_room_tokens = r.kv_room_tokens;
  page.decode_policy = decode_policy_name(run.options.decode_policy);
  page.block_exact = true;
  add_fleet_charts(page, report);
}

// At the cell with the most requests in decode.
void add_timeline(const HardwareProfile& hw, const ModelShape& model, const ReplayRun& run, Report& report) {
  const auto live = [](const FleetCell& c) { return ratio(c.live_x_seconds, c.step_seconds); };
  const std::vector<FleetCell>& cells = run.result.metrics.cells;
  const auto busiest = std::max_element(
      cells.begin(), cells.end(), [&](const FleetCell& a, const FleetCell& b) { return live(a) < live(b); });
  if (live(*busiest) == 0) return;  // no decode step
  const DecodeLoad load = decode_load_of(*busiest, run.options.decode_ranks);
  const DecodeUnitShape shape = decode_shape_of(run.options);
  report.timelines.push_back(decode_layer_timeline(decode_stages(hw, model, shape, load),
                                                   decode_stages(hw, model, shape, load, false)));
  report.timelines.back().title += fmt::format(", {:.1f} requests on a rank", load.requests_mean);
}

std::string csv_value(double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; }

std::string cells_csv(const BlockFleetResult& r) {
  std::string csv =
      "from_s,seconds,arrived_requests,finished_requests,expired_requests,input_tokens,cached_tokens,"
      "output_tokens,nodes_mean,drain_nodes_mean,decode_tokens_per_s_per_user,kv_tokens_per_output_token,"
      "kv_max_over_mean,requests_max_over_mean,prefill_tokens_max_over_mean,ttft_s_p50,ttft_s_p90,ttft_s_p99,"
      "queue_wait_s_p50,queue_wait_s_p90,queue_wait_s_p99,goodput_output_tokens_per_s\n";
  for (size_t i = 0; i < r.metrics.cells.size(); ++i) {
    const FleetCell& c = r.metrics.cells[i];
    csv += fmt::format("{},{},{},{},{},{},{},{}", static_cast<double>(i) * r.cell_s, c.seconds,
                       c.arrived_requests, c.finished_requests, c.expired_requests, c.input_tokens,
                       c.cached_tokens, c.finished_output_tokens);
    const double values[] = {(c.decode_node_seconds + c.prefill_node_seconds) / c.seconds,
                             (c.decode_drain_node_seconds + c.prefill_drain_node_seconds) / c.seconds,
                             c.tokens_x_speed / c.tokens,
                             c.tokens_x_kv / c.tokens,
                             kv_max_over_mean(c),
                             requests_max_over_mean(c),
                             prefill_tokens_max_over_mean(c)};
    for (const double value : values) csv += "," + csv_value(value);
    for (const LogHistogram* h : {&c.ttft_ms, &c.queue_ms}) {
      for (const double p : {0.5, 0.9, 0.99})
        csv += h->total() > 0 ? fmt::format(",{}", h->percentile(p) / 1e3) : ",";
    }
    csv += "," + csv_value(static_cast<double>(c.good_output_tokens) / c.seconds) + "\n";
  }
  return csv;
}

// The run that others' decode speed is a gain over: kv-capped beside the first run's prefill policy. Null: it
// did not run.
const ReplayRun* gain_base(const std::vector<ReplayRun>& runs) {
  for (const ReplayRun& run : runs) {
    const BlockFleetOptions& o = run.options;
    if (o.decode_policy == DecodePolicy::kKvCapped && !o.perfect_decode_balance &&
        o.prefill_policy == runs.front().options.prefill_policy)
      return &run;
  }
  return nullptr;
}

void add_policies(const TraceStats& stats, const std::vector<ReplayRun>& runs, Report& report) {
  Table table{
      "Policies side by side",
      fmt::format("No policy can hit more than {:.1f} %: prompt tokens in whole blocks seen before. Perfect "
                  "balance, the same steps with KV and requests spread evenly, bounds the speed of decode "
                  "policies.",
                  stats.hit_share_bound * 100),
      {"policies", "hit share", "of the bound", "prefill tokens max/mean", "prefill cost max/mean",
       "decode KV max/mean", "requests max/mean", "first token p50 s", "p99 s", "tokens/s per user",
       "gain over kv-capped"},
      {}};
  std::string csv =
      "policies,hit_share,hit_share_bound,prefill_tokens_max_over_mean,prefill_cost_max_over_mean,kv_max_"
      "over_mean,"
      "requests_max_over_mean,ttft_s_p50,ttft_s_p99,decode_tokens_per_s_per_user,decode_speed_gain_percent\n";
  const ReplayRun* base = gain_base(runs);
  for (const ReplayRun& run : runs) {
    const BlockFleetResult& r = run.result;
    const double of_bound = stats.hit_share_bound > 0 ? r.hit_share() / stats.hit_share_bound : 1;
    const double gain = base != nullptr && base->result.tokens_per_s_per_user > 0
                            ? 100 * (r.tokens_per_s_per_user / base->result.tokens_per_s_per_user - 1)
                            : std::nan("");
    table.rows.push_back(
        {run.name, fmt::format("{:.1f} %", r.hit_share() * 100), fmt::format("{:.0f} %", of_bound * 100),
         fmt::format("{:.3f}", r.prefill_tokens_ratio), fmt::format("{:.3f}", r.prefill_cost_ratio),
         fmt::format("{:.3f}", r.decode_kv_ratio), fmt::format("{:.3f}", r.decode_requests_ratio),
         fmt::format("{:.2f}", r.ttft_ms.percentile(0.5) / 1e3),
         fmt::format("{:.2f}", r.ttft_ms.percentile(0.99) / 1e3),
         fmt::format("{:.1f}", r.tokens_per_s_per_user),
         std::isfinite(gain) ? fmt::format("{:+.1f} %", gain + 0.0) : "-"});
    csv += fmt::format("{},{},{},{},{},{},{},{},{},{},{}\n", run.name, r.hit_share(), stats.hit_share_bound,
                       r.prefill_tokens_ratio, r.prefill_cost_ratio, r.decode_kv_ratio,
                       r.decode_requests_ratio, r.ttft_ms.percentile(0.5) / 1e3,
                       r.ttft_ms.percentile(0.99) / 1e3, r.tokens_per_s_per_user, csv_value(gain));
  }
  report.tables.push_back(std::move(table));
  report.csv_files.push_back({"policies.csv", std::move(csv)});
}

// A line for each balancer: decode policies beside the first run's prefill policy, and the other way round.
void add_policy_charts(const std::vector<ReplayRun>& runs, Report& report) {
  std::vector<Series> kv, tokens, hits;
  const BlockFleetOptions& first = runs.front().options;
  for (const ReplayRun& run : runs) {
    if (run.options.perfect_decode_balance) continue;
    const FleetMetrics& m = run.result.metrics;
    // The first run's unit of time for all.
    const double cell_x =
        run.result.cell_s / runs.front().result.cell_s * axis_of(runs.front().result).cell_x;
    if (run.options.prefill_policy == first.prefill_policy) {
      kv.push_back(cell_series(m, cell_x, std::string(decode_policy_name(run.options.decode_policy)),
                               kv_max_over_mean));
    }
    if (run.options.decode_policy == first.decode_policy) {
      const std::string name(prefill_policy_name(run.options.prefill_policy));
      tokens.push_back(cell_series(m, cell_x, name, prefill_tokens_max_over_mean));
      hits.push_back(cell_series(m, cell_x, name, hit_share));
    }
  }
  const Chart axis = report.charts.front();
  report.charts.push_back(kv_by_balancer(std::move(kv), axis));
  report.charts.push_back({"Tokens over prefill ranks, by balancer", "largest / mean, full forwards",
                           axis.x_label, std::move(tokens), axis.x_ticks, false});
  report.charts.push_back({"Prompt tokens found in the cache, by prefill balancer", "share", axis.x_label,
                           std::move(hits), axis.x_ticks});
}

void add_lines(std::string title, const char* column, const std::vector<std::string>& lines, Report& report) {
  if (lines.empty()) return;
  Table table{std::move(title), "", {column}, {}};
  for (const std::string& line : lines) table.rows.push_back({line});
  report.tables.push_back(std::move(table));
}

}  // namespace

Report replay_report(const HardwareProfile& hw, const ModelShape& model, const Trace& trace,
                     const std::vector<ReplayRun>& runs, const ReplaySetting& setting,
                     const TokenPrices& prices) {
  const TraceStats stats = trace_stats(trace);
  Report report;
  report.title = fmt::format("Replay of {}", trace.name);
  report.lead = fmt::format(
      "{} requests over {:.0f} s, {:.0f} tokens in (at most {}), {:.0f} out on average. Block-exact: the "
      "servers' balancers, step plans, KV books and hand-over; time, network and the forward pass are "
      "models. "
      "Arrivals, lengths, what prompts share, fleet, MTP acceptance and expert imbalance are inputs; waits, "
      "speed, hits and balance are predictions.",
      trace.requests.size(), stats.duration_s, stats.input_mean, stats.input_max, stats.output_mean);
  const ReplayRun& first = runs.front();
  const BlockFleetOptions& o = first.options;
  report.facts = {{"trace", trace.name},
                  {"profile", hw.name},
                  {"profile_kind", hw.kind},
                  {"profile_hash", hw.hash},
                  {"price_usd_per_gpu_hour", fmt::format("{}", hw.price_usd_per_gpu_hour)},
                  {"prefill_policy", std::string(prefill_policy_name(o.prefill_policy))},
                  {"decode_policy", std::string(decode_policy_name(o.decode_policy))},
                  {"fleet", fmt::format("{} x {} prefill, {} x {} decode ranks", o.prefill_units,
                                        o.prefill_ranks, o.decode_units, o.decode_ranks)},
                  {"report_delay_ms", fmt::format("{}", o.report_delay_ms)},
                  {"rate_scale", fmt::format("{}", o.rate_scale)},
                  {"routers", fmt::format("{}", o.num_routers)},
                  {"mtp_acceptance", fmt::format("{}", o.mtp_acceptance)},
                  {"expert_imbalance", fmt::format("{}", o.expert_imbalance)},
                  {"scale_policy", setting.scale},
                  {"fraction", fmt::format("{}", setting.fraction)},
                  {"seed", fmt::format("{}", o.seed)}};
  if (o.store_tb > 0) report.facts.emplace_back("kv_store_tb", fmt::format("{}", o.store_tb));
  if (!trace.doubt.empty()) report.facts.emplace_back("trace_doubt", trace.doubt);
  ReplayFigures(hw, stats, first, setting, prices, report).add_all();
  add_charts(hw, first, prices, report);
  add_timeline(hw, model, first, report);
  if (runs.size() > 1) add_policy_charts(runs, report);
  add_policies(stats, runs, report);
  report.csv_files.push_back({"cells.csv", cells_csv(first.result)});
  if (setting.scale != "none") report.csv_files.push_back({"units.csv", units_csv(first.result.units, 0)});
  add_lines("What the autoscaler did", "decision", setting.scale_log, report);
  add_lines("Broken rules", "what", first.result.violations, report);
  return report;
}

}  // namespace fathom::sim
