// Options, profile, printing and files that the subcommands of `fathom simulate` share.
#include "cli/simulate_args.h"

#include <fmt/ranges.h>

#include <cmath>
#include <cstdio>

#include "cli/autoscale_flags.h"
#include "cli/flag_values.h"
#include "sim/day_report.h"

namespace fathom::cli {
namespace {

constexpr double kBudgetNodesMax = 16'384;  // what a day's books of its units are made for

constexpr const char* kFaultHelp =
    "KIND@HH:MM[:SS][,key=value...]: unit-loss, slow-rank, stale-reports, flash-crowd, lost-registry, "
    "no-nodes; keys for, unit, rank, factor, phase. Replays are exact to the block, the published day counts";

void print_figures(const sim::Report& report) {
  for (const auto& [name, value] : report.facts) {
    const bool shown = name.starts_with("profile") || name == sim::kBiasNotEstimated;
    if (shown) std::printf("%-52s %16s\n", name.c_str(), value.c_str());
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

// What was set differently and the figures of both runs, a line each.
void print_comparison(const sim::Table& table) {
  std::printf("\n%s: %s and %s\n", table.title.c_str(), table.columns[1].c_str(), table.columns[2].c_str());
  for (const std::vector<std::string>& row : table.rows) {
    std::printf("%-52s %16s %16s   %s\n", row[0].c_str(), row[1].c_str(), row[2].c_str(), row[3].c_str());
  }
}

using Facts = std::vector<std::pair<std::string, std::string>>;
using LengthFact = std::pair<const char*, double sim::LengthOptions::*>;

constexpr LengthFact kLengthFacts[] = {{"input_tokens_mean", &sim::LengthOptions::input_mean_tokens},
                                       {"input_cv2", &sim::LengthOptions::input_cv2},
                                       {"output_tokens_mean", &sim::LengthOptions::output_mean_tokens},
                                       {"output_cv2", &sim::LengthOptions::output_cv2}};
constexpr LengthFact kClassFacts[] = {{"continuation_share", &sim::LengthOptions::continuation_share},
                                      {"continuation_hit", &sim::LengthOptions::continuation_hit},
                                      {"other_hit", &sim::LengthOptions::other_hit}};

// What a made-up load was made of.
void add_synthetic_facts(const SimulateArgs& args, Facts& facts) {
  const sim::SyntheticOptions& made = args.synthetic;
  const auto add = [&](const char* name, const auto& value) {
    facts.emplace_back(name, fmt::format("{}", value));
  };
  add("seconds", made.seconds);
  add("requests_per_s", made.requests_per_s);
  add("arrivals", args.arrivals);
  if (made.shape == sim::ArrivalShape::kBursty) add("arrival_cv2", made.arrival_cv2);
  if (made.shape == sim::ArrivalShape::kDiurnal) {
    add("load", args.load_file);
    add("day_seconds", made.day_seconds);
  }
  add("burst", made.burst_share);
  for (const auto& [name, field] : kLengthFacts) add(name, made.lengths.*field);
  add("hits", args.hits);
  if (made.hits == sim::HitModel::kConversations) {
    add("shared", made.shared_share);
    return;
  }
  for (const auto& [name, field] : kClassFacts) add(name, made.lengths.*field);
}

// Options that a report's own facts leave out: of the load all, of the others those that are not the default.
void add_facts(const SimulateArgs& args, sim::Report& report) {
  const SimulateArgs plain;
  const auto add = [&](const char* name, const auto& value, const auto& usual) {
    if (value != usual) report.facts.emplace_back(name, fmt::format("{}", value));
  };
  if (args.made_up) {
    add_synthetic_facts(args, report.facts);
  } else {
    add("load", args.load_file, plain.load_file);
    add("requests_per_day", args.fleet.requests_per_day, plain.fleet.requests_per_day);
    for (const auto& [name, field] : kLengthFacts)
      add(name, args.fleet.lengths.*field, plain.fleet.lengths.*field);
    for (const auto& [name, field] : kClassFacts)
      add(name, args.fleet.lengths.*field, plain.fleet.lengths.*field);
  }
  add("schedule", args.schedule_file, plain.schedule_file);
  add("fleet_file", args.fleet_file, std::string());
  add("faults", fmt::format("{}", fmt::join(args.faults, " ")), std::string());
  add("perfect_balance", args.fleet.perfect_decode_balance, false);
  add("max_queued", args.fleet.queued_prompts_max, plain.fleet.queued_prompts_max);
  add("budget_nodes", args.autoscale.budget_nodes, plain.autoscale.budget_nodes);
  add("unit_speed", args.autoscale.speed_at_capacity, plain.autoscale.speed_at_capacity);
  add("tied", args.autoscale.tied, false);
  add("unit_use", args.autoscale.prefill_use_at_capacity, plain.autoscale.prefill_use_at_capacity);
  add("knows_yesterday", args.autoscale.knows_yesterday, false);
  if (args.scale == "autoscale") {
    add("kv_imbalance", args.autoscale.imbalance.kv, 0.0);
    add("requests_imbalance", args.autoscale.imbalance.requests, 0.0);
  }
  for (auto& fact : autoscale_facts(args.autoscale.rules, args.autoscale.times))
    report.facts.push_back(std::move(fact));
  add("slo_ttft_s", args.fleet.slo_ttft_s, plain.fleet.slo_ttft_s);
  add("slo_tokens_per_s_per_user", args.fleet.slo_tokens_per_s_per_user,
      plain.fleet.slo_tokens_per_s_per_user);
}

}  // namespace

Result<sim::HardwareProfile> profile_of(const SimulateArgs& args) {
  ASSIGN_OR_RETURN(sim::HardwareProfile hw, sim::load_profile(find_data_file(args.profile), read_text_file));
  if (args.phi) {
    RETURN_IF_ERROR(check_range("--phi", *args.phi, 0.01, 100));
    RETURN_IF_ERROR(sim::set_profile_constant(hw, "residual.decode_phi", *args.phi));
  }
  RETURN_IF_ERROR(set_price(args.price, hw));
  return hw;
}

int nodes_of(int ranks, const sim::HardwareProfile& hw) {
  return static_cast<int>(std::ceil(ranks / hw.gpus_per_node));
}

Status check_scale(const std::string& scale) {
  if (scale == "none" || scale == "schedule" || scale == "autoscale") return ok_status();
  return invalid_argument("--scale: \"{}\" is none of none, schedule, autoscale", scale);
}

Status check_only_with(const std::vector<OnlyWith>& options) {
  for (const OnlyWith& o : options) {
    if (o.option->count() > 0 && !o.allowed)
      return invalid_argument("{}: only with {}", o.option->get_name(), o.wanted);
  }
  return ok_status();
}

Status check_in_fraction(const std::string& text, double at_s, double fraction) {
  if (std::fmod(at_s, 3600) < 3600 * fraction) return ok_status();
  return invalid_argument("--fault: \"{}\": --fraction {} simulates the first {:.0f} s of each hour", text,
                          fraction, 3600 * fraction);
}

Status prepare(SimulateArgs& args, const char* fact, const char* kind) {
  RETURN_IF_ERROR(check_range("--report-delay", args.fleet.report_delay_ms, 0, 60'000));
  RETURN_IF_ERROR(check_range("--seeds", args.num_seeds, 1, 1000));
  if (args.fleet.seed > UINT64_MAX - static_cast<uint64_t>(args.num_seeds - 1)) {
    return invalid_argument("--seeds: {} from --seed {} on go beyond 64 bits", args.num_seeds,
                            args.fleet.seed);
  }
  RETURN_IF_ERROR(check_range("--slo-ttft", args.fleet.slo_ttft_s, 1e-3, 1e6));
  RETURN_IF_ERROR(check_range("--slo-speed", args.fleet.slo_tokens_per_s_per_user, 1e-3, 1e6));
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

Status finish(sim::Report& report, const SimulateArgs& args) {
  add_facts(args, report);
  print_figures(report);
  if (!args.compare_dir.empty()) {
    report.tables.push_back(sim::compare_table(report, args.other, args.compare_dir));
    print_comparison(report.tables.back());
  }
  if (args.out_dir.empty()) return ok_status();
  RETURN_IF_ERROR(write_report(report, args.out_dir));
  std::printf("\nwritten to %s: report.html, summary.json", args.out_dir.c_str());
  for (const sim::CsvFile& file : report.csv_files) std::printf(", %s", file.name.c_str());
  std::printf("\n");
  return ok_status();
}

void add_common_options(CLI::App& command, SimulateArgs& args) {
  command.add_option("--profile", args.profile, "Hardware profile (TOML)")
      ->check(not_empty())
      ->capture_default_str();
  command.add_option("--price", args.price, "USD per GPU hour (default: the profile's)");
  command.add_option("--out", args.out_dir, "Directory for report.html, summary.json and CSV files")
      ->check(not_empty());
  command
      .add_option("--compare", args.compare_dir,
                  "Directory of another run, whose figures are printed beside this one's")
      ->check(not_empty());
  command.add_option("--seed", args.fleet.seed, "Seed of arrivals, lengths and random policies")
      ->check(seed_number())
      ->capture_default_str();
  command
      .add_option("--seeds", args.num_seeds, "Runs, with consecutive seeds; the report shows their spread")
      ->capture_default_str();
  command.add_option("--decode", args.decode, "Decode policy")->capture_default_str();
  command.add_option("--prefill", args.prefill, "Prefill policy")->capture_default_str();
  command
      .add_option("--fraction", args.fleet.fraction,
                  "First part of each hour to simulate; state is carried over")
      ->capture_default_str();
  command.add_option("--fleet", args.fleet_file, "Another fleet (TOML)")->check(not_empty());
  command.add_option("--fault", args.faults, kFaultHelp);
  command.add_option("--report-delay", args.fleet.report_delay_ms, "Age of a load report on arrival, ms")
      ->capture_default_str();
  command.add_option("--slo-ttft", args.fleet.slo_ttft_s, "Objective: seconds to the first token")
      ->capture_default_str();
  command.add_option("--slo-speed", args.fleet.slo_tokens_per_s_per_user, "Objective: tokens/s per user")
      ->capture_default_str();
}

std::vector<const CLI::Option*> add_scale_options(CLI::App& command, SimulateArgs& args) {
  command
      .add_option("--scale", args.scale,
                  "none: all units serve; schedule; autoscale: the decisions of balance/autoscale")
      ->capture_default_str();
  sim::DayAutoscaleOptions& scaling = args.autoscale;
  std::vector<const CLI::Option*> options = {
      command.add_option("--budget", scaling.budget_nodes, "Autoscale: nodes never exceeded"),
      command.add_flag("--tied", scaling.tied,
                       "Autoscale: decode and prefill together, one unit and three, above two"),
      command.add_option(
          "--kv-imbalance", args.kv_imbalance,
          "Autoscale: largest over mean KV of a decode unit's ranks (default: measured, of the policy)"),
      command.add_option("--requests-imbalance", args.requests_imbalance, "Autoscale: the same of requests")};
  const auto add = [&](const char* name, double& value, const char* help) {
    options.push_back(command.add_option(name, value, help)->capture_default_str());
  };
  add("--unit-speed", scaling.speed_at_capacity, "Autoscale: tokens/s per user of a full decode unit");
  add("--unit-use", scaling.prefill_use_at_capacity, "Autoscale: use of a full prefill unit");
  for (const CLI::Option* option : add_autoscale_flags(command, scaling.rules, scaling.times))
    options.push_back(option);
  return options;
}

Status read_scale_options(SimulateArgs& args) {
  if (args.scale != "autoscale") return ok_status();
  if (args.budget_given)
    RETURN_IF_ERROR(check_range("--budget", args.autoscale.budget_nodes, 1, kBudgetNodesMax));
  RETURN_IF_ERROR(check_autoscale_flags(args.autoscale.rules, args.autoscale.times));
  ASSIGN_OR_RETURN(args.autoscale.imbalance,
                   imbalance_of(args.decode, args.kv_imbalance, args.requests_imbalance));
  RETURN_IF_ERROR(check_range("--kv-imbalance", args.autoscale.imbalance.kv, 1, 100));
  return check_range("--requests-imbalance", args.autoscale.imbalance.requests, 1, 100);
}

std::vector<const CLI::Option*> add_length_options(CLI::App& command, sim::LengthOptions& lengths) {
  const auto add = [&](const char* name, double& value, const char* help) {
    return command.add_option(name, value, help)->capture_default_str();
  };
  add("--input-tokens", lengths.input_mean_tokens, "Mean prompt (of conversations: its new part)");
  add("--input-cv2", lengths.input_cv2, "Its squared variation");
  add("--output-tokens", lengths.output_mean_tokens, "Mean answer");
  add("--output-cv2", lengths.output_cv2, "Its squared variation");
  return {add("--continuation-share", lengths.continuation_share, "Share that hits most"),
          add("--continuation-hit", lengths.continuation_hit, "of its prompt"),
          add("--other-hit", lengths.other_hit, "Hits of the others")};
}

Status check_lengths(const sim::LengthOptions& lengths) {
  RETURN_IF_ERROR(check_range("--input-cv2", lengths.input_cv2, 1e-6, 100));
  RETURN_IF_ERROR(check_range("--output-cv2", lengths.output_cv2, 1e-6, 100));
  RETURN_IF_ERROR(check_range("--continuation-share", lengths.continuation_share, 0, 1));
  RETURN_IF_ERROR(check_range("--continuation-hit", lengths.continuation_hit, 0, 0.999));
  RETURN_IF_ERROR(check_range("--other-hit", lengths.other_hit, 0, 0.999));
  RETURN_IF_ERROR(check_range("--input-tokens", lengths.input_mean_tokens, 1, lengths.input_tokens_max));
  return check_range("--output-tokens", lengths.output_mean_tokens, 1, lengths.output_tokens_max);
}

void add_simulate_command(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("simulate", "Run a load on a virtual fleet");
  command->require_subcommand(1);
  add_published_day(*command, outcome);
  add_replays(*command, outcome);
}

}  // namespace fathom::cli
