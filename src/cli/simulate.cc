// fathom simulate published-day: DeepSeek's published day, or its load on another fleet.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "cli/flag_values.h"
#include "cli/simulate_args.h"
#include "sim/day_report.h"
#include "sim/fleet_file.h"

namespace fathom::cli {
namespace {

constexpr double kDayRequestsMax = 1e9;  // some ten minutes of computing

// A fleet file's units and ranks in place of the published ones.
Status use_fleet(SimulateArgs& args, const sim::HardwareProfile& hw, sim::UnitCounts& most) {
  sim::BlockFleetOptions fleet;
  fleet.decode_units = most.decode, fleet.decode_ranks = args.fleet.shape.decode_ranks;
  fleet.prefill_units = most.prefill, fleet.prefill_ranks = args.fleet.shape.prefill_ranks;
  fleet.chunk_tokens = args.fleet.prefill_chunk_tokens;
  ASSIGN_OR_RETURN(const std::string text, read_text_file(args.fleet_file));
  RETURN_IF_ERROR(sim::read_fleet_file(args.fleet_file, text, fleet));
  const auto place = [&](std::string_view field) { return sim::fleet_place(args.fleet_file, text, field); };
  if (fleet.prefill_blocks_per_rank > 0) {
    return invalid_argument("{}: the published day counts prefill by its work, not by blocks",
                            place("prefill.blocks_per_rank"));
  }
  if (int64_t{fleet.decode_blocks_per_rank} * 64 > sim::kRoomTokensMax) {
    return invalid_argument("{}: {} blocks, the published day holds {}", place("decode.blocks_per_rank"),
                            fleet.decode_blocks_per_rank, sim::kRoomTokensMax / 64);
  }
  for (const auto& [phase, ranks] :
       {std::pair{"decode", fleet.decode_ranks}, {"prefill", fleet.prefill_ranks}}) {
    if (std::fmod(ranks, hw.gpus_per_node) == 0) continue;
    return invalid_argument("{}: {} ranks do not fill nodes of {} GPUs",
                            place(fmt::format("{}.ranks", phase)), ranks, hw.gpus_per_node);
  }
  sim::FleetShape& shape = args.fleet.shape;
  shape = {fleet.decode_ranks,  nodes_of(fleet.decode_ranks, hw),  fleet.expert_slots,
           fleet.prefill_ranks, nodes_of(fleet.prefill_ranks, hw), fleet.expert_slots};
  args.fleet.decode_blocks_per_rank = fleet.decode_blocks_per_rank;
  args.fleet.prefill_chunk_tokens = fleet.chunk_tokens;
  most = {fleet.decode_units, fleet.prefill_units};
  return ok_status();
}

// The day's files on the fleet that was asked for: the published schedule's shares of its peak, or, with a
// schedule given, its rows; with --scale none all units throughout.
Result<sim::DayFiles> day_of(SimulateArgs& args, const sim::HardwareProfile& hw) {
  ASSIGN_OR_RETURN(const std::string published_text, read_text_file(find_data_file("data/day_schedule.csv")));
  ASSIGN_OR_RETURN(const sim::DaySchedule published,
                   sim::parse_schedule("data/day_schedule.csv", published_text));
  sim::UnitCounts most = sim::units_max(published);
  if (!args.fleet_file.empty()) RETURN_IF_ERROR(use_fleet(args, hw, most));
  const sim::FleetShape& shape = args.fleet.shape;
  const sim::UnitCounts nodes{shape.decode_nodes, shape.prefill_nodes};
  const std::string load = find_data_file(args.load_file);
  const std::string schedule = find_data_file(args.schedule_file);
  ASSIGN_OR_RETURN(const std::string load_text, read_text_file(load));
  ASSIGN_OR_RETURN(const std::string schedule_text, read_text_file(schedule));
  ASSIGN_OR_RETURN(sim::DayFiles day,
                   sim::parse_day_files(load, load_text, schedule, schedule_text,
                                        args.schedule_given ? nodes : sim::kPublishedUnitNodes));
  if (!args.fleet_file.empty() && !args.schedule_given)
    day.schedule = sim::schedule_of_fleet(published, most, nodes);
  if (!args.fleet_file.empty() && args.schedule_given) {
    const sim::UnitCounts rows = sim::units_max(day.schedule);
    if (rows.decode > most.decode || rows.prefill > most.prefill) {
      return invalid_argument("--schedule: {}: {} decode and {} prefill units, the fleet has {} and {}",
                              schedule, rows.decode, rows.prefill, most.decode, most.prefill);
    }
  }
  if (args.fleet_file.empty() && args.schedule_given) most = sim::units_max(day.schedule);
  const int all = most.decode * nodes.decode + most.prefill * nodes.prefill;
  if (args.scale == "none") day.schedule = sim::DaySchedule({{0, all, most}});
  if (!args.fleet_file.empty()) {
    args.autoscale.units_max = most;
    if (!args.budget_given) args.autoscale.budget_nodes = all;
  }
  return day;
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
    RETURN_IF_ERROR(check_in_fraction(text, fault.at_s, args.fleet.fraction));
    if (fault.kind == sim::FaultKind::kNoNodes && args.scale != "autoscale")
      return invalid_argument("--fault: \"{}\": only with --scale autoscale", text);
    args.fleet.faults.push_back(fault);
  }
  return sim::validate_faults(args.fleet.faults, units_max, args.fleet.shape);
}

// What all days of one command have in common.
struct DaySetting {
  const SimulateArgs& args;
  const sim::HardwareProfile& hw;
  const sim::DayFiles& day;
};

struct RanDay {
  sim::DayRun run;
  sim::FleetResult result;
};

sim::DayInputs inputs_of(const SimulateArgs& args) {
  const SimulateArgs usual;
  sim::DayInputs inputs;
  inputs.scale = args.scale;
  inputs.other_load = args.load_file != usual.load_file;
  inputs.other_fleet = !args.fleet_file.empty();
  inputs.other_schedule = args.schedule_file != usual.schedule_file;
  inputs.phi_given = args.phi.has_value();
  return inputs;
}

// What the schedule's drains came to, where the run compared with is one of it.
std::optional<double> measured_drains(const sim::Summary& other, const SimulateArgs& args,
                                      const sim::DayRun& run) {
  const auto is = [&](const char* fact, const std::string& value) {
    const auto found = other.facts.find(fact);
    return found != other.facts.end() && found->second == value;
  };
  const auto drains = other.figures.find("drain_node_hours");
  const bool same = is("scale_policy", "schedule") &&
                    is("fraction", fmt::format("{}", run.options.fraction)) &&
                    is("fleet", sim::fleet_of(run.options)) &&
                    other.facts.contains("schedule") == run.inputs.other_schedule;
  if (args.compare_dir.empty() || !same || drains == other.figures.end()) return std::nullopt;
  return drains->second;
}

// A day with the scaling that was asked for.
Result<RanDay> run_one(const DaySetting& s, const sim::FleetOptions& options, const std::string& label) {
  const sim::ModelShape model;
  RanDay ran;
  sim::DayRun& run = ran.run;
  run.options = options;
  run.inputs = inputs_of(s.args);
  std::unique_ptr<sim::DayAutoscaler> autoscaler;
  if (run.inputs.autoscaled()) {
    ASSIGN_OR_RETURN(const AutoscaleOptions scaling,
                     sim::autoscale_options(s.hw, model, run.options, s.args.autoscale));
    run.options.scale_initial = sim::starting_units(s.day.schedule.units_at(0), scaling);
    autoscaler = std::make_unique<sim::DayAutoscaler>(scaling, run.options, s.day.load,
                                                      s.args.autoscale.knows_yesterday,
                                                      run.options.scale_initial, s.day.start_hour);
    run.budget_nodes = scaling.budget_nodes;
    run.times = s.args.autoscale.times;
    run.clairvoyant = sim::clairvoyant_day(s.day.load, scaling, run.options);
    run.schedule_drain_node_hours = measured_drains(s.args.other, s.args, run);
    run.options.scale = [&autoscaler](const sim::ScaleInput& in) { return autoscaler->decide(in); };
    run.options.scale_interval_s = scaling.interval_s;
    const auto most = [&](int k) {
      return std::min(scaling.units_max[k], scaling.budget_nodes / scaling.unit[k].nodes);
    };
    run.options.scale_units_max = {most(static_cast<int>(UnitKind::kDecode)),
                                   most(static_cast<int>(UnitKind::kPrefill))};
  }
  ProgressBar bar(label);
  ran.result = sim::run_day(s.hw, model, s.day, run.options, [&](double done) { bar.update(done); });
  if (autoscaler) {
    run.scale_log = autoscaler->log();
    run.whole_day_nodes_mean = autoscaler->nodes_mean();
    run.options.scale = {};  // its autoscaler ends here
  }
  const auto steps = static_cast<double>(ran.result.metrics.total().rank_steps);
  std::fprintf(stderr, "%s: %.1f s, %.1f M simulated ranks x steps per second\n", label.c_str(),
               bar.elapsed_s(), steps / bar.elapsed_s() / 1e6);
  return ran;
}

// One seed's day, and beside a fraction the half of it that tells what it adds. Faults have times of their
// own, which half a part may not reach.
Result<RanDay> run_seed(const DaySetting& s, uint64_t seed, bool with_half) {
  sim::FleetOptions options = s.args.fleet;
  options.seed = seed;
  ASSIGN_OR_RETURN(RanDay ran, run_one(s, options, fmt::format("published day, seed {}", seed)));
  if (!with_half || options.fraction >= 1 || !options.faults.empty()) return ran;
  options.fraction /= 2;
  ASSIGN_OR_RETURN(const RanDay half, run_one(s, options, "half the fraction"));
  ran.run.half_fraction = half.result.metrics.total();
  return ran;
}

// One policy on the schedule's units, for each seed.
Result<sim::PolicyDay> run_policy(const DaySetting& s, const char* name, bool perfect) {
  sim::PolicyDay out{perfect ? "perfect-balance" : name, {}, {}};
  for (int i = 0; i < s.args.num_seeds; ++i) {
    sim::FleetOptions options = s.args.fleet;
    options.seed += static_cast<uint64_t>(i);
    options.perfect_decode_balance = perfect;
    ASSIGN_OR_RETURN(options.decode_policy, parse_decode_policy(name));
    ProgressBar bar(fmt::format("published day, {}, seed {}", out.policy, options.seed));
    sim::FleetResult result =
        sim::run_day(s.hw, sim::ModelShape{}, s.day, options, [&](double done) { bar.update(done); });
    out.totals.push_back(result.metrics.total());
    if (i == 0) out.metrics = std::move(result.metrics);
  }
  return out;
}

// The same load under every decode policy, the schedule's units serving, and under their bound.
Status add_policies(const DaySetting& s, sim::Report& report) {
  std::vector<sim::PolicyDay> days;
  for (const char* name : kDecodePolicies) {
    ASSIGN_OR_RETURN(sim::PolicyDay day, run_policy(s, name, false));
    days.push_back(std::move(day));
  }
  ASSIGN_OR_RETURN(const sim::PolicyDay perfect, run_policy(s, s.args.decode.c_str(), true));
  sim::add_policy_comparison(report, days, perfect);
  return ok_status();
}

Status check_day_options(SimulateArgs& args) {
  RETURN_IF_ERROR(check_range("--fraction", args.fleet.fraction, 0.002, 1));
  RETURN_IF_ERROR(check_range("--mtp-acceptance", args.fleet.mtp_acceptance, 0, 1));
  RETURN_IF_ERROR(check_range("--expert-imbalance", args.fleet.decode_expert_imbalance, 1, 10));
  RETURN_IF_ERROR(check_range("--prefill-expert-imbalance", args.fleet.prefill_expert_imbalance, 1, 10));
  RETURN_IF_ERROR(check_range("--requests-per-day", args.fleet.requests_per_day, 1, 1e12));
  if (args.fleet.requests_per_day * args.fleet.fraction > kDayRequestsMax) {
    return invalid_argument(
        "--requests-per-day: {:.3g} requests at --fraction {}, a simulated day holds at most {:.3g}",
        args.fleet.requests_per_day * args.fleet.fraction, args.fleet.fraction, kDayRequestsMax);
  }
  RETURN_IF_ERROR(check_lengths(args.fleet.lengths));
  RETURN_IF_ERROR(check_scale(args.scale));
  ASSIGN_OR_RETURN(args.fleet.decode_policy, parse_decode_policy(args.decode));
  ASSIGN_OR_RETURN(args.fleet.prefill_policy, parse_prefill_policy(args.prefill));
  return read_scale_options(args);
}

Status run_published_day(SimulateArgs& args) {
  RETURN_IF_ERROR(check_day_options(args));
  ASSIGN_OR_RETURN(const sim::HardwareProfile hw, profile_of(args));
  ASSIGN_OR_RETURN(const sim::DayFiles day, day_of(args, hw));
  RETURN_IF_ERROR(day_faults(args, day, sim::units_max(day.schedule)));
  const sim::ModelShape model;
  RETURN_IF_ERROR(sim::validate_day_profile(hw, model, args.fleet));
  RETURN_IF_ERROR(prepare(args, "decode_phi", "a published day"));
  const DaySetting setting{args, hw, day};
  std::vector<sim::Report> reports;
  for (int i = 0; i < args.num_seeds; ++i) {
    ASSIGN_OR_RETURN(const RanDay ran, run_seed(setting, args.fleet.seed + static_cast<uint64_t>(i), i == 0));
    reports.push_back(sim::day_report(hw, model, day, ran.run, ran.result));
  }
  sim::Report& report = reports.front();
  if (args.all_policies) RETURN_IF_ERROR(add_policies(setting, report));
  if (args.num_seeds > 1) sim::add_seed_spread(report, std::vector<sim::Report>(reports));
  return finish(report, args);
}

}  // namespace

void add_published_day(CLI::App& simulate, Outcome& outcome) {
  const auto args = std::make_shared<SimulateArgs>();
  CLI::App* day = simulate.add_subcommand("published-day", "DeepSeek's published day, from its load alone");
  add_common_options(*day, *args);
  day->add_option("--phi", args->phi, "Residual factor on the decode step (default: the profile's)");
  day->add_option("--mtp-acceptance", args->fleet.mtp_acceptance, "Share of MTP tokens accepted")
      ->capture_default_str();
  day->add_option("--expert-imbalance", args->fleet.decode_expert_imbalance,
                  "f_ep of decode: busiest rank over mean")
      ->capture_default_str();
  day->add_option("--prefill-expert-imbalance", args->fleet.prefill_expert_imbalance, "The same of prefill")
      ->capture_default_str();
  day->add_option("--requests-per-day", args->fleet.requests_per_day, "Load")->capture_default_str();
  add_length_options(*day, args->fleet.lengths);
  std::vector<const CLI::Option*> of_autoscale = add_scale_options(*day, *args);
  of_autoscale.push_back(day->add_flag("--yesterday", args->autoscale.knows_yesterday,
                                       "Autoscale: has seen a day of this shape (else only today's trend)"));
  day->add_option("--max-queued", args->fleet.queued_prompts_max,
                  "Prompts that may wait at a prefill rank; more are refused")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  day->add_flag("--all-policies", args->all_policies,
                "Also run every decode policy, and perfect balance, the bound: a table and a chart");
  day->add_option("--load", args->load_file, "Hourly load (CSV)")->check(not_empty())->capture_default_str();
  const CLI::Option* schedule = day->add_option("--schedule", args->schedule_file, "Node schedule (CSV)")
                                    ->check(not_empty())
                                    ->capture_default_str();
  day->add_flag("--perfect-balance", args->fleet.perfect_decode_balance,
                "Steps as if KV and requests were spread evenly: the bound of every decode policy");
  day->callback([args, of_autoscale, schedule, &outcome] {
    args->schedule_given = schedule->count() > 0;
    args->budget_given = of_autoscale.front()->count() > 0;
    std::vector<OnlyWith> only = {{schedule, args->scale != "none", "--scale schedule or autoscale"}};
    for (const CLI::Option* option : of_autoscale)
      only.push_back({option, args->scale == "autoscale", "--scale autoscale"});
    Status status = check_scale(args->scale);
    if (status.ok()) status = check_only_with(only);
    if (status.ok()) status = run_published_day(*args);
    if (!status.ok()) outcome.exit_code = report_error(status);
  });
}

}  // namespace fathom::cli
