// fathom simulate trace and synthetic: replays that are exact to the block.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>

#include "cli/flag_values.h"
#include "cli/simulate_args.h"
#include "sim/day_report.h"
#include "sim/fleet_file.h"
#include "sim/replay_report.h"

namespace fathom::cli {
namespace {

constexpr double kRoundingSeconds = 1e-3;

// Where a time falls on the clock of the hours' first parts, which runs on without gaps.
double within_parts(double at_s, double fraction) {
  const double hours = std::floor(at_s / 3600);
  return hours * 3600 * fraction + std::min(at_s - hours * 3600, 3600 * fraction);
}

// The other way round; events at the beginning of a part may be a rounding early.
double since_start(double simulated_s, double fraction) {
  if (fraction >= 1) return simulated_s;
  simulated_s += kRoundingSeconds;
  const double part_s = 3600 * fraction, parts = std::floor(simulated_s / part_s);
  return parts * 3600 + simulated_s - parts * part_s;
}

constexpr double kStoreTbMax = 1e6;
constexpr double kSchedulePartSeconds = 10;  // a schedule is looked at so often within parts of hours
constexpr double kRequestsMax = 2e6;         // made up for one replay, which is exact to the block

Result<sim::BlockFleetOptions> replay_options(const SimulateArgs& args, const sim::HardwareProfile& hw,
                                              uint64_t seed, double last_arrival_s) {
  sim::BlockFleetOptions options = args.block;
  if (!args.fleet_file.empty()) {
    ASSIGN_OR_RETURN(const std::string text, read_text_file(args.fleet_file));
    RETURN_IF_ERROR(sim::read_fleet_file(args.fleet_file, text, options));
  }
  options.seed = seed;
  options.report_delay_ms = args.fleet.report_delay_ms;
  options.slo_ttft_s = args.fleet.slo_ttft_s;
  options.slo_tokens_per_s_per_user = args.fleet.slo_tokens_per_s_per_user;
  ASSIGN_OR_RETURN(options.prefill_policy, parse_prefill_policy(args.prefill));
  ASSIGN_OR_RETURN(options.decode_policy, parse_decode_policy(args.decode));
  for (const std::string& text : args.faults) {
    ASSIGN_OR_RETURN(sim::Fault fault, sim::parse_fault(text));
    RETURN_IF_ERROR(check_in_fraction(text, fault.at_s, args.fleet.fraction));
    if (fault.kind == sim::FaultKind::kNoNodes && args.scale != "autoscale")
      return invalid_argument("--fault: \"{}\": only with --scale autoscale", text);
    const double end_s = within_parts(fault.at_s + fault.for_s, args.fleet.fraction);
    fault.at_s = within_parts(fault.at_s, args.fleet.fraction);
    fault.for_s = end_s - fault.at_s;
    if (fault.at_s > last_arrival_s) {
      return invalid_argument("--fault: \"{}\": the last request arrives after {:.0f} s", text,
                              last_arrival_s);
    }
    options.faults.push_back(fault);
  }
  sim::FleetShape shape;
  shape.decode_ranks = options.decode_ranks;
  shape.prefill_ranks = options.prefill_ranks;
  RETURN_IF_ERROR(sim::validate_faults(options.faults, {options.decode_units, options.prefill_units}, shape));
  RETURN_IF_ERROR(sim::validate_block_fleet(hw, sim::ModelShape{}, options));
  return options;
}

// How a replay's units are scaled, and the autoscaler of the run under way.
struct ReplayScale {
  double fraction = 1;
  std::optional<sim::DaySchedule> schedule;
  std::optional<AutoscaleOptions> autoscale;
  sim::FleetOptions as_day;  // what the autoscaler is told of fleet and load
  sim::UnitCounts initial;
  std::unique_ptr<sim::DayAutoscaler> autoscaler;
};

Status read_schedule(const SimulateArgs& args, const sim::BlockFleetOptions& fleet, ReplayScale& scale) {
  if (!args.schedule_given) {
    return invalid_argument(
        "--scale: schedule: a replay needs --schedule FILE, its first row at the trace's start");
  }
  ASSIGN_OR_RETURN(const std::string text, read_text_file(args.schedule_file));
  ASSIGN_OR_RETURN(scale.schedule, sim::parse_schedule(args.schedule_file, text, fleet.unit_nodes));
  const sim::UnitCounts most = sim::units_max(*scale.schedule);
  if (most.decode > fleet.decode_units || most.prefill > fleet.prefill_units) {
    return invalid_argument("--schedule: {}: {} decode and {} prefill units, the fleet has {} and {}",
                            args.schedule_file, most.decode, most.prefill, fleet.decode_units,
                            fleet.prefill_units);
  }
  scale.initial = scale.schedule->units_at(0);
  return ok_status();
}

// Units' capacities from the profile and the trace's lengths; every prompt token counts as one to compute.
Status size_units(const SimulateArgs& args, const sim::HardwareProfile& hw, const sim::Trace& trace,
                  const sim::BlockFleetOptions& fleet, ReplayScale& scale) {
  const sim::TraceStats stats = sim::trace_stats(trace);
  sim::FleetOptions& day = scale.as_day;
  day.shape = {fleet.decode_ranks,  fleet.unit_nodes.decode,  fleet.expert_slots,
               fleet.prefill_ranks, fleet.unit_nodes.prefill, fleet.expert_slots};
  day.lengths.input_mean_tokens = stats.input_mean, day.lengths.input_cv2 = stats.input_cv2;
  day.lengths.output_mean_tokens = stats.output_mean, day.lengths.output_cv2 = stats.output_cv2;
  day.lengths.continuation_share = day.lengths.other_hit = 0;
  day.mtp_acceptance = fleet.mtp_acceptance;
  day.slo_ttft_s = fleet.slo_ttft_s, day.slo_tokens_per_s_per_user = fleet.slo_tokens_per_s_per_user;
  day.decode_expert_imbalance = day.prefill_expert_imbalance = fleet.expert_imbalance;
  day.decode_blocks_per_rank = fleet.decode_blocks_per_rank;
  day.requests_per_day = stats.requests_per_s * fleet.rate_scale * sim::kDaySeconds;
  sim::DayAutoscaleOptions options = args.autoscale;
  if (!args.budget_given) {
    options.budget_nodes =
        fleet.decode_units * fleet.unit_nodes.decode + fleet.prefill_units * fleet.unit_nodes.prefill;
  }
  options.units_max = {fleet.decode_units, fleet.prefill_units};
  ASSIGN_OR_RETURN(scale.autoscale, sim::autoscale_options(hw, {}, day, options));
  scale.initial = sim::starting_units({fleet.decode_units, fleet.prefill_units}, *scale.autoscale);
  return ok_status();
}

// Gives a run the function that scales it; `scale` outlives the run.
void scale_run(ReplayScale& scale, sim::BlockFleetOptions& run) {
  run.scale_initial = scale.initial;
  run.clock_s = [&scale](double simulated_s) { return since_start(simulated_s, scale.fraction); };
  if (scale.schedule) {
    if (scale.fraction < 1) {
      const double part_s = 3600 * scale.fraction;
      run.scale_interval_s = part_s / std::ceil(part_s / kSchedulePartSeconds);
    }
    run.scale = [&scale](const sim::ScaleInput& in) {
      const sim::UnitCounts units = scale.schedule->units_at(since_start(in.day_second, scale.fraction));
      return sim::ScaleOutput{units, units};
    };
  } else if (scale.autoscale) {
    std::array<double, 24> flat;
    flat.fill(1);
    scale.autoscaler = std::make_unique<sim::DayAutoscaler>(*scale.autoscale, scale.as_day,
                                                            sim::DayLoad(flat), false, scale.initial, 0);
    run.scale_interval_s = scale.autoscale->interval_s;
    run.scale = [&scale](const sim::ScaleInput& in) { return scale.autoscaler->decide(in); };
  }
}

// The policies asked for first, then every other prefill policy, then every other decode policy.
std::vector<sim::ReplayRun> replay_runs(const sim::BlockFleetOptions& options, bool all_policies) {
  std::vector<sim::ReplayRun> runs;
  const auto add = [&](PrefillPolicy prefill, DecodePolicy decode) {
    sim::ReplayRun run{
        fmt::format("{} / {}", prefill_policy_name(prefill), decode_policy_name(decode)), options, {}};
    run.options.prefill_policy = prefill;
    run.options.decode_policy = decode;
    for (const sim::ReplayRun& other : runs) {
      if (other.name == run.name) return;
    }
    runs.push_back(std::move(run));
  };
  add(options.prefill_policy, options.decode_policy);
  if (all_policies) {
    for (const char* name : {"random", "round-robin", "least-requests", "least-tokens", "fathom"}) {
      add(parse_prefill_policy(name).value(), options.decode_policy);
    }
    for (const char* name : kDecodePolicies) {
      add(options.prefill_policy, parse_decode_policy(name).value());
    }
    sim::ReplayRun bound{
        fmt::format("{} / perfect-balance", prefill_policy_name(options.prefill_policy)), options, {}};
    bound.options.perfect_decode_balance = true;
    runs.push_back(std::move(bound));
  }
  return runs;
}

// Of a trace's time, what the first parts of its hours are; the last hour need not be whole.
double simulated_share(const sim::Trace& whole, double hour_s, double fraction) {
  const double end_s = static_cast<double>(whole.requests.back().arrival_us) / 1e6;
  const double hours = std::floor(end_s / hour_s);
  const double part_s = hours * hour_s * fraction + std::min(end_s - hours * hour_s, hour_s * fraction);
  return end_s > 0 ? part_s / end_s : 1;
}

// One seed's load on one fleet, ready to run; its runs keep pointers to `scale`.
struct Replay {
  sim::Trace trace;  // what is replayed of it
  ReplayScale scale;
  sim::BlockFleetOptions options;
  sim::ReplaySetting setting;
  std::vector<sim::ReplayRun> runs;
};

Result<std::unique_ptr<Replay>> prepare_replay(const SimulateArgs& args, const sim::HardwareProfile& hw,
                                               sim::Trace whole, uint64_t seed) {
  RETURN_IF_ERROR(check_span(whole, args.block.rate_scale));
  if (args.scale == "autoscale")
    RETURN_IF_ERROR(check_decisions(whole.span_s() / args.block.rate_scale, args.autoscale.rules.interval_s));
  auto replay = std::make_unique<Replay>();
  sim::ReplaySetting& setting = replay->setting;
  const double hour_s = 3600 * args.block.rate_scale;
  setting.fraction = args.fleet.fraction;
  setting.share = simulated_share(whole, hour_s, args.fleet.fraction);
  setting.scale = args.scale;
  setting.whole_requests = static_cast<int64_t>(whole.requests.size());
  for (const sim::TraceRequest& r : whole.requests) {
    setting.whole_input_tokens += r.input_tokens;
    setting.whole_output_tokens += r.output_tokens;
  }
  const double whole_s = static_cast<double>(whole.requests.back().arrival_us) / 1e6 / args.block.rate_scale;
  if (args.fleet.fraction < 1) setting.whole_hit_share_bound = sim::trace_stats(whole).hit_share_bound;
  replay->trace = std::move(whole);
  if (args.fleet.fraction < 1) {
    ASSIGN_OR_RETURN(replay->trace, sim::first_part_of_each_hour(replay->trace, args.fleet.fraction, hour_s));
  }
  const double last_arrival_s =
      static_cast<double>(replay->trace.requests.back().arrival_us) / 1e6 / args.block.rate_scale;
  sim::BlockFleetOptions& options = replay->options;
  ASSIGN_OR_RETURN(options, replay_options(args, hw, seed, last_arrival_s));
  options.unit_nodes = {nodes_of(options.decode_ranks, hw), nodes_of(options.prefill_ranks, hw)};
  replay->scale.fraction = args.fleet.fraction;
  if (args.scale == "none") {
    setting.whole_nodes_mean =
        options.decode_units * options.unit_nodes.decode + options.prefill_units * options.unit_nodes.prefill;
  }
  if (args.scale == "schedule") {
    RETURN_IF_ERROR(read_schedule(args, options, replay->scale));
    setting.whole_nodes_mean = replay->scale.schedule->nodes_mean_until(whole_s);
  }
  if (args.scale == "autoscale") {
    RETURN_IF_ERROR(size_units(args, hw, replay->trace, options, replay->scale));
    setting.budget_nodes = replay->scale.autoscale->budget_nodes;
  }
  return replay;
}

// Runs the policies one after another; the bar's share is that of `num_runs`, of which `done` are.
void run_policies(Replay& replay, const sim::HardwareProfile& hw, ProgressBar& bar, size_t done,
                  size_t num_runs) {
  for (size_t i = 0; i < replay.runs.size(); ++i) {
    sim::ReplayRun& run = replay.runs[i];
    scale_run(replay.scale, run.options);
    run.result = sim::run_block_fleet(hw, sim::ModelShape{}, replay.trace, run.options, [&](double share) {
      bar.update((static_cast<double>(done + i) + share) / static_cast<double>(num_runs));
    });
    if (i == 0 && replay.scale.autoscaler) replay.setting.scale_log = replay.scale.autoscaler->log();
  }
}

Status check_rules(const Replay& replay) {
  for (const sim::ReplayRun& run : replay.runs) {
    for (const std::string& text : run.result.violations)
      std::fprintf(stderr, "broken rule: %s\n", text.c_str());
    if (!run.result.violations.empty()) {
      return make_status(StatusCode::kInternal, "{} rules broken in {}", run.result.violations.size(),
                         run.name);
    }
  }
  return ok_status();
}

// The load of a seed. The first one's replay makes the report, with every other policy where asked for.
Status run_replay(SimulateArgs& args, const std::function<sim::Trace(uint64_t seed)>& load) {
  RETURN_IF_ERROR(check_range("--fraction", args.fleet.fraction, 0.002, 1));
  RETURN_IF_ERROR(check_range("--rate", args.block.rate_scale, 1e-3, 1e3));
  RETURN_IF_ERROR(check_range("--mtp-acceptance", args.block.mtp_acceptance, 0, 1));
  RETURN_IF_ERROR(check_range("--expert-imbalance", args.block.expert_imbalance, 1, 10));
  RETURN_IF_ERROR(check_range("--routers", args.block.num_routers, 1, 64));
  RETURN_IF_ERROR(check_range("--kv-store-tb", args.block.store_tb, 0, kStoreTbMax));
  RETURN_IF_ERROR(read_scale_options(args));
  ASSIGN_OR_RETURN(const sim::HardwareProfile hw, profile_of(args));
  const uint64_t seed = args.fleet.seed;
  ASSIGN_OR_RETURN(std::unique_ptr<Replay> replay, prepare_replay(args, hw, load(seed), seed));
  RETURN_IF_ERROR(prepare(args, "trace", "a replay"));
  replay->runs = replay_runs(replay->options, args.all_policies);
  const size_t others = static_cast<size_t>(args.num_seeds) - 1, num_runs = replay->runs.size() + others;
  size_t done = 0;
  ProgressBar bar("replay");
  std::vector<sim::Report> reports;
  Status rules = ok_status();
  for (size_t i = 0; i <= others; ++i) {
    if (i > 0) {
      ASSIGN_OR_RETURN(replay, prepare_replay(args, hw, load(seed + i), seed + i));
      replay->runs = replay_runs(replay->options, false);
    }
    run_policies(*replay, hw, bar, done, num_runs);
    done += replay->runs.size();
    if (rules.ok()) rules = check_rules(*replay);
    reports.push_back(
        sim::replay_report(hw, sim::ModelShape{}, replay->trace, replay->runs, replay->setting));
  }
  std::fprintf(stderr, "%.1f s for %zu replays\n", bar.elapsed_s(), num_runs);
  sim::Report& report = reports.front();
  if (others > 0) sim::add_seed_spread(report, std::vector<sim::Report>(reports));
  RETURN_IF_ERROR(finish(report, args));
  return rules;
}

Status run_trace(SimulateArgs& args) {
  const std::string file = find_data_file(args.trace_file);
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
  ASSIGN_OR_RETURN(const sim::Trace trace, sim::parse_trace(file, text));
  tell_doubt(trace);
  return run_replay(args, [&](uint64_t) { return trace; });
}

Status run_synthetic(SimulateArgs& args) {
  RETURN_IF_ERROR(check_range("--seconds", args.synthetic.seconds, 1, 86400));
  RETURN_IF_ERROR(check_range("--requests-per-s", args.synthetic.requests_per_s, 1e-3, 1e4));
  RETURN_IF_ERROR(check_range("--shared", args.synthetic.shared_share, 0, 1));
  RETURN_IF_ERROR(check_range("--burst", args.synthetic.burst_share, 0, 1));
  const double requests = args.synthetic.seconds * args.synthetic.requests_per_s;
  if (requests > kRequestsMax) {
    return invalid_argument("--seconds: {:.3g} requests, a replay holds at most {:.3g}", requests,
                            kRequestsMax);
  }
  ASSIGN_OR_RETURN(args.synthetic.shape, sim::parse_arrival_shape(args.arrivals));
  ASSIGN_OR_RETURN(args.synthetic.hits, sim::parse_hit_model(args.hits));
  RETURN_IF_ERROR(check_range("--arrival-cv2", args.synthetic.arrival_cv2, 1.001, 1000));
  RETURN_IF_ERROR(check_range("--day-seconds", args.synthetic.day_seconds, 1, 1e7));
  RETURN_IF_ERROR(check_lengths(args.synthetic.lengths));
  if (args.synthetic.shape == sim::ArrivalShape::kDiurnal) {
    const std::string file = find_data_file(args.load_file);
    ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
    ASSIGN_OR_RETURN(const sim::HourlyLoad hourly, sim::parse_hourly_load(file, text));
    args.synthetic.day_load = hourly.load;
  }
  args.made_up = true;
  return run_replay(args, [&](uint64_t seed) { return sim::synthetic_trace(args.synthetic, seed); });
}

// The options of every replay, and what runs it.
void add_replay(CLI::App& command, const std::shared_ptr<SimulateArgs>& args_of,
                const std::function<std::vector<OnlyWith>()>& also, Outcome& outcome,
                Status (*run)(SimulateArgs&)) {
  SimulateArgs& args = *args_of;
  add_common_options(command, args);
  command.add_option("--rate", args.block.rate_scale, "Arrivals this much faster")->capture_default_str();
  command
      .add_option("--mtp-acceptance", args.block.mtp_acceptance, "Share of MTP tokens accepted; 0: MTP off")
      ->capture_default_str();
  command.add_option("--expert-imbalance", args.block.expert_imbalance, "f_ep: busiest rank over mean")
      ->capture_default_str();
  command.add_option("--routers", args.block.num_routers, "Prefill routers side by side")
      ->capture_default_str();
  command
      .add_option(
          "--kv-store-tb", args.block.store_tb,
          "External KV store that all prefill ranks read, TB on its disks; 0: ranks have their memory only")
      ->capture_default_str();
  command.add_flag("--all-policies", args.all_policies, "Also run every other policy, for the table");
  const std::vector<const CLI::Option*> of_autoscale = add_scale_options(command, args);
  const CLI::Option* schedule =
      command
          .add_option("--schedule", args.schedule_file, "With --scale schedule: units by time from the start")
          ->check(not_empty());
  command.callback([args_of, of_autoscale, schedule, also, run, &outcome] {
    SimulateArgs& args = *args_of;
    args.schedule_given = schedule->count() > 0;
    args.budget_given = of_autoscale.front()->count() > 0;
    std::vector<OnlyWith> only = also();
    only.push_back({schedule, args.scale == "schedule", "--scale schedule"});
    for (const CLI::Option* option : of_autoscale)
      only.push_back({option, args.scale == "autoscale", "--scale autoscale"});
    Status status = check_scale(args.scale);
    if (status.ok()) status = check_only_with(only);
    if (status.ok()) status = run(args);
    if (!status.ok()) outcome.exit_code = report_error(status);
  });
}

// What a made-up load is like; returned with what each option needs.
std::function<std::vector<OnlyWith>()> add_synthetic_options(CLI::App& command,
                                                             const std::shared_ptr<SimulateArgs>& args) {
  sim::SyntheticOptions& made = args->synthetic;
  command.add_option("--seconds", made.seconds, "Length")->capture_default_str();
  command.add_option("--requests-per-s", made.requests_per_s, "Mean rate; with diurnal of a whole day")
      ->capture_default_str();
  command.add_option("--arrivals", args->arrivals, "constant, poisson, bursty or diurnal")
      ->capture_default_str();
  const CLI::Option* cv2 =
      command.add_option("--arrival-cv2", made.arrival_cv2, "Squared variation of bursty gaps")
          ->capture_default_str();
  const CLI::Option* load =
      command.add_option("--load", args->load_file, "Hourly load of a diurnal curve (CSV)")
          ->check(not_empty())
          ->capture_default_str();
  const CLI::Option* day =
      command.add_option("--day-seconds", made.day_seconds, "What its day takes")->capture_default_str();
  command.add_option("--burst", made.burst_share, "Share of requests that come in bursts")
      ->capture_default_str();
  command.add_option("--hits", args->hits, "conversations, or two-class as on the published day")
      ->capture_default_str();
  const CLI::Option* shared =
      command.add_option("--shared", made.shared_share, "Share that continues a conversation")
          ->capture_default_str();
  const std::vector<const CLI::Option*> classes = add_length_options(command, made.lengths);
  return [=] {
    const bool diurnal = args->arrivals == "diurnal", two_class = args->hits == "two-class";
    std::vector<OnlyWith> only = {{cv2, args->arrivals == "bursty", "--arrivals bursty"},
                                  {load, diurnal, "--arrivals diurnal"},
                                  {day, diurnal, "--arrivals diurnal"},
                                  {shared, !two_class, "--hits conversations"}};
    for (const CLI::Option* option : classes) only.push_back({option, two_class, "--hits two-class"});
    return only;
  };
}

}  // namespace

void add_replays(CLI::App& simulate, Outcome& outcome) {
  const auto args = std::make_shared<SimulateArgs>();
  args->decode = "fathom";
  args->profile = "profiles/h800.toml";
  args->scale = "none";
  CLI::App* trace = simulate.add_subcommand("trace", "Replay a trace, exact to the block");
  trace->add_option("file", args->trace_file, "JSON lines (Mooncake) or CSV (Azure)")
      ->check(not_empty())
      ->required();
  add_replay(*trace, args, [] { return std::vector<OnlyWith>(); }, outcome, run_trace);
  const auto made = std::make_shared<SimulateArgs>(*args);
  CLI::App* synthetic = simulate.add_subcommand("synthetic", "Replay a made-up load, exact to the block");
  add_replay(*synthetic, made, add_synthetic_options(*synthetic, made), outcome, run_synthetic);
}

}  // namespace fathom::cli
