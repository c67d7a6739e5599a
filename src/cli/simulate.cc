// fathom simulate: a trace, a synthetic load or the published day on a virtual fleet.
#include <fmt/ranges.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/sim_files.h"
#include "sim/day_autoscaler.h"
#include "sim/day_report.h"
#include "sim/fleet_file.h"
#include "sim/model_file.h"
#include "sim/replay_report.h"
#include "sim/synthetic.h"

namespace fathom::cli {
namespace {

struct SimulateArgs {
  std::string profile = "profiles/h800-day.toml";
  std::string out_dir;
  std::string compare_dir;
  sim::Summary other;  // of compare_dir
  std::string decode = "kv-capped";
  std::string prefill = "fathom";
  std::string scale = "schedule";
  std::string load_file = "data/day_load.csv";
  std::string schedule_file = "data/day_schedule.csv";
  std::optional<double> phi;  // the profile's unless given
  int num_seeds = 1;
  sim::FleetOptions fleet;
  sim::DayAutoscaleOptions autoscale;
  // Block-exact replays.
  std::string trace_file;
  std::string fleet_file;
  std::vector<std::string> faults;
  bool all_policies = false;
  sim::BlockFleetOptions block;
  sim::SyntheticOptions synthetic;
};

constexpr double kRequestsMax = 2e6;  // made up for one replay, which is exact to the block
constexpr const char* kFaultHelp =
    "KIND@HH:MM[:SS][,key=value...]: unit-loss, slow-rank, stale-reports, flash-crowd, lost-registry; keys "
    "for, unit, rank, factor, phase";
constexpr const char* kDecodePolicies[] = {"random", "round-robin", "least-requests",
                                           "p2c-kv", "kv-capped",   "fathom"};

Status check_range(const char* option, double value, double min, double max) {
  if (value >= min && value <= max) return ok_status();
  return invalid_argument("{}: {} is outside {}..{}", option, value, min, max);
}

Result<sim::HardwareProfile> profile_of(const SimulateArgs& args) {
  ASSIGN_OR_RETURN(sim::HardwareProfile hw, sim::load_profile(find_data_file(args.profile), read_text_file));
  if (args.phi) {
    RETURN_IF_ERROR(check_range("--phi", *args.phi, 0.01, 100));
    RETURN_IF_ERROR(sim::set_profile_constant(hw, "residual.decode_phi", *args.phi));
  }
  return hw;
}

Result<sim::DayFiles> day_files_of(const SimulateArgs& args) {
  const std::string load = find_data_file(args.load_file);
  const std::string schedule = find_data_file(args.schedule_file);
  ASSIGN_OR_RETURN(const std::string load_text, read_text_file(load));
  ASSIGN_OR_RETURN(const std::string schedule_text, read_text_file(schedule));
  return sim::parse_day_files(load, load_text, schedule, schedule_text);
}

void print_figures(const sim::Report& report) {
  for (const auto& [name, value] : report.facts) {
    if (name.starts_with("profile")) std::printf("%-52s %16s\n", name.c_str(), value.c_str());
  }
  for (const sim::Figure& figure : report.figures) {
    std::printf("%-52s %16s", figure.name.c_str(), sim::pretty_number(figure.value).c_str());
    if (figure.published) {
      std::printf("   published %14s  (%s)", sim::pretty_number(*figure.published).c_str(),
                  figure.origin == sim::Origin::kInput ? "input"
                  : figure.origin == sim::Origin::kFit ? "fit"
                                                       : "prediction");
    }
    std::printf("\n");
  }
}

// What a run needs beside its own input, looked at before the first event: the run to compare with (`fact` is
// what a summary of the same kind has), and a folder to write to.
Status prepare(SimulateArgs& args, const char* fact, const char* kind) {
  RETURN_IF_ERROR(check_range("--report-delay", args.fleet.report_delay_ms, 0, 60'000));
  if (!args.compare_dir.empty()) {
    const std::string file = args.compare_dir + "/summary.json";
    ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
    ASSIGN_OR_RETURN(args.other, sim::parse_summary_json(file, text));
    if (!args.other.facts.contains(fact)) {
      return invalid_argument("--compare: {}: {}: missing, so not of {}", file, fact, kind);
    }
  }
  return prepare_report_dir(args.out_dir);
}

// Options that a report's own facts leave out, where they are not the default.
void add_facts(const SimulateArgs& args, sim::Report& report) {
  const SimulateArgs plain;
  const auto add = [&](const char* name, const auto& value, const auto& usual) {
    if (value != usual) report.facts.emplace_back(name, fmt::format("{}", value));
  };
  add("load", args.load_file, plain.load_file);
  add("schedule", args.schedule_file, plain.schedule_file);
  add("faults", fmt::format("{}", fmt::join(args.faults, " ")), std::string());
  add("perfect_balance", args.fleet.perfect_decode_balance, false);
  add("max_queued", args.fleet.queued_prompts_max, plain.fleet.queued_prompts_max);
  add("budget_nodes", args.autoscale.budget_nodes, plain.autoscale.budget_nodes);
  add("unit_speed", args.autoscale.speed_at_capacity, plain.autoscale.speed_at_capacity);
  add("unit_use", args.autoscale.prefill_use_at_capacity, plain.autoscale.prefill_use_at_capacity);
  add("knows_yesterday", args.autoscale.knows_yesterday, false);
  add("mtp_acceptance", args.block.mtp_acceptance, plain.block.mtp_acceptance);
  add("expert_imbalance", args.block.expert_imbalance, plain.block.expert_imbalance);
  add("routers", args.block.num_routers, plain.block.num_routers);
}

Status finish(sim::Report& report, const SimulateArgs& args) {
  add_facts(args, report);
  if (!args.compare_dir.empty()) {
    report.tables.push_back(sim::compare_table(report, args.other, args.compare_dir));
  }
  print_figures(report);
  if (args.out_dir.empty()) return ok_status();
  RETURN_IF_ERROR(write_report(report, args.out_dir));
  std::printf("\nwritten to %s: report.html, summary.json", args.out_dir.c_str());
  for (const sim::CsvFile& file : report.csv_files) std::printf(", %s", file.name.c_str());
  std::printf("\n");
  return ok_status();
}

// Times of faults are clock times of the day, UTC+8.
Status day_faults(SimulateArgs& args, const sim::DayFiles& day, const sim::UnitCounts& units_max) {
  for (const std::string& text : args.faults) {
    ASSIGN_OR_RETURN(sim::Fault fault, sim::parse_fault(text));
    if (fault.at_s >= sim::kDaySeconds) {
      return invalid_argument("--fault: \"{}\": not a time of the day", text);
    }
    fault.at_s -= day.start_hour * 3600.0;
    if (fault.at_s < 0) fault.at_s += sim::kDaySeconds;
    if (std::fmod(fault.at_s, 3600) >= 3600 * args.fleet.fraction) {
      return invalid_argument("--fault: \"{}\": --fraction {} simulates the first {:.0f} s of each hour",
                              text, args.fleet.fraction, 3600 * args.fleet.fraction);
    }
    args.fleet.faults.push_back(fault);
  }
  return sim::validate_faults(args.fleet.faults, units_max, args.fleet.shape);
}

// The same load under every other decode policy, the schedule's units serving: a line each in one chart.
Status add_other_policies(const SimulateArgs& args, const sim::HardwareProfile& hw, const sim::DayFiles& day,
                          uint64_t seed, sim::Report& report) {
  std::vector<sim::PolicyDay> days;
  for (const char* name : kDecodePolicies) {
    sim::FleetOptions options = args.fleet;
    options.seed = seed;
    ASSIGN_OR_RETURN(options.decode_policy, parse_decode_policy(name));
    ProgressBar bar(fmt::format("published day, {}", name));
    const sim::FleetResult result =
        sim::run_day(hw, sim::ModelShape{}, day, options, [&](double done) { bar.update(done); });
    days.push_back({name, result.metrics});
  }
  sim::add_policy_comparison(report, days);
  return ok_status();
}

Status run_published_day(SimulateArgs& args) {
  RETURN_IF_ERROR(check_range("--fraction", args.fleet.fraction, 0.002, 1));
  RETURN_IF_ERROR(check_range("--mtp-acceptance", args.fleet.mtp_acceptance, 0, 1));
  RETURN_IF_ERROR(check_range("--expert-imbalance", args.fleet.decode_expert_imbalance, 1, 10));
  RETURN_IF_ERROR(check_range("--prefill-expert-imbalance", args.fleet.prefill_expert_imbalance, 1, 10));
  RETURN_IF_ERROR(check_range("--seeds", args.num_seeds, 1, 1000));
  if (args.scale != "schedule" && args.scale != "autoscale") {
    return invalid_argument("--scale: \"{}\" is neither schedule nor autoscale", args.scale);
  }
  ASSIGN_OR_RETURN(args.fleet.decode_policy, parse_decode_policy(args.decode));
  ASSIGN_OR_RETURN(args.fleet.prefill_policy, parse_prefill_policy(args.prefill));
  ASSIGN_OR_RETURN(const sim::HardwareProfile hw, profile_of(args));
  ASSIGN_OR_RETURN(const sim::DayFiles day, day_files_of(args));
  RETURN_IF_ERROR(day_faults(args, day, sim::units_max(day.schedule)));
  const sim::ModelShape model;
  RETURN_IF_ERROR(sim::validate_day_profile(hw, model, args.fleet.shape));
  RETURN_IF_ERROR(prepare(args, "scale_policy", "a published day"));
  std::vector<sim::Report> reports;
  const uint64_t first_seed = args.fleet.seed;
  for (int i = 0; i < args.num_seeds; ++i) {
    sim::DayRun run;
    run.options = args.fleet;
    run.options.seed = first_seed + static_cast<uint64_t>(i);
    std::unique_ptr<sim::DayAutoscaler> autoscaler;
    if (args.scale == "autoscale") {
      ASSIGN_OR_RETURN(const AutoscaleOptions options,
                       sim::autoscale_options(hw, model, run.options, args.autoscale));
      run.options.scale_initial = sim::initial_units(day.schedule.units_at(0), options);
      autoscaler =
          std::make_unique<sim::DayAutoscaler>(options, run.options, day.load, args.autoscale.knows_yesterday,
                                               run.options.scale_initial, day.start_hour);
      run.autoscaled = true;
      run.clairvoyant_node_hours = sim::clairvoyant_node_hours(day.load, options, run.options);
      run.options.scale = [&autoscaler](const sim::ScaleInput& in) { return autoscaler->decide(in); };
      run.options.scale_interval_s = options.interval_s;
      run.options.scale_units_max = {options.budget_nodes / options.unit[1].nodes,
                                     options.budget_nodes / options.unit[0].nodes};
    }
    ProgressBar bar(fmt::format("published day, seed {}", run.options.seed));
    const sim::FleetResult result =
        sim::run_day(hw, model, day, run.options, [&](double done) { bar.update(done); });
    if (autoscaler) run.scale_log = autoscaler->log();
    reports.push_back(sim::day_report(hw, model, day, run, result));
    const double steps = reports.back().find("simulated_decode_rank_steps")->value;
    std::fprintf(stderr, "%.1f s, %.1f M simulated ranks x steps per second\n", bar.elapsed_s(),
                 steps / bar.elapsed_s() / 1e6);
  }
  sim::Report& report = reports.front();
  if (args.all_policies) RETURN_IF_ERROR(add_other_policies(args, hw, day, first_seed, report));
  if (args.num_seeds > 1) sim::add_seed_spread(report, std::vector<sim::Report>(reports));
  return finish(report, args);
}

Result<sim::BlockFleetOptions> replay_options(const SimulateArgs& args, const sim::HardwareProfile& hw,
                                              double last_arrival_s) {
  sim::BlockFleetOptions options = args.block;
  if (!args.fleet_file.empty()) {
    ASSIGN_OR_RETURN(const std::string text, read_text_file(args.fleet_file));
    RETURN_IF_ERROR(sim::read_fleet_file(args.fleet_file, text, options));
  }
  options.seed = args.fleet.seed;
  options.report_delay_ms = args.fleet.report_delay_ms;
  ASSIGN_OR_RETURN(options.prefill_policy, parse_prefill_policy(args.prefill));
  ASSIGN_OR_RETURN(options.decode_policy, parse_decode_policy(args.decode));
  for (const std::string& text : args.faults) {
    ASSIGN_OR_RETURN(const sim::Fault fault, sim::parse_fault(text));
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
  }
  return runs;
}

Status run_replay(SimulateArgs& args, const sim::Trace& trace) {
  RETURN_IF_ERROR(check_range("--rate", args.block.rate_scale, 1e-3, 1e3));
  RETURN_IF_ERROR(check_range("--mtp-acceptance", args.block.mtp_acceptance, 0, 1));
  RETURN_IF_ERROR(check_range("--expert-imbalance", args.block.expert_imbalance, 1, 10));
  RETURN_IF_ERROR(check_range("--routers", args.block.num_routers, 1, 64));
  ASSIGN_OR_RETURN(const sim::HardwareProfile hw, profile_of(args));
  const double last_arrival_s =
      static_cast<double>(trace.requests.back().arrival_us) / 1e6 / args.block.rate_scale;
  ASSIGN_OR_RETURN(const sim::BlockFleetOptions options, replay_options(args, hw, last_arrival_s));
  RETURN_IF_ERROR(prepare(args, "trace", "a replay"));
  std::vector<sim::ReplayRun> runs = replay_runs(options, args.all_policies);
  ProgressBar bar("replay");
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].result = sim::run_block_fleet(hw, sim::ModelShape{}, trace, runs[i].options);
    bar.update(static_cast<double>(i + 1) / static_cast<double>(runs.size()));
  }
  std::fprintf(stderr, "%.1f s for %zu replays\n", bar.elapsed_s(), runs.size());
  sim::Report report = sim::replay_report(hw, trace, runs);
  RETURN_IF_ERROR(finish(report, args));
  for (const sim::ReplayRun& run : runs) {
    for (const std::string& text : run.result.violations)
      std::fprintf(stderr, "broken rule: %s\n", text.c_str());
    if (!run.result.violations.empty()) {
      return make_status(StatusCode::kInternal, "{} rules broken in {}", run.result.violations.size(),
                         run.name);
    }
  }
  return ok_status();
}

Status run_trace(SimulateArgs& args) {
  const std::string file = find_data_file(args.trace_file);
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
  ASSIGN_OR_RETURN(const sim::Trace trace, sim::parse_trace(file, text));
  return run_replay(args, trace);
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
  const sim::LengthOptions& lengths = args.synthetic.lengths;
  RETURN_IF_ERROR(check_range("--input-tokens", lengths.input_mean_tokens, 1, lengths.input_tokens_max));
  RETURN_IF_ERROR(check_range("--output-tokens", lengths.output_mean_tokens, 1, lengths.output_tokens_max));
  return run_replay(args, sim::synthetic_trace(args.synthetic, args.fleet.seed));
}

void add_common_options(CLI::App& command, SimulateArgs& args) {
  command.add_option("--profile", args.profile, "Hardware profile (TOML)")->capture_default_str();
  command.add_option("--out", args.out_dir, "Directory for report.html, summary.json and CSV files");
  command.add_option("--compare", args.compare_dir, "Directory of another run, set beside this one");
  command.add_option("--seed", args.fleet.seed, "Seed of arrivals, lengths and random policies")
      ->check(seed_number())
      ->capture_default_str();
  command.add_option("--decode", args.decode, "Decode policy")->capture_default_str();
  command.add_option("--prefill", args.prefill, "Prefill policy")->capture_default_str();
  command.add_option("--report-delay", args.fleet.report_delay_ms, "Age of a load report on arrival, ms")
      ->capture_default_str();
}

void add_published_day(CLI::App& simulate, const std::shared_ptr<SimulateArgs>& args, Outcome& outcome) {
  CLI::App* day = simulate.add_subcommand("published-day", "DeepSeek's published day, from its load alone");
  add_common_options(*day, *args);
  day->add_option("--fraction", args->fleet.fraction,
                  "First part of each hour to simulate; state is carried over")
      ->capture_default_str();
  day->add_option("--seeds", args->num_seeds, "Runs, with consecutive seeds; the report shows their spread")
      ->capture_default_str();
  day->add_option("--phi", args->phi, "Residual factor on the decode step (default: the profile's)");
  day->add_option("--mtp-acceptance", args->fleet.mtp_acceptance, "Share of MTP tokens accepted")
      ->capture_default_str();
  day->add_option("--expert-imbalance", args->fleet.decode_expert_imbalance,
                  "f_ep of decode: busiest rank over mean")
      ->capture_default_str();
  day->add_option("--prefill-expert-imbalance", args->fleet.prefill_expert_imbalance, "The same of prefill")
      ->capture_default_str();
  day->add_option("--scale", args->scale, "schedule, or autoscale with the servers' own decisions")
      ->capture_default_str();
  const std::vector<CLI::Option*> of_autoscale = {
      day->add_option("--budget", args->autoscale.budget_nodes, "Autoscale: nodes never exceeded")
          ->capture_default_str(),
      day->add_option("--unit-speed", args->autoscale.speed_at_capacity,
                      "Autoscale: tokens/s per user of a full decode unit")
          ->capture_default_str(),
      day->add_option("--unit-use", args->autoscale.prefill_use_at_capacity,
                      "Autoscale: use of a full prefill unit")
          ->capture_default_str(),
      day->add_flag("--yesterday", args->autoscale.knows_yesterday,
                    "Autoscale: has seen a day of this shape (else it only sees today's trend)")};
  day->add_option("--max-queued", args->fleet.queued_prompts_max,
                  "Prompts that may wait at a prefill rank; more are refused")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  day->add_option("--fault", args->faults, kFaultHelp);
  day->add_flag("--all-policies", args->all_policies, "Also run every other decode policy, for the chart");
  day->add_option("--load", args->load_file, "Hourly load (CSV)")->capture_default_str();
  day->add_option("--schedule", args->schedule_file, "Node schedule (CSV)")->capture_default_str();
  day->add_flag("--perfect-balance", args->fleet.perfect_decode_balance,
                "Steps as if KV and requests were spread evenly: the bound of every decode policy");
  day->callback([args, of_autoscale, &outcome] {
    Status status = ok_status();
    for (const CLI::Option* option : of_autoscale) {
      if (option->count() > 0 && args->scale != "autoscale") {
        status = invalid_argument("{}: only with --scale autoscale", option->get_name());
      }
    }
    if (status.ok()) status = run_published_day(*args);
    if (!status.ok()) outcome.exit_code = report_error(status);
  });
}

void add_replay_options(CLI::App& command, SimulateArgs& args) {
  add_common_options(command, args);
  command.add_option("--fleet", args.fleet_file, "Another fleet (TOML)");
  command.add_option("--rate", args.block.rate_scale, "Arrivals this much faster")->capture_default_str();
  command
      .add_option("--mtp-acceptance", args.block.mtp_acceptance, "Share of MTP tokens accepted; 0: MTP off")
      ->capture_default_str();
  command.add_option("--expert-imbalance", args.block.expert_imbalance, "f_ep: busiest rank over mean")
      ->capture_default_str();
  command.add_option("--routers", args.block.num_routers, "Prefill routers side by side")
      ->capture_default_str();
  command.add_option("--fault", args.faults, kFaultHelp);
  command.add_flag("--all-policies", args.all_policies, "Also run every other policy, for the table");
}

void add_replays(CLI::App& simulate, Outcome& outcome) {
  auto args = std::make_shared<SimulateArgs>();
  args->decode = "fathom";
  args->profile = "profiles/h800.toml";
  CLI::App* trace = simulate.add_subcommand("trace", "Replay a trace, exact to the block");
  trace->add_option("file", args->trace_file, "JSON lines (Mooncake) or CSV (Azure)")->required();
  add_replay_options(*trace, *args);
  trace->callback([args, &outcome] {
    const Status status = run_trace(*args);
    if (!status.ok()) outcome.exit_code = report_error(status);
  });
  auto made = std::make_shared<SimulateArgs>(*args);
  CLI::App* synthetic = simulate.add_subcommand("synthetic", "Replay a made-up load, exact to the block");
  add_replay_options(*synthetic, *made);
  synthetic->add_option("--seconds", made->synthetic.seconds, "Length")->capture_default_str();
  synthetic->add_option("--requests-per-s", made->synthetic.requests_per_s, "Mean rate")
      ->capture_default_str();
  synthetic->add_option("--burst", made->synthetic.burst_share, "Share of requests that come in bursts")
      ->capture_default_str();
  synthetic->add_option("--shared", made->synthetic.shared_share, "Share that continues a conversation")
      ->capture_default_str();
  synthetic->add_option("--input-tokens", made->synthetic.lengths.input_mean_tokens, "Mean new prompt")
      ->capture_default_str();
  synthetic->add_option("--output-tokens", made->synthetic.lengths.output_mean_tokens, "Mean answer")
      ->capture_default_str();
  synthetic->callback([made, &outcome] {
    const Status status = run_synthetic(*made);
    if (!status.ok()) outcome.exit_code = report_error(status);
  });
}

}  // namespace

void add_simulate_command(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("simulate", "Run a load on a virtual fleet");
  command->require_subcommand(1);
  add_published_day(*command, std::make_shared<SimulateArgs>(), outcome);
  add_replays(*command, outcome);
}

}  // namespace fathom::cli
